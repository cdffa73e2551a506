#include "trireme/serve/engine.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/index_copy.h>
#include <ATen/ops/index_select.h>
#include <fmt/format.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/kernels/skinny_gemm.h"
#include "trireme/serve/speculative_sampling.h"

namespace trireme::serve {
namespace {

SchedulerOptions scheduler_options(const EngineOptions& options, std::vector<nn::KvCacheGroup> groups) {
  if (options.lockstep != nullptr) {
    for (nn::KvCacheGroup& group : groups) --group.num_blocks;  // the last is the filler's
  }
  return {.groups = std::move(groups),
          .max_batch_tokens = options.max_batch_tokens,
          .max_sequences = options.max_sequences,
          .prefill_chunk = options.prefill_chunk,
          .prefix_cache = options.prefix_cache,
          .offload_blocks = options.kv_offload_tokens / nn::kKvBlockSize};
}

/// Layers without a window share `kv_tokens`; those with one get what as many sequences hold as run at once.
std::vector<nn::KvCacheGroup> engine_groups(const spec::ModelShape& shape, const EngineOptions& options) {
  TRIREME_CHECK(options.kv_tokens > 0, "a KV cache of {} tokens", options.kv_tokens);
  auto groups = nn::kv_cache_groups(
      shape,
      {.max_tokens = options.kv_tokens, .max_query_len = options.prefill_chunk, .sequences = options.max_sequences});
  for (nn::KvCacheGroup& group : groups) {
    group.num_blocks = std::min(group.num_blocks, nn::blocks_for(options.kv_tokens));
    if (options.lockstep != nullptr) ++group.num_blocks;  // where rows of filler steps are written
  }
  return groups;
}

at::Tensor as_long_tensor(const std::vector<std::int64_t>& numbers) {
  at::Tensor out = at::empty({static_cast<std::int64_t>(numbers.size())}, at::kLong);
  std::copy(numbers.begin(), numbers.end(), out.mutable_data_ptr<std::int64_t>());
  return out;
}

}  // namespace

struct InferenceEngine::Running {
  explicit Running(EngineRequest of) : request(std::move(of)), draws(request.sampling.seed, request.choice) {
    if (request.sampling.changes_logits()) counts.add_prompt(request.prompt);
  }
  EngineRequest request;
  Draws draws;
  TokenCounts counts;
  std::uint64_t generated = 0;
  std::vector<Distribution> drawn_from = {};  // its drafts, with the rejection rule
};

InferenceEngine::InferenceEngine(models::Model& model, EngineOptions options)
    : model_(model),
      options_(options),
      device_(model.params.begin()->value.device()),
      cache_{.groups = engine_groups(model.shape, options), .type = options.kv_cache},
      scheduler_(scheduler_options(options, cache_.groups), options.schedule_log),
      max_len_(nn::blocks_for(std::min(model.shape.max_seq_len, options.kv_tokens)) * nn::kKvBlockSize) {}

InferenceEngine::~InferenceEngine() = default;

std::optional<std::string> InferenceEngine::add(EngineRequest request) {
  auto why = scheduler_.add(
      {.id = request.id, .prompt = request.prompt, .max_new_tokens = request.max_new_tokens, .salt = request.salt});
  if (why) return why;
  const RequestId id = request.id;
  running_.try_emplace(id, std::move(request));
  return std::nullopt;
}

bool InferenceEngine::cancel(RequestId id) {
  if (!running_.contains(id)) return false;
  if (stepping_) {
    cancelled_.push_back(id);
    return true;
  }
  running_.erase(id);
  offloaded_.erase(id);
  if (drafter_) drafter_->ended(id);
  return scheduler_.cancel(id);
}

bool InferenceEngine::needs_logits(RequestId id) const {
  const EngineRequest& request = running_.at(id).request;
  const SamplingParams& sampling = request.sampling;
  const bool greedy = sampling.temperature <= 0 || sampling.top_k == 1;
  return !device_.is_cuda() || !greedy || sampling.changes_logits() || request.logprobs || request.on_logits;
}

/// What decode_graph.h takes: latents are gathered and experts counted on the host.
bool InferenceEngine::decodes_only(const StepPlan& plan) const {
  if (!device_.is_cuda() || model_.shape.mla.used() || model_.shape.experts.used()) return false;
  if (options_.weights != nullptr) return false;       // layers come and go
  if (drafter_ && drafter_->observes()) return false;  // graphs leave no hidden states
  return std::ranges::all_of(plan.sequences, [](const PlannedSequence& planned) {
    return planned.query_len == 1 && planned.drafts == 0 && planned.samples;
  });
}

InferenceEngine::Scores InferenceEngine::collect(const at::Tensor& logits, std::span<const std::int64_t> likeliest,
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

InferenceEngine::Scores InferenceEngine::decode_graph(std::span<const nn::SequenceStep> steps,
                                                      std::span<const std::int64_t> ids,
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

void InferenceEngine::prepare(nn::KvBatch& batch, nn::Context& context) const {
  batch.invariant = options_.invariant && device_.is_cpu();
  batch.quantised = options_.quantised;
  context.weights = options_.weights;
}

/// One row for each sequence that samples, and one more for each of its drafts.
InferenceEngine::Scores InferenceEngine::scores_of(const StepPlan& plan) {
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
  if (options_.pipeline != nullptr) {
    const bool decodes = std::ranges::all_of(plan.sequences, [](const PlannedSequence& planned) {
      return planned.samples && planned.query_len == 1 + planned.drafts;
    });
    Scores scores{.logits =
                      pipeline_logits(model_, cache_, *options_.pipeline, {steps, ids, wanted, decodes},
                                      [&](nn::KvBatch& batch, nn::Context& context) { prepare(batch, context); })};
    for (std::size_t row = 0; row < needed.size(); ++row) scores.places.push_back(static_cast<std::int64_t>(row));
    return scores;
  }
  nn::KvBatch batch = nn::make_kv_batch(cache_, steps, device_);
  // Logits of a chunk in the middle of a prompt would be thrown away. The model wants one row at least.
  const bool none = wanted.empty();
  if (none) wanted.push_back(0);
  batch.last_rows = as_long_tensor(wanted).to(device_);
  if (drafter_ && drafter_->observes()) batch.hidden = &hidden_;
  nn::Context context;
  context.kv_batch = &batch;
  context.sequence = nn::packed_sequence(batch);
  prepare(batch, context);
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

/// `draft`: the row verifies this one of the sequence's drafts, the token `drafted`.
std::int64_t InferenceEngine::draw_token(Running& running, std::span<const float> logits,
                                         std::optional<std::size_t> draft, std::int64_t drafted) const {
  const SamplingParams& sampling = running.request.sampling;
  std::vector<float> adjusted;
  if (sampling.changes_logits()) {
    adjusted.assign(logits.begin(), logits.end());
    adjust(adjusted, sampling, running.counts);
    logits = adjusted;
  }
  const Draws& draws = running.draws;
  const std::uint64_t number = running.generated;
  if (options_.speculation == SpeculationRule::kCoupled || !draft) return sample(logits, sampling, draws.noise(number));
  return verify_draft(distribution_of(logits, sampling), running.drawn_from.at(*draft), drafted, draws.accept(number),
                      draws.residual(number))
      .token;
}

StepResult InferenceEngine::draw(const PlannedSequence& planned, const Scores& scores, std::size_t first_row) {
  Running& running = running_.at(planned.id);
  const EngineRequest& request = running.request;
  const auto drafts = scheduler().tokens(planned.id).last(static_cast<std::size_t>(planned.drafts));
  StepResult result;
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
        const bool verifies = row < planned.drafts;
        out.token = draw_token(running, logits, verifies ? std::optional(static_cast<std::size_t>(row)) : std::nullopt,
                               verifies ? drafts[static_cast<std::size_t>(row)] : -1);
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

DraftRequest InferenceEngine::draft_request(RequestId id, const Running& running,
                                            std::span<const std::int64_t> tokens) const {
  const auto left = static_cast<std::size_t>(running.request.max_new_tokens) - running.generated;
  return {.id = id,
          .tokens = tokens,
          .most = left < 2 ? 0 : std::min(drafter_->depth(), left - 1),
          .sampling = &running.request.sampling,
          .counts = &running.counts,
          .draws = &running.draws,
          .generated = running.generated};
}

void InferenceEngine::propose_drafts() {
  std::vector<DraftRequest> requests;
  for (const auto& [id, running] : running_) {
    if (running.generated == 0 || !scheduler().is_running(id)) continue;
    const DraftRequest request = draft_request(id, running, scheduler().tokens(id));
    if (request.most > 0) requests.push_back(request);
  }
  if (requests.empty()) return;
  std::vector<Drafts> drafts = drafter_->draft(requests);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    running_.at(requests[i].id).drawn_from = std::move(drafts[i].drawn_from);
    scheduler_.propose(requests[i].id, std::move(drafts[i].tokens));
  }
}

void InferenceEngine::show_step(const StepPlan& plan, std::span<const StepResult> results) {
  StepSeen seen{.hidden = &hidden_};
  std::vector<std::vector<std::int64_t>> texts;
  texts.reserve(plan.sequences.size());  // spans of them are handed on
  std::int64_t row = 0;
  for (std::size_t i = 0; i < plan.sequences.size(); ++i) {
    const PlannedSequence& planned = plan.sequences[i];
    const std::int64_t first_row = std::exchange(row, row + planned.query_len);
    if (std::ranges::find(cancelled_, planned.id) != cancelled_.end()) continue;
    const auto known = scheduler().tokens(planned.id);
    std::vector<std::int64_t>& text = texts.emplace_back(known.begin(), known.end() - planned.drafts);
    const std::vector<std::int64_t>& added = results[i].tokens;
    text.insert(text.end(), added.begin(), added.end());
    const std::int64_t accepted = planned.samples ? static_cast<std::int64_t>(added.size()) - 1 : planned.drafts;
    seen.sequences.push_back({.id = planned.id,
                              .first_row = first_row,
                              .context_len = planned.context_len,
                              .rows = planned.query_len - planned.drafts + accepted,
                              .tokens = text,
                              .tables = scheduler().tables(planned.id),
                              .goes_on = planned.samples && !results[i].ends,
                              .draft = draft_request(planned.id, running_.at(planned.id), text)});
  }
  drafter_->observe(seen);
}

void InferenceEngine::move_blocks(const StepPlan& plan) {
  const auto numbers = [&](const BlockCopy& copy) {
    return as_long_tensor({copy.blocks.begin(), copy.blocks.end()}).to(device_);
  };
  /// What there is of a layer in the cache and of its copy, one beside the other.
  const auto each_tensor = [](nn::KvCache::Layer& in_cache, nn::KvCache::Layer& kept, const auto& f) {
    const auto theirs = kept.tensors();
    for (std::size_t i = 0; at::Tensor* const here : in_cache.tensors()) {
      at::Tensor* const there = theirs[i++];
      if (here->defined()) f(*here, *there);
    }
  };
  for (const BlockCopy& copy : plan.offloaded) {
    std::vector<nn::KvCache::Layer>& kept = offloaded_[copy.id];
    kept.assign(cache_.layers.size(), {});
    for (std::size_t layer = 0; layer < kept.size(); ++layer) {
      each_tensor(cache_.layers[layer], kept[layer],
                  [&](at::Tensor& from, at::Tensor& to) { to = from.index_select(0, numbers(copy)).cpu(); });
    }
  }
  for (const BlockCopy& copy : plan.restored) {
    std::vector<nn::KvCache::Layer>& kept = offloaded_.at(copy.id);
    for (std::size_t layer = 0; layer < kept.size(); ++layer) {
      each_tensor(cache_.layers[layer], kept[layer], [&](at::Tensor& to, at::Tensor& from) {
        to.index_copy_(0, numbers(copy),
                       from.narrow(0, copy.first, static_cast<std::int64_t>(copy.blocks.size())).to(device_));
      });
    }
  }
  for (const RequestId id : plan.admitted) {
    if (scheduler().contains(id) && scheduler().is_running(id)) offloaded_.erase(id);
  }
}

void InferenceEngine::take_filler_step() {
  nn::BlockManager::Tables tables;
  for (const nn::KvCacheGroup& group : cache_.groups) {
    tables.push_back({.blocks = {static_cast<nn::BlockId>(group.num_blocks - 1)}});
  }
  const nn::SequenceStep step{.context_len = 0, .query_len = 1, .tables = tables};
  nn::KvBatch batch = nn::make_kv_batch(cache_, {&step, 1}, device_);
  nn::Context context;
  context.filler = true;
  context.kv_batch = &batch;
  context.sequence = nn::packed_sequence(batch);
  prepare(batch, context);
  model_.next_logits(as_long_tensor({0}).to(device_).unsqueeze(0), context);
}

bool InferenceEngine::step_together() {
  TRIREME_CHECK(options_.lockstep != nullptr, "an engine that computes alone");
  std::int64_t busy = idle() ? 0 : 1;
  options_.lockstep->all_reduce({&busy, 1, comm::DType::kI64}, comm::Reduce::kMax).wait();
  if (busy == 0) return false;
  if (idle()) {
    take_filler_step();
  } else {
    step();
  }
  return true;
}

void InferenceEngine::step() {
  if (drafter_) propose_drafts();
  const StepPlan plan = scheduler_.plan();
  TRIREME_CHECK(idle() || !plan.sequences.empty(), "{} requests wait, but the next step has none of them",
                scheduler().waiting());
  if (plan.sequences.empty()) return;
  move_blocks(plan);
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
  if (drafter_ && drafter_->observes()) show_step(plan, results);
  for (const RequestId id : scheduler_.complete(plan, results)) {
    running_.erase(id);
    offloaded_.erase(id);
    if (drafter_) drafter_->ended(id);
  }
  for (const RequestId id : std::exchange(cancelled_, {})) cancel(id);
}

}  // namespace trireme::serve
