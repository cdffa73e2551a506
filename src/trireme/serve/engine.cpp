#include "trireme/serve/engine.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <fmt/format.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/kernels/skinny_gemm.h"

namespace trireme::serve {
namespace {

SchedulerOptions scheduler_options(const EngineOptions& options, const std::vector<nn::KvCacheGroup>& groups) {
  return {.groups = groups,
          .max_batch_tokens = options.max_batch_tokens,
          .max_sequences = options.max_sequences,
          .prefill_chunk = options.prefill_chunk,
          .prefix_cache = options.prefix_cache};
}

/// Layers without a window share `kv_tokens`; those with one get what as many sequences hold as run at once.
std::vector<nn::KvCacheGroup> engine_groups(const spec::ModelShape& shape, const EngineOptions& options) {
  TRIREME_CHECK(options.kv_tokens > 0, "a KV cache of {} tokens", options.kv_tokens);
  auto groups = nn::kv_cache_groups(
      shape,
      {.max_tokens = options.kv_tokens, .max_query_len = options.prefill_chunk, .sequences = options.max_sequences});
  for (nn::KvCacheGroup& group : groups) {
    group.num_blocks = std::min(group.num_blocks, nn::blocks_for(options.kv_tokens));
  }
  return groups;
}

at::Tensor as_long_tensor(const std::vector<std::int64_t>& numbers) {
  at::Tensor out = at::empty({static_cast<std::int64_t>(numbers.size())}, at::kLong);
  std::copy(numbers.begin(), numbers.end(), out.mutable_data_ptr<std::int64_t>());
  return out;
}

}  // namespace

struct Engine::Running {
  explicit Running(EngineRequest of) : request(std::move(of)), draws(request.sampling.seed, request.choice) {
    if (request.sampling.changes_logits()) counts.add_prompt(request.prompt);
  }
  EngineRequest request;
  Draws draws;
  TokenCounts counts;
  std::uint64_t generated = 0;
};

Engine::Engine(models::Model& model, EngineOptions options)
    : model_(model),
      options_(options),
      device_(model.params.begin()->value.device()),
      cache_{.groups = engine_groups(model.shape, options)},
      scheduler_(scheduler_options(options, cache_.groups), options.schedule_log),
      max_len_(nn::blocks_for(std::min(model.shape.max_seq_len, options.kv_tokens)) * nn::kKvBlockSize) {}

Engine::~Engine() = default;

std::optional<std::string> Engine::add(EngineRequest request) {
  auto why = scheduler_.add(
      {.id = request.id, .prompt = request.prompt, .max_new_tokens = request.max_new_tokens, .salt = request.salt});
  if (why) return why;
  const RequestId id = request.id;
  running_.try_emplace(id, std::move(request));
  return std::nullopt;
}

bool Engine::cancel(RequestId id) {
  if (!running_.contains(id)) return false;
  if (stepping_) {
    cancelled_.push_back(id);
    return true;
  }
  running_.erase(id);
  return scheduler_.cancel(id);
}

bool Engine::needs_logits(RequestId id) const {
  const EngineRequest& request = running_.at(id).request;
  const SamplingParams& sampling = request.sampling;
  const bool greedy = sampling.temperature <= 0 || sampling.top_k == 1;
  return !device_.is_cuda() || !greedy || sampling.changes_logits() || request.logprobs || request.on_logits;
}

/// What decode_graph.h takes: latents are gathered and experts counted on the host.
bool Engine::decodes_only(const StepPlan& plan) const {
  if (!device_.is_cuda() || model_.shape.mla.used() || model_.shape.experts.used()) return false;
  return std::ranges::all_of(plan.sequences, [](const PlannedSequence& planned) {
    return planned.query_len == 1 && planned.drafts == 0 && planned.samples;
  });
}

Engine::Scores Engine::collect(const at::Tensor& logits, std::span<const std::int64_t> likeliest,
                               const std::vector<bool>& needed) const {
  Scores scores{.likeliest = {likeliest.begin(), likeliest.end()}};
  std::vector<std::int64_t> rows;
  for (std::size_t row = 0; row < needed.size(); ++row) {
    scores.places.push_back(needed[row] ? static_cast<std::int64_t>(rows.size()) : -1);
    if (needed[row]) rows.push_back(static_cast<std::int64_t>(row));
  }
  if (rows.empty()) return scores;
  scores.logits = logits.index_select(0, as_long_tensor(rows).to(device_)).to(at::kFloat).cpu().contiguous();
  return scores;
}

Engine::Scores Engine::decode_graph(std::span<const nn::SequenceStep> steps, std::span<const std::int64_t> ids,
                                    const std::vector<bool>& needed) {
  if (!graphs_) {
    graphs_ = std::make_unique<DecodeGraphs>(model_, cache_, device_,
                                             DecodeGraphs::Options{.max_sequences = options_.max_sequences,
                                                                   .max_len = max_len_,
                                                                   .quantised = options_.quantised,
                                                                   .capture = options_.cuda_graphs});
  }
  const DecodeGraphs::Output out = graphs_->run(steps, ids);
  return collect(out.logits, out.tokens, needed);
}

/// One row for each sequence that samples, and one more for each of its drafts.
Engine::Scores Engine::scores_of(const StepPlan& plan) {
  std::vector<nn::SequenceStep> steps;
  std::vector<std::int64_t> ids, wanted;
  std::vector<bool> needed;
  std::int64_t longest = 0;
  for (const PlannedSequence& planned : plan.sequences) {
    steps.push_back({planned.context_len, planned.query_len, scheduler().tables(planned.id)});
    longest = std::max(longest, planned.context_len + planned.query_len);
    const auto tokens =
        scheduler()
            .tokens(planned.id)
            .subspan(static_cast<std::size_t>(planned.context_len), static_cast<std::size_t>(planned.query_len));
    ids.insert(ids.end(), tokens.begin(), tokens.end());
    if (!planned.samples) continue;
    for (std::int64_t back = planned.drafts; back >= 0; --back) {
      wanted.push_back(static_cast<std::int64_t>(ids.size()) - 1 - back);
      needed.push_back(needs_logits(planned.id));
    }
  }
  if (longest > max_len_) {  // tables of positions are made anew, and graphs have their addresses
    max_len_ = nn::blocks_for(2 * longest) * nn::kKvBlockSize;
    graphs_.reset();
  }
  if (decodes_only(plan)) return decode_graph(steps, ids, needed);
  nn::KvBatch batch = nn::make_kv_batch(cache_, steps, device_);
  // Logits of a chunk in the middle of a prompt would be thrown away. The model wants one row at least.
  const bool none = wanted.empty();
  if (none) wanted.push_back(0);
  batch.last_rows = as_long_tensor(wanted).to(device_);
  batch.invariant = options_.invariant && device_.is_cpu();
  batch.quantised = options_.quantised;
  nn::Context context;
  context.kv_batch = &batch;
  context.sequence = nn::packed_sequence(batch);
  if (device_.is_cuda()) context.sequence.position_count = max_len_;
  const at::Tensor packed = as_long_tensor(ids).to(device_).unsqueeze(0);
  const at::Tensor logits = model_.next_logits(packed, context);
  if (none) return {};
  if (device_.is_cuda()) {
    at::Tensor tokens = at::empty({logits.size(0)}, logits.options().dtype(at::kLong));
    kernels::argmax_tokens(tokens, logits);
    const at::Tensor here = tokens.cpu();
    return collect(logits, {here.const_data_ptr<std::int64_t>(), needed.size()}, needed);
  }
  Scores scores{.logits = logits.to(at::kFloat).contiguous()};
  for (std::size_t row = 0; row < needed.size(); ++row) scores.places.push_back(static_cast<std::int64_t>(row));
  return scores;
}

StepResult Engine::draw(const PlannedSequence& planned, const Scores& scores, std::size_t first_row) {
  Running& running = running_.at(planned.id);
  const EngineRequest& request = running.request;
  const auto drafts = scheduler().tokens(planned.id).last(static_cast<std::size_t>(planned.drafts));
  StepResult result;
  std::vector<float> adjusted;
  for (std::int64_t row = 0; row <= planned.drafts && !result.ends; ++row) {
    const std::size_t at = first_row + static_cast<std::size_t>(row);
    GeneratedToken out{.id = planned.id, .cached_tokens = scheduler().progress(planned.id).cached_tokens};
    if (scores.places[at] < 0) {
      out.token = std::max<std::int64_t>(0, scores.likeliest[at]);
      if (scores.likeliest[at] < 0) out.finish = FinishReason::kError;
    } else {
      const std::span<const float> logits(
          scores.logits.const_data_ptr<float>() + scores.places[at] * scores.logits.size(1),
          static_cast<std::size_t>(scores.logits.size(1)));
      if (request.on_logits) request.on_logits(logits);
      if (can_sample(logits)) {
        std::span<const float> drawn_from = logits;
        if (request.sampling.changes_logits()) {
          adjusted.assign(logits.begin(), logits.end());
          adjust(adjusted, request.sampling, running.counts);
          drawn_from = adjusted;
        }
        out.token = sample(drawn_from, request.sampling, running.draws.uniform(running.generated));
        if (request.logprobs) out.logprobs = logprobs_of(logits, out.token, *request.logprobs);
      } else {
        out.finish = FinishReason::kError;
      }
    }
    ++running.generated;
    running.counts.add_generated(out.token);
    if (!out.finish && std::ranges::find(request.stop_tokens, out.token) != request.stop_tokens.end()) {
      out.finish = FinishReason::kStop;
    }
    if (!out.finish && static_cast<std::int64_t>(running.generated) == request.max_new_tokens) {
      out.finish = FinishReason::kLength;
    }
    result.tokens.push_back(out.token);
    result.ends = out.finish.has_value();
    if (request.on_token) request.on_token(out);
    if (std::ranges::find(cancelled_, planned.id) != cancelled_.end()) result.ends = true;
    // The next row was computed behind this draft: of no use where it is another token.
    if (row < planned.drafts && drafts[static_cast<std::size_t>(row)] != out.token) break;
  }
  return result;
}

void Engine::step() {
  if (drafter_) {
    for (auto& [id, running] : running_) {
      const auto left = static_cast<std::size_t>(running.request.max_new_tokens) - running.generated;
      if (running.generated == 0 || left < 2) continue;
      scheduler_.propose(id, drafter_->draft(scheduler().tokens(id), std::min(drafter_->depth(), left - 1)));
    }
  }
  const StepPlan plan = scheduler_.plan();
  TRIREME_CHECK(idle() || !plan.sequences.empty(), "{} requests wait, but the next step has none of them",
                scheduler().waiting());
  if (plan.sequences.empty()) return;
  const Scores scores = scores_of(plan);
  std::vector<StepResult> results(plan.sequences.size());
  stepping_ = true;
  std::size_t row = 0;
  for (std::size_t i = 0; i < plan.sequences.size(); ++i) {
    const PlannedSequence& planned = plan.sequences[i];
    if (!planned.samples) continue;
    results[i] = draw(planned, scores, row);
    row += 1 + static_cast<std::size_t>(planned.drafts);
  }
  stepping_ = false;
  for (const RequestId id : scheduler_.complete(plan, results)) running_.erase(id);
  for (const RequestId id : std::exchange(cancelled_, {})) cancel(id);
}

std::int64_t kv_bytes_per_token(const spec::ModelShape& shape, std::int64_t bytes_per_element) {
  std::int64_t elements = 0;
  for (std::int64_t layer = 0; layer < shape.num_layers; ++layer) {
    if (spec::window_of(shape, layer) > 0) continue;
    elements += shape.mla.used() ? shape.mla.kv_lora_rank + shape.mla.qk_rope_head_dim
                                 : 2 * shape.num_kv_heads * shape.head_dim;
  }
  return elements * bytes_per_element;
}

}  // namespace trireme::serve
