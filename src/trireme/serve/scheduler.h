// serve/scheduler.h -- which sequences take how many tokens in the next step: continuous batching as a value.
//
//   Scheduler scheduler({.groups = groups, .max_batch_tokens = 512});
//   scheduler.add({.id = 7, .prompt = tokens, .max_new_tokens = 64});
//   while (!scheduler.idle()) {
//     const StepPlan plan = scheduler.plan();
//     scheduler.complete(plan, run(plan));
//   }
//
// A step takes decode first, one token a sequence, then prefill in chunks, up to a budget of tokens; the oldest request
// is in every step. Requests are
// served in the order in which they came. Where blocks run out, the youngest sequence is preempted: it gives up its
// blocks, and what it had (prompt and generated tokens) is prefill again when there is room. The oldest is never
// preempted and fits by itself, so every request ends; one that would not fit alone is refused by add().
// The scheduler is a plain value without clock, thread or chance: equal calls give equal plans, which is how a log is
// replayed (scheduler_log.h).
// Depends on: base, block_pool.h. No tensors.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trireme/serve/block_pool.h"

namespace trireme::serve {

using RequestId = std::uint64_t;

struct SchedulerOptions {
  std::vector<nn::KvCacheGroup> groups = {};
  std::int64_t max_batch_tokens = 512;  ///< budget of a step, over all sequences
  std::int64_t max_sequences = 64;      ///< in a step
  std::int64_t prefill_chunk = 512;     ///< of a prompt in a step
  bool prefix_cache = true;
  int hash_bits = 64;  ///< of the prefix cache: BlockPoolOptions
  /// Blocks of other memory: what preempted sequences had is copied there while there is room, and back when they are
  /// admitted again, in place of being recomputed. Of caches without sliding windows.
  std::int64_t offload_blocks = 0;
};

struct SequenceRequest {
  RequestId id = 0;
  std::vector<std::int64_t> prompt = {};
  std::int64_t max_new_tokens = 1;
  std::string salt = {};  ///< only requests of the same salt share prefixes
};

/// A sequence's part of a step: its tokens [context_len, context_len + query_len).
struct PlannedSequence {
  RequestId id = 0;
  std::int64_t context_len = 0, query_len = 0;
  std::int64_t drafts = 0;  ///< of these, proposed tokens at the end that the step is to verify
  bool samples = false;     ///< the last token is the newest one: the step gives the next
  bool operator==(const PlannedSequence&) const = default;
};

/// Blocks of a sequence, the first of which is its block number `first`.
struct BlockCopy {
  RequestId id = 0;
  std::int64_t first = 0;
  std::vector<nn::BlockId> blocks = {};
  bool operator==(const BlockCopy&) const = default;
};

struct StepPlan {
  std::vector<PlannedSequence> sequences = {};
  std::vector<RequestId> admitted = {}, preempted = {};
  /// Before the step: first these are copied to other memory, then those back from it. Blocks may be in both.
  std::vector<BlockCopy> offloaded = {}, restored = {};
  std::int64_t tokens = 0;
  bool operator==(const StepPlan&) const = default;
};
/// "0:12+1s 3:0+64 preempts 5": id, context, new tokens, s where it samples, d and a count where it has drafts.
std::string to_text(const StepPlan& plan);

/// What a step gave a sequence that samples: the accepted drafts and one more.
struct StepResult {
  std::vector<std::int64_t> tokens = {};
  bool ends = false;  ///< after these, by a stop token, say
};

class Scheduler {
 public:
  explicit Scheduler(SchedulerOptions options);

  /// Why the request can never be served; nothing: it is queued. An InternalError for an id that is there already.
  [[nodiscard]] std::optional<std::string> add(SequenceRequest request);
  /// Why a request of these sizes could never be served. Depends on the options alone.
  std::optional<std::string> why_never(std::int64_t prompt_len, std::int64_t max_new_tokens) const;
  /// Its blocks are free when this returns. False where there is no such request (any more).
  bool cancel(RequestId id);
  /// Tokens that may follow a sequence's newest one; the next plan verifies as many as have room. None: no more.
  void propose(RequestId id, std::vector<std::int64_t> drafts);

  StepPlan plan();
  /// `results` by sequence of the plan; those that do not sample, or were cancelled meanwhile, are not looked at. Gives
  /// the requests that have ended.
  std::vector<RequestId> complete(const StepPlan& plan, std::span<const StepResult> results);

  bool idle() const { return requests_.empty(); }
  std::int64_t waiting() const { return static_cast<std::int64_t>(requests_.size()) - running_; }
  std::int64_t running() const { return running_; }
  bool contains(RequestId id) const { return arrivals_.contains(id); }
  /// Whether the request holds blocks; false while it waits for some.
  bool is_running(RequestId id) const { return at(id).is_running; }

  struct Progress {
    std::int64_t generated = 0;      ///< tokens
    std::int64_t cached_tokens = 0;  ///< of the prompt, found in the prefix cache when it was first admitted
    std::int64_t preemptions = 0;
  };
  Progress progress(RequestId id) const;
  /// Prompt, generated tokens, then drafts of the plan that is being taken.
  std::span<const std::int64_t> tokens(RequestId id) const { return at(id).tokens; }
  std::span<const nn::BlockTable> tables(RequestId id) const { return at(id).blocks.tables; }

  struct Totals {
    std::int64_t steps = 0, preemptions = 0;
    std::int64_t prefill_tokens = 0;   ///< computed, recomputation after a preemption included
    std::int64_t decode_tokens = 0;    ///< computed in steps that had one new token of a sequence, and drafts
    std::int64_t cached_tokens = 0;    ///< not computed, since the prefix cache had them
    std::int64_t restored_tokens = 0;  ///< not computed again, since they were copied back
    std::int64_t drafts = 0, accepted_drafts = 0;
  };
  const Totals& totals() const { return totals_; }
  const BlockPool& pool() const { return pool_; }
  const SchedulerOptions& options() const { return options_; }
  /// Blocks of other memory that hold something.
  std::int64_t offloaded_blocks() const { return offloaded_blocks_; }
  /// BlockPool::check over all sequences.
  void check() const;

 private:
  struct Sequence {
    SequenceBlocks blocks = {};
    std::vector<std::int64_t> tokens = {};  // prompt and generated; while a plan is taken, its drafts behind them
    std::vector<std::int64_t> drafts = {};
    std::string salt = {};
    std::int64_t prompt_len = 0, max_len = 0, computed = 0, planned_drafts = 0;
    std::int64_t offloaded = 0;  // tokens that lie in other memory while it waits
    Progress progress = {};
    bool is_running = false;
    RequestId id = 0;
    std::int64_t known() const { return static_cast<std::int64_t>(tokens.size()) - planned_drafts; }
  };
  const Sequence& at(RequestId id) const;
  Sequence* youngest_after(std::uint64_t arrival);
  void preempt(Sequence& sequence, StepPlan& plan);
  void drop_planned_drafts(Sequence& sequence);
  bool place(std::uint64_t arrival, Sequence& sequence, std::int64_t tokens, StepPlan& plan);
  bool admit(Sequence& sequence, StepPlan& plan);
  void offload(Sequence& sequence, StepPlan& plan);
  void end(std::uint64_t arrival, Sequence& sequence);

  SchedulerOptions options_;
  BlockPool pool_;
  std::map<std::uint64_t, Sequence> requests_;  // by arrival
  std::map<RequestId, std::uint64_t> arrivals_;
  std::uint64_t next_arrival_ = 0;
  std::int64_t running_ = 0, offloaded_blocks_ = 0;
  Totals totals_;
};

}  // namespace trireme::serve
