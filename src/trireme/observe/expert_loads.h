// observe/expert_loads.h -- how evenly a router sends tokens to experts, and so to the ranks that have them.
//
// Depends on: step_record.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trireme/observe/step_record.h"

namespace trireme::observe {

/// The loads of several steps together, layer by layer, of those steps that tell them.
struct ExpertBalance {
  std::vector<LayerLoad> layers;
  int ranks = 1;           ///< that experts are sharded over, in equal parts one after the other
  std::int64_t steps = 0;  ///< that were added up
  std::int64_t last_step = 0;
  std::int64_t timed = 0;  ///< steps of them that tell what uneven loads cost; LayerLoad::cost_ms are sums over them
  std::int64_t moves = 0;  ///< over the whole run, steps after which experts moved
  ExpertsMoved all_moves;  ///< sums, and the last one's busiest rank
};
/// Of the last steps, at most so many.
ExpertBalance expert_balance(std::span<const StepRecord> steps, std::int64_t most = 20);

/// Tokens of each rank, of experts that lie in the order of their numbers.
std::vector<std::int64_t> rank_loads(std::span<const std::int64_t> experts, int ranks);
/// The largest over the mean: 1 is even. 0 where there is none.
double max_over_mean(std::span<const std::int64_t> loads);
double mean_load(std::span<const std::int64_t> loads);
/// An HTML table, a row a layer; empty where no step tells loads.
std::string balance_table(const ExpertBalance& balance);

}  // namespace trireme::observe
