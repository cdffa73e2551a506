// train/servers/downpour_worker.h -- a replica of Downpour SGD: it fetches, computes, takes a local step and pushes.
//
// The weights are fetched every n_fetch parts; what has accrued is pushed every n_push parts, and at most tau pushes
// are on their way when a part begins. The journal says which version of each server's weights was fetched for a part
// and which one its push became.
// Depends on: ps, replica.h.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "trireme/ps/consistency.h"
#include "trireme/ps/node.h"
#include "trireme/train/servers/replica.h"

namespace trireme::train {

/// What a replica did with one part.
struct JournalEntry {
  spec::Position at = {};  ///< where its step begins
  int part = 0;
  std::map<int, std::uint64_t> fetched = {};  ///< by server; empty: it went on with its own weights
  bool pushes = false;                        ///< it ends a push; else it went on accruing
  std::map<int, std::uint64_t> pushed = {};   ///< by server: the version that the push became
  bool flushes = false;                       ///< after it everything went that had accrued or was held back
  std::map<int, std::uint64_t> flushed = {};  ///< likewise
  double learning_rate = 0;
  std::uint64_t stale = 0;  ///< pushes of all replicas between its fetch and its push
  bool operator==(const JournalEntry&) const = default;
};

struct DownpourPace {
  int n_fetch = 1, n_push = 1;
  std::uint64_t tau = 0;
  ps::ValueType type = ps::ValueType::kF64;
  double rate_factor = 1;  ///< of the learning rate
  ps::Filters filters = {};
};
/// Those of [downpour].
ps::Filters push_filters(const spec::Recipe& recipe);
/// In the log, where pushes on their way may make SGD diverge: learning rate times staleness above 1.
void warn_of_staleness(const spec::OptimConfig& optim, std::uint64_t tau);

class DownpourWorker {
 public:
  /// Both borrowed. `computed` is told of every part: it may take its time, as a slow machine does.
  using Computed = std::function<void(const Replica::Gradient& gradient, double seconds)>;
  DownpourWorker(comm::Mailbox& mailbox, Replica& replica, const DownpourPace& pace, Computed computed = nullptr);

  /// The servers' first numbers; of `planes` those that are left out begin as zeros.
  void assign(const std::vector<double>& weights, const std::vector<std::vector<double>>& planes);
  /// A part of the step after `at`.
  void take(const spec::Position& at, int part);
  /// Pushes what has accrued, and waits until all servers have everything. The next part fetches.
  void settle();
  /// The servers' numbers now: weights, or what their rule keeps beside them.
  std::vector<double> fetch(int plane = 0);
  /// Tells the manager that this worker is done.
  void leave() { client_.leave(); }

  const std::vector<JournalEntry>& journal() const { return journal_; }
  /// After settle().
  std::vector<JournalEntry> take_journal() { return std::exchange(journal_, {}); }
  std::uint64_t most_stale() const { return delay_.most_stale(); }  ///< of its own pushes
  /// What it sent, and what that would have been without filters.
  const ps::WorkerCounters& counters() const { return client_.worker().counters(); }
  QueueReading queue() const { return client_.worker().queue(); }  ///< pushes and pulls, until servers have answered
  QueueReading outbox() const { return client_.outbox(); }         ///< messages that wait for credit

 private:
  void push(double learning_rate, bool everything);
  void finish(std::uint64_t clock);

  Replica& replica_;
  const DownpourPace pace_;
  const Computed computed_;
  ps::Client client_;
  ps::BoundedDelay delay_;
  std::optional<ps::ResidualFilter> filter_;  // where the filters hold something back
  std::uint64_t pushes_ = 0;
  const std::vector<ps::Segment> all_;
  std::vector<double> weights_, accrued_;
  std::vector<JournalEntry> journal_;
  struct OpenPush {
    ps::Worker::TaskId task;
    std::size_t entry;
  };
  std::map<std::uint64_t, OpenPush> open_;  // by clock
  ps::Worker::TaskId last_push_ = 0;
  std::int64_t taken_ = 0;  // since the last settle()
  double last_rate_ = 0;
};

}  // namespace trireme::train
