// serve/engine.h -- continues many token lists at once: the scheduler's plans, carried out on a model.
//
//   InferenceEngine engine(model, {.max_sequences = 16, .kv_tokens = 8192});
//   engine.add({.id = 1, .prompt = tokens, .max_new_tokens = 64, .on_token = ...});
//   while (!engine.idle()) engine.step();
//
// A step gives the model the tokens of all planned sequences in one row (nn/kv_cache.h), takes logits of those that
// sample, and draws. One thread uses an engine. Ranks that hold a model together each have one and call the same.
// With `invariant`, on the CPU, a request's logits are the same to the bit whatever is in the batch beside it, however
// its prompt is cut into chunks, found in the prefix cache, or recomputed after a preemption.
// On a GPU steps of decode alone are CUDA graphs (decode_graph.h), and greedy tokens are found there: logits come to
// the host only for requests that draw, penalise or ask for log-probabilities.
// Depends on: base, models, nn, scheduler_log.h, sampler.h.
#pragma once

#include <functional>
#include <iosfwd>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/models/model.h"
#include "trireme/nn/kv_cache.h"
#include "trireme/serve/decode_graph.h"
#include "trireme/serve/drafter.h"
#include "trireme/serve/pipeline_step.h"
#include "trireme/serve/sampler.h"
#include "trireme/serve/scheduler_log.h"

namespace trireme::serve {

struct EngineOptions {
  std::int64_t max_batch_tokens = 512;  ///< of a step
  std::int64_t max_sequences = 16;      ///< of a step
  std::int64_t prefill_chunk = 512;
  std::int64_t kv_tokens = 0;  ///< that the KV cache holds, of all sequences together; rounded up to blocks
  /// Tokens of preempted sequences that are copied to the host's memory and back, in place of being recomputed.
  std::int64_t kv_offload_tokens = 0;
  nn::KvCacheType kv_cache = nn::KvCacheType::kSame;
  bool prefix_cache = true;
  bool invariant = true;
  bool cuda_graphs = true;  ///< GPU: steps of decode alone are replayed; not by ranks that hold a model together
  const nn::QuantisedWeights* quantised = nullptr;  ///< borrowed: matrices in fewer bits; null: none
  SpeculationRule speculation = SpeculationRule::kCoupled;
  nn::WeightSource* weights = nullptr;      ///< borrowed: weights that are streamed (weight_stream.h); null: none are
  const PipelineRanks* pipeline = nullptr;  ///< borrowed: the model is a stage of these (pipeline_step.h); null: whole
  /// Borrowed: ranks with engines of their own, whose models compute steps together since they share experts. All call
  /// step_together(). Null: nobody.
  comm::Group* lockstep = nullptr;
  std::ostream* schedule_log = nullptr;  ///< of scheduler_log.h; null: none
};

enum class FinishReason : std::uint8_t {
  kStop,    ///< a stop token, which is among the tokens
  kLength,  ///< max_new_tokens
  kError,   ///< the model's logits were NaN or Inf
};

struct GeneratedToken {
  RequestId id = 0;
  std::int64_t token = 0;
  std::optional<Logprobs> logprobs = {};  ///< where asked for
  std::optional<FinishReason> finish = {};
  std::int64_t cached_tokens = 0;  ///< of the prompt
};

struct EngineRequest {
  RequestId id = 0;
  std::vector<std::int64_t> prompt = {};
  std::int64_t max_new_tokens = 1;
  SamplingParams sampling = {};
  std::uint64_t choice = 0;                    ///< which of several continuations of a prompt: Draws
  std::vector<std::int64_t> stop_tokens = {};  ///< it ends after one of these
  std::optional<std::size_t> logprobs = {};    ///< with so many alternatives
  std::string salt = {};
  /// Called by step(), token by token. May call cancel() for any request.
  std::function<void(const GeneratedToken&)> on_token = nullptr;
  /// Tests: the logits that a token was drawn from, before anything was done to them.
  std::function<void(std::span<const float>)> on_logits = nullptr;
};

class InferenceEngine {
 public:
  /// Borrows the model; all of its parameters are on one device.
  InferenceEngine(models::Model& model, EngineOptions options);
  ~InferenceEngine();

  /// Proposes tokens for the model to verify, several a step; what is generated stays the same. Before requests come.
  void set_drafter(std::unique_ptr<Drafter> drafter) { drafter_ = std::move(drafter); }

  /// Why the request can never be served; nothing: it is queued. Tokens and lengths are those of check_request().
  [[nodiscard]] std::optional<std::string> add(EngineRequest request);
  /// Its blocks are free when this returns, or, called by on_token, when the step does.
  bool cancel(RequestId id);
  bool idle() const { return scheduler_.scheduler().idle(); }
  void step();
  /// With lockstep: a step of whoever has requests, beside those who have none. False where nobody has any.
  bool step_together();

  /// Where a drafter's own layers may keep keys.
  nn::KvCache& kv_cache() { return cache_; }
  const Scheduler& scheduler() const { return scheduler_.scheduler(); }
  const models::Model& model() const { return model_; }
  const EngineOptions& options() const { return options_; }
  /// Batch sizes whose decode steps are CUDA graphs by now.
  std::size_t captured_graphs() const { return graphs_ ? graphs_->captured() : 0; }

 private:
  struct Running;
  /// What a step gave, row by row: each sequence that samples has one, and one more for each of its drafts.
  struct Scores {
    at::Tensor logits;                    // float, on the host: the rows that draws need
    std::vector<std::int64_t> places;     // of each row among them; -1: only its likeliest token is known
    std::vector<std::int64_t> likeliest;  // GPU: of each row; -1: its logits are NaN
  };
  Scores scores_of(const StepPlan& plan);
  Scores decode_graph(std::span<const nn::SequenceStep> steps, std::span<const std::int64_t> ids,
                      const std::vector<bool>& needed);
  /// Of logits on a GPU.
  Scores collect(const at::Tensor& logits, std::span<const std::int64_t> likeliest,
                 const std::vector<bool>& needed) const;
  bool needs_logits(RequestId id) const;
  void prepare(nn::KvBatch& batch, nn::Context& context) const;
  /// Keys and values to the host's memory and back, as the plan says.
  void move_blocks(const StepPlan& plan);
  void propose_drafts();
  void take_filler_step();
  /// Tells the drafter what the step gave.
  void show_step(const StepPlan& plan, std::span<const StepResult> results);
  DraftRequest draft_request(RequestId id, const Running& running, std::span<const std::int64_t> tokens) const;
  std::int64_t draw_token(Running& running, std::span<const float> logits, std::optional<std::size_t> draft,
                          std::int64_t drafted) const;
  bool decodes_only(const StepPlan& plan) const;
  StepResult draw(const PlannedSequence& planned, const Scores& scores, std::size_t first_row);

  models::Model& model_;
  EngineOptions options_;
  at::Device device_;
  nn::KvCache cache_;
  LoggedScheduler scheduler_;
  std::int64_t max_len_ = 0;  // GPU: positions that tables have room for
  std::unique_ptr<DecodeGraphs> graphs_;
  std::unique_ptr<Drafter> drafter_;
  at::Tensor hidden_;  // of the step that is being taken, for a drafter that observes
  std::map<RequestId, Running> running_;
  std::map<RequestId, std::vector<nn::KvCache::Layer>> offloaded_;  // by layer, on the host
  std::vector<RequestId> cancelled_;                                // by callbacks of the step that is being taken
  bool stepping_ = false;
};

}  // namespace trireme::serve
