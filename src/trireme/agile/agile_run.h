// agile/agile_run.h -- training on machines of which some may vanish: clocks that are committed are never lost.
//
// A clock is one pass of all data partitions and one update of every shard. A server adds up the gradients of a clock
// in the order of partitions, whoever computed them, so weights do not depend on the machines. An active server on a
// spot machine streams each new state of its shard to the backup on a reliable machine; when the backups have a clock
// of all shards, the controller commits it. When machines go, whoever is left begins a new epoch at the last committed
// clock: what is lost is at most what was not yet committed.
// Depends on: plan (placements), comm (mailboxes).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "trireme/comm/mailbox.h"
#include "trireme/plan/asynchronous/bidbrain.h"

namespace trireme::agile {

/// From so many committed clocks on, so many spot machines. Fewer than before: those that go are gone at once, without
/// a word and with all they had.
struct Change {
  int clock = 0, spot = 0;
};

struct AgileJob {
  int reliable = 1;
  int shards = 2, partitions = 8;
  int clocks = 10;
  double learning_rate = 0.1;
  std::vector<double> weights;  ///< at the begin; shards are equal pieces but for the last
  std::vector<Change> changes;  ///< ascending in clocks; the first says what there is at the begin
  /// Machines are processes: one that was evicted may come back as another process, and mail that was posted to it
  /// before that was heard of comes back and goes out again.
  bool processes = false;
  /// The gradient of a partition, a function of these alone.
  std::function<std::vector<double>(int partition, int clock, const std::vector<double>& weights)> gradient;
};

struct AgileResult {
  std::vector<double> weights;
  std::vector<int> commits;             ///< clocks in the order in which they were committed
  std::vector<plan::TierStage> stages;  ///< of the epochs
  int epochs = 0;
  int redone = 0;                   ///< clocks that were begun, not committed, and begun again in a later epoch
  std::vector<double> pauses = {};  ///< seconds from each change of machines until the next commit
};

/// Who gives and takes spot machines: a machine by its number (reliable ones first), and whether it is there from now
/// on. One that goes is gone when this returns.
using AgileMarket = std::function<void(int machine, bool there)>;

/// The part of one machine, of mailbox address number + 1: until the job is over or it is evicted.
void run_agile_machine(const AgileJob& job, comm::Mailbox& mailbox);
/// The controller's, of address 0. Without a market all machines are there from the begin, and those that go are told.
AgileResult run_agile_controller(const AgileJob& job, comm::Mailbox& mailbox, const AgileMarket& market = nullptr);

/// On threads, every delivery drawn from the seed.
AgileResult run_agile(const AgileJob& job, std::uint64_t seed);
/// The same on one machine, without servers or messages: what it is held against.
std::vector<double> run_serial(const AgileJob& job);

}  // namespace trireme::agile
