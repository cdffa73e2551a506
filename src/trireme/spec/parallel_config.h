// spec/parallel_config.h -- how a run is distributed, as one value: [layout], [pipeline], and of [train] the
// micro-batch and what is saved for backward.
//
//   const ParallelConfig config = parallel_config(recipe, /*ranks=*/64, /*batch_rows=*/512);   // what the recipe says
//   apply(best, recipe);                                                                      // what the planner found
//
// The planner works on it, `check` prices it, the trainer runs the recipe that holds it. It never changes what is
// computed.
// Depends on: batch_split, layout_config, train; parallel_config() and apply() on recipe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "trireme/spec/layout_config.h"
#include "trireme/spec/train.h"

namespace trireme::spec {

struct Recipe;

struct ParallelConfig {
  LayoutConfig layout = {};
  PipelineConfig pipeline = {};
  std::int64_t micro_batch_size = 1;  ///< sequences
  RecomputeKind recompute = RecomputeKind::kNone;
  std::int64_t recompute_every = 2;                                 ///< with RecomputeKind::kEvery
  std::optional<double> recompute_gb = {};                          ///< with RecomputeKind::kBudget
  bool recompute_norms = false, save_mlp_activations = false;       ///< as in [train]
  bool offload_activations = false, partition_activations = false;  ///< likewise
  bool operator==(const ParallelConfig&) const = default;

  int dp() const { return layout.dp.value_or(1); }
  int ranks() const { return static_cast<int>(layout.ranks_per_copy()) * dp(); }
  /// Ranks with the same weights: those that share a sequence hold copies too.
  int replicas() const { return dp() * layout.cp; }
  /// Of them, those that ZeRO shards over: all, or the groups of zero_group data-parallel ranks.
  int zero_ranks() const { return layout.zero_group.value_or(dp()) == dp() ? replicas() : *layout.zero_group; }
  /// Sequences of a step on the replica of the model that has most (batch_split.h).
  std::int64_t rows(std::int64_t batch_rows) const;
  /// Micro-batches of a step on the replica of the model that has most; the last one may be shorter.
  std::int64_t micros(std::int64_t batch_rows) const;
};

/// "tp 8, pp 12, dp 4, ...": for people.
std::string to_text(const ParallelConfig& config);

/// Of a recipe whose global batch is `batch_rows` sequences, on so many ranks. A micro-batch that is not given is one
/// sequence in a pipeline and otherwise all that a replica takes.
ParallelConfig parallel_config(const Recipe& recipe, int ranks, std::int64_t batch_rows);
/// Into a recipe, which then says every key of it.
void apply(const ParallelConfig& config, Recipe& recipe);
/// The same mathematics undistributed: a default layout, and nothing that is a property of stages or shards.
void undistribute(Recipe& recipe);

}  // namespace trireme::spec
