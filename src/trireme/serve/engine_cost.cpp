#include "trireme/serve/engine_cost.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/stopwatch.h"

namespace trireme::serve {
namespace {

using Clock = std::chrono::steady_clock;

double median_of(std::vector<double> numbers) {
  std::ranges::sort(numbers);
  return numbers[numbers.size() / 2];
}

/// Sequences of so many tokens whose prompts are computed already: each step is then one token of each.
class Decoding {
 public:
  Decoding(models::Model& model, EngineOptions options, std::int64_t sequences, std::int64_t context, int steps)
      : engine_(model, with_sizes(options, sequences, context + new_tokens(options, sequences, context, steps))) {
    const std::int64_t tokens = new_tokens(options, sequences, context, steps);
    for (std::int64_t i = 0; i < sequences; ++i) {
      const std::vector<std::int64_t> prompt(static_cast<std::size_t>(context), i % model.shape.vocab_size);
      const auto why = engine_.add({.id = static_cast<RequestId>(i), .prompt = prompt, .max_new_tokens = tokens});
      TRIREME_CHECK(!why, "{}", *why);
    }
    const auto computed = [&] {
      for (std::int64_t i = 0; i < sequences; ++i) {
        if (engine_.scheduler().progress(static_cast<RequestId>(i)).generated == 0) return false;
      }
      return true;
    };
    while (!computed()) engine_.step();
  }
  double step() {
    const auto begin = Clock::now();
    engine_.step();
    return seconds_since(begin);
  }

 private:
  static std::int64_t budget(const EngineOptions& options, std::int64_t sequences) {
    return std::max<std::int64_t>({sequences, options.prefill_chunk, 64});
  }
  /// The first sequences decode while prompts of the others are computed, and must not end meanwhile.
  static std::int64_t new_tokens(const EngineOptions& options, std::int64_t sequences, std::int64_t context,
                                 int steps) {
    return steps + 4 +
           2 * (sequences * context / budget(options, sequences) + sequences * context / options.prefill_chunk);
  }
  static EngineOptions with_sizes(EngineOptions options, std::int64_t sequences, std::int64_t len) {
    options.max_sequences = sequences;
    options.max_batch_tokens = budget(options, sequences);
    options.kv_tokens = sequences * nn::blocks_for(len) * nn::kKvBlockSize;
    options.prefix_cache = false;
    return options;
  }
  InferenceEngine engine_;
};

double decode_seconds(models::Model& model, const EngineOptions& options, std::int64_t sequences, std::int64_t context,
                      int rounds) {
  Decoding decoding(model, options, sequences, context, rounds);
  std::vector<double> seconds;
  for (int round = 0; round < rounds; ++round) seconds.push_back(decoding.step());
  return median_of(seconds);
}

double prefill_seconds(models::Model& model, EngineOptions options, std::int64_t rows, int rounds) {
  std::vector<double> seconds;
  options.prefill_chunk = options.max_batch_tokens = rows;
  options.max_sequences = 1;
  options.kv_tokens = nn::blocks_for(rows + 1) * nn::kKvBlockSize;
  options.prefix_cache = false;
  InferenceEngine engine(model, options);
  for (int round = 0; round <= rounds; ++round) {  // the first touches memory
    const std::vector<std::int64_t> prompt(static_cast<std::size_t>(rows), round % model.shape.vocab_size);
    const auto why = engine.add({.id = static_cast<RequestId>(round), .prompt = prompt, .max_new_tokens = 1});
    TRIREME_CHECK(!why, "{}", *why);
    const auto begin = Clock::now();
    while (!engine.idle()) engine.step();
    if (round > 0) seconds.push_back(seconds_since(begin));
  }
  return median_of(seconds);
}

/// More rows never take less: what was measured shorter is noise, and a line through it would lead below zero.
void never_fall(std::vector<StepCost::Point>& curve) {
  for (std::size_t i = 1; i < curve.size(); ++i) curve[i].seconds = std::max(curve[i].seconds, curve[i - 1].seconds);
}

}  // namespace

StepCost measure_step_cost(models::Model& model, EngineOptions options, const MeasuredSizes& sizes) {
  StepCost cost;
  // A key's time first: the curves are without keys.
  const std::int64_t context = std::min(sizes.context, model.shape.max_seq_len - sizes.rounds - 4);
  const double near = decode_seconds(model, options, 4, 1, sizes.rounds);
  const double far = decode_seconds(model, options, 4, context, sizes.rounds);
  cost.seconds_per_pair = std::max(0.0, (far - near) / static_cast<double>(4 * (context - 1)));
  const auto without_keys = [&](double seconds, std::int64_t sequences, std::int64_t queries) {
    const PlannedSequence planned{.query_len = queries};
    return std::max(0.0, seconds - cost.seconds_per_pair * static_cast<double>(sequences) * pairs_of(planned));
  };
  for (std::int64_t rows = 1; rows <= sizes.most_rows; rows = rows < 4 ? rows + 1 : rows < 8 ? rows + 2 : 2 * rows) {
    const bool fits = rows < model.shape.max_seq_len;
    if (fits)
      cost.prefill.push_back({rows, without_keys(prefill_seconds(model, options, rows, sizes.rounds), 1, rows)});
    if (rows <= sizes.most_sequences)
      cost.decode.push_back({rows, without_keys(decode_seconds(model, options, rows, 1, sizes.rounds), rows, 2)});
  }
  never_fall(cost.prefill);
  never_fall(cost.decode);
  return cost;
}

}  // namespace trireme::serve
