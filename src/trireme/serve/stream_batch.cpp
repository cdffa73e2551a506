#include "trireme/serve/stream_batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "trireme/base/error.h"
#include "trireme/base/stopwatch.h"

namespace trireme::serve {
namespace {

/// A step of so many sequences, the best of three: the first reads a token of each, the others decode one.
double decode_step_seconds(models::Model& model, EngineOptions options, std::int64_t sequences) {
  options.max_sequences = options.max_batch_tokens = sequences;
  options.kv_tokens = sequences * nn::kKvBlockSize;
  options.kv_offload_tokens = 0;
  options.prefix_cache = false;
  options.schedule_log = nullptr;
  InferenceEngine engine(model, options);
  for (std::int64_t i = 0; i < sequences; ++i) {
    const auto why =
        engine.add({.id = static_cast<RequestId>(i), .prompt = {i % model.shape.vocab_size}, .max_new_tokens = 3});
    TRIREME_CHECK(!why, "{}", *why);
  }
  double best = std::numeric_limits<double>::infinity();
  while (!engine.idle()) {
    const auto begin = std::chrono::steady_clock::now();
    engine.step();
    best = std::min(best, seconds_since(begin));
  }
  return best;
}

}  // namespace

BalancedBatch balance_batch(std::int64_t most, const std::function<double(std::int64_t)>& step_seconds) {
  BalancedBatch out;
  double best = 0;
  int without_gain = 0;
  for (std::int64_t sequences = 1;; sequences = std::min(most, 2 * sequences)) {
    out.trials.push_back({sequences, step_seconds(sequences)});
    const double rate = out.trials.back().rate();
    without_gain = rate > 1.1 * best ? 0 : without_gain + 1;
    best = std::max(best, rate);
    if (sequences >= most || without_gain == 2) break;
  }
  const auto enough = [&](const BalancedBatch::Trial& trial) { return trial.rate() >= 0.7 * best; };
  out.sequences = std::ranges::find_if(out.trials, enough)->sequences;
  return out;
}

BalancedBatch measure_balanced_batch(models::Model& model, const EngineOptions& options, std::int64_t most) {
  decode_step_seconds(model, options, 1);  // touches memory, and fills the loader's buffers
  return balance_batch(most, [&](std::int64_t sequences) { return decode_step_seconds(model, options, sequences); });
}

std::int64_t batch_of(std::int64_t asked, const RankModel& model, std::int64_t most, std::int64_t tokens,
                      std::string& about) {
  if (asked > 0) return asked;
  if (model.stream == nullptr || !model.stream->streams()) return kDefaultBatch;
  EngineOptions options;
  model.set_up(options);
  const std::int64_t room = std::max<std::int64_t>(1, model.most_kv_tokens() / std::max<std::int64_t>(1, tokens));
  const BalancedBatch balanced =
      measure_balanced_batch(model.model(), options, std::clamp<std::int64_t>(most, 1, std::min(room, kMostBalanced)));
  about += about.empty() ? "" : "\n";
  about += fmt::format("batch: {} sequences, chosen by the time of a step while layers load:", balanced.sequences);
  for (const BalancedBatch::Trial& trial : balanced.trials)
    about +=
        fmt::format("{} {} in {:.4f} s", &trial == balanced.trials.data() ? "" : ",", trial.sequences, trial.seconds);
  return balanced.sequences;
}

}  // namespace trireme::serve
