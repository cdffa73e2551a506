// plan/asynchronous/bidbrain.h -- Proteus' tiers as placements, and BidBrain, which buys the machines for them.
//
// AgileML (Harlap, dissertation, chapter 4) keeps state where machines stay: in stage 1 parameter servers are on
// reliable machines; in stage 2, above one spot machine for each reliable one, active servers are on spot machines and
// stream what they change to backups on reliable ones; in stage 3, from 15 to 1, reliable machines do nothing else than
// that. BidBrain takes the offer whose expected cost for a unit of work is least, counting the hours that are free
// because the machine was taken away in them, and what a change of machines costs.
// Depends on: spot_market.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/plan/asynchronous/spot_market.h"

namespace trireme::plan {

enum class TierStage : std::uint8_t { kReliableServers = 1, kActiveServers = 2, kNoReliableWorkers = 3 };

/// Of so many reliable and spot machines.
TierStage tier_stage(int reliable, int spot);

/// Machines are numbered, the reliable ones first.
struct TierPlacement {
  TierStage stage = TierStage::kReliableServers;
  std::vector<int> servers;     ///< by shard: who updates it
  std::vector<int> backups;     ///< by shard: the reliable machine that has its last committed state
  std::vector<int> partitions;  ///< by part of the data: who computes with it
};
/// ConfigError without a reliable machine.
TierPlacement place_tiers(int reliable, int spot, int shards, int partitions);

struct SpotJob {
  double machine_hours = 640;  ///< of work, on machines like these
  int reliable = 4;            ///< on demand, all the time
  int most_spot = 124;
  int allocation = 31;                     ///< machines that are bought and lost together
  double eviction_overhead_seconds = 120;  ///< of everybody, when machines go
  double addition_overhead_seconds = 60;   ///< of everybody, when machines come
  double efficiency = 0.95;                ///< of machines that are shared work beside one
  double begin_seconds = 0;                ///< in the trace: what lies before is the past that is known
};

struct SpotRun {
  double dollars = 0, hours = 0;
  double free_machine_hours = 0;  ///< of hours in which machines were taken
  int evictions = 0;              ///< of allocations
  int clocks_lost = 0;            ///< that had been committed; always none (agile/tiers.h)
  double machine_hours = 0;       ///< paid or not
  std::vector<int> stages;        ///< how often each stage began: of TierStage 1, 2, 3
};

/// All machines on demand: no risk, full price.
SpotRun run_on_demand(const PriceTrace& trace, const SpotJob& job);
/// Bids the on-demand price for all spot machines at once, and buys again when the price is below it.
SpotRun run_standard_bidding(const PriceTrace& trace, const SpotJob& job);
SpotRun run_bidbrain(const PriceTrace& trace, const SpotJob& job);

}  // namespace trireme::plan
