#include "trireme/serve/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/units.h"
#include "trireme/checkpoint/open_model.h"
#include "trireme/serve/rank_model.h"
#include "trireme/serve/stream_batch.h"

namespace trireme::serve {
namespace {

/// Room for as many of the longest sequences as run at once.
EngineOptions engine_options(const GenerateRequest& request, const std::vector<std::int64_t>& lengths) {
  const auto sequences =
      std::min<std::size_t>(lengths.size(), static_cast<std::size_t>(std::max<std::int64_t>(1, request.batch)));
  std::vector<std::int64_t> longest = lengths;
  std::ranges::sort(longest, std::greater<>());
  longest.resize(sequences);
  std::int64_t tokens = 0;
  for (const std::int64_t length : longest) tokens += nn::blocks_for(length) * nn::kKvBlockSize;
  const std::int64_t chunk = request.device == spec::DeviceKind::kCuda ? kGpuPrefillChunk : kPrefillChunk;
  return {.max_batch_tokens = std::max<std::int64_t>(chunk, request.batch),
          .max_sequences = static_cast<std::int64_t>(sequences),
          .prefill_chunk = chunk,
          .kv_tokens = tokens,
          .invariant = request.invariant,
          .cuda_graphs = request.cuda_graphs};
}

}  // namespace

void check_sampling(const SamplingParams& sampling) {
  if (!(sampling.temperature >= 0)) throw ConfigError(fmt::format("temperature {} is below 0", sampling.temperature));
  if (!(sampling.top_p > 0 && sampling.top_p <= 1)) {
    throw ConfigError(fmt::format("top_p {} is not above 0 and at most 1", sampling.top_p));
  }
  if (sampling.top_k < 0) throw ConfigError(fmt::format("top_k {} is below 0", sampling.top_k));
  if (!(sampling.min_p >= 0 && sampling.min_p <= 1)) {
    throw ConfigError(fmt::format("min_p {} is not from 0 to 1", sampling.min_p));
  }
  if (!(sampling.repetition_penalty > 0)) {
    throw ConfigError(fmt::format("repetition_penalty {} is not above 0", sampling.repetition_penalty));
  }
}

void check_length(std::int64_t prompt, std::int64_t tokens, const spec::ModelShape& shape, bool beyond_context) {
  // A table of learned positions ends; the others go on, to where the model has never been.
  const bool ends = shape.position_kind == spec::PositionKind::kLearned;
  if (prompt + tokens <= shape.max_seq_len || (!ends && beyond_context)) return;
  const std::int64_t room = std::max<std::int64_t>(0, shape.max_seq_len - prompt);
  throw ConfigError(
      fmt::format("a prompt of {} tokens and {} new ones do not fit into the model's context of {} tokens", prompt,
                  tokens, shape.max_seq_len),
      room > 0 ? fmt::format("ask for at most {} new tokens{}", room,
                             ends ? "" : ", or allow more than it was made for with --beyond-context")
      : ends   ? "give a shorter prompt"
               : "give a shorter prompt, or allow more than it was made for with --beyond-context");
}

void check_tokens(std::span<const std::int64_t> tokens, const spec::ModelShape& shape) {
  for (const std::int64_t token : tokens) {
    if (token >= 0 && token < shape.vocab_size) continue;
    throw ConfigError(fmt::format("token {} is outside the model's vocabulary of {}", token, shape.vocab_size));
  }
}

namespace {

/// Continues the prompts `first`, `first` + `every`, ... on an engine, by ranks that all have it.
TokenLists run_engine(InferenceEngine& engine, const GenerateRequest& request, std::size_t first, std::size_t every) {
  TokenLists added(request.prompts.size());
  for (std::size_t i = first; i < request.prompts.size(); i += every) {
    EngineRequest one{.id = i,
                      .prompt = request.prompts[i],
                      .max_new_tokens = request.tokens,
                      .sampling = request.sampling,
                      .choice = request.first_choice + i,
                      .stop_tokens = request.stop};
    one.on_token = [&, i](const GeneratedToken& token) {
      if (token.finish == FinishReason::kError) {
        throw ConfigError(fmt::format("the logits after token {} of prompt {} are NaN or Inf",
                                      request.prompts[i].size() + added[i].size(), i),
                          "is the checkpoint whole? `trireme inspect` looks at it");
      }
      added[i].push_back(token.token);
      if (request.on_token) request.on_token(i, token.token);
    };
    const auto why = engine.add(std::move(one));
    TRIREME_CHECK(!why, "{}", *why);
  }
  if (engine.options().lockstep != nullptr) {
    while (engine.step_together()) {
    }
  } else {
    while (!engine.idle()) engine.step();
  }
  return added;
}

/// What all of them will be as long as, at most.
std::vector<std::int64_t> lengths_of(const GenerateRequest& request, std::size_t first, std::size_t every) {
  std::vector<std::int64_t> lengths;
  for (std::size_t i = first; i < request.prompts.size(); i += every) {
    lengths.push_back(static_cast<std::int64_t>(request.prompts[i].size()) + request.tokens);
  }
  if (lengths.empty()) lengths.push_back(1);  // a replica without prompts keeps step with the others
  return lengths;
}

/// Lists that replicas have one of, on all ranks: each is sent by the rank that leads its replica.
void share_lists(TokenLists& lists, const RankModel& model, comm::Group& world) {
  const auto replicas = static_cast<std::size_t>(model.replicas());
  std::vector<std::int64_t> mine;
  for (std::size_t i = static_cast<std::size_t>(model.replica()); model.leads_replica() && i < lists.size();
       i += replicas) {
    mine.push_back(static_cast<std::int64_t>(i));
    mine.push_back(static_cast<std::int64_t>(lists[i].size()));
    mine.insert(mine.end(), lists[i].begin(), lists[i].end());
  }
  const auto ranks = static_cast<std::size_t>(world.size());
  const auto count = static_cast<std::int64_t>(mine.size());
  std::vector<std::int64_t> all_counts(ranks);
  world.all_gather({&count, 1, comm::DType::kI64}, {all_counts.data(), ranks, comm::DType::kI64}).wait();
  const std::vector<std::size_t> counts(all_counts.begin(), all_counts.end());
  std::vector<std::int64_t> all(std::accumulate(counts.begin(), counts.end(), std::size_t{0}));
  world.all_gather_v({mine.data(), mine.size(), comm::DType::kI64}, {all.data(), all.size(), comm::DType::kI64}, counts)
      .wait();
  for (auto at = all.begin(); at != all.end();) {
    const auto number = static_cast<std::size_t>(*at++);
    const auto length = static_cast<std::ptrdiff_t>(*at++);
    lists.at(number).assign(at, at + length);
    at += length;
  }
}

}  // namespace

TokenLists continue_prompts(models::Model& model, const GenerateRequest& request) {
  if (request.tokens == 0 || request.prompts.empty()) return TokenLists(request.prompts.size());
  InferenceEngine engine(model, engine_options(request, lengths_of(request, 0, 1)));
  return run_engine(engine, request, 0, 1);
}

TokenLists generate(const GenerateRequest& request, comm::Group& world) {
  const spec::ModelShape shape = checkpoint::stored_shape(request.model);
  check_continues(shape);
  check_sampling(request.sampling);
  for (std::size_t i = 0; i < request.prompts.size(); ++i) {
    if (request.prompts[i].empty()) {
      throw ConfigError(fmt::format("prompt {} is empty", i),
                        "give at least one token, such as the begin-of-text token");
    }
    check_tokens(request.prompts[i], shape);
    check_length(static_cast<std::int64_t>(request.prompts[i].size()), request.tokens, shape, request.beyond_context);
  }
  const ModelRequest opens{.model = request.model,
                           .precision = request.precision,
                           .device = request.device,
                           .weights = request.weights,
                           .lm_head = request.lm_head,
                           .kv_cache = request.kv_cache,
                           .experts = request.experts,
                           .layout = request.layout,
                           .weight_arena_bytes = request.weight_arena_bytes};
  const auto model = open_rank_model(opens, world);
  if (!model->about.empty() && world.rank() == 0) log_info("{}", model->about);
  if (request.tokens == 0 || request.prompts.empty()) return TokenLists(request.prompts.size());
  GenerateRequest mine = request;
  if (world.rank() != 0) mine.on_token = nullptr;
  const auto first = static_cast<std::size_t>(model->replica()), every = static_cast<std::size_t>(model->replicas());
  const std::vector<std::int64_t> lengths = lengths_of(request, first, every);
  std::string about;
  mine.batch =
      batch_of(request.batch, *model, static_cast<std::int64_t>(lengths.size()), std::ranges::max(lengths), about);
  if (!about.empty()) log_info("{}", about);
  EngineOptions options = engine_options(mine, lengths);
  options.speculation = rule_of(request.speculation);
  model->set_up(options);
  InferenceEngine engine(model->model(), options);
  RankDrafter drafter = make_drafter(request.speculation, opens, *model, engine);
  if (drafter.drafter) engine.set_drafter(std::move(drafter.drafter));
  TokenLists added = run_engine(engine, mine, first, every);
  if (model->stream && world.rank() == 0) {
    const WeightStream::Totals totals = model->stream->totals();
    const QueueReading queue = model->stream->queue();
    log_info(
        "weights: {:.1f} MB streamed, {:.2f} s of loading, of which {:.2f} s were waited for; {:.2f} layers in the "
        "arena at a time, {} each",
        static_cast<double>(totals.bytes) / 1e6, totals.load_seconds, totals.wait_seconds, queue.length(),
        short_seconds(queue.wait()));
  }
  if (every == 1) return added;
  share_lists(added, *model, world);
  for (std::size_t i = 0; i < added.size(); ++i) {  // of the other replicas
    if (i % every == first || !mine.on_token) continue;
    for (const std::int64_t token : added[i]) mine.on_token(i, token);
  }
  return added;
}

}  // namespace trireme::serve
