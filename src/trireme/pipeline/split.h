// pipeline/split.h -- a model's chain of entries cut into chunks: by count, where one says, or by cost.
//
// A split is a value: for each chunk the stretch of the chain that it holds. Every entry is in exactly one chunk, which
// check_split() proves; no chunk is empty.
// Depends on: base. No tensors.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace trireme::pipeline {

struct LayerRange {
  std::size_t begin = 0, end = 0;  ///< entries of the chain: [begin, end)
  bool operator==(const LayerRange&) const = default;
};
using Split = std::vector<LayerRange>;  // by chunk

/// Equal numbers of blocks (entries named "...layers.N") for every chunk, as far as they go round; what comes before
/// the first block is the first chunk's, what comes after the last the last chunk's. With more chunks than blocks,
/// equal numbers of entries. ConfigError where there are fewer entries than chunks.
Split split_by_count(std::span<const std::string> names, int chunks);

/// A chunk begins at each of these entries, and one at the chain's begin. ConfigError naming an entry that is not there
/// or stands before the one listed before it.
Split split_at(std::span<const std::string> names, std::span<const std::string> starts);

/// The split whose costliest chunk is cheapest (torchgpipe's balance), exactly; of several the one whose chunks are
/// cheapest in the sum of squares, then the one that cuts earliest.
Split split_by_cost(std::span<const double> costs, int chunks);

double cost_of(const LayerRange& stretch, std::span<const double> costs);

/// A ConfigError that names the first entry that is in no chunk or in two, or the chunk that is empty.
void check_split(const Split& split, std::span<const std::string> names);

/// "0: embedding .. layers.1 | 1: layers.2 .. head".
std::string to_text(const Split& split, std::span<const std::string> names);

// PipeDream's partition: which entries make a stage, and on how many workers each stage runs.
//
// A stage on r workers takes every r-th micro each, so it is r times as fast as long as summing its gradients keeps up.
// The programme finds the plan whose slowest part, stage or link, is fastest (Narayanan et al. 2019, section 3.1, for
// one level of links), exactly.

/// Measured of one micro through one entry of the chain.
struct EntryProfile {
  double seconds = 0;           ///< forward and backward together
  double activation_bytes = 0;  ///< of its output
  double weight_bytes = 0;
};

struct ReplicatedStage {
  LayerRange stretch;
  int workers = 1;
  bool operator==(const ReplicatedStage&) const = default;
};

struct ReplicationPlan {
  std::vector<ReplicatedStage> stages;
  double seconds = 0;  ///< between two micros that leave the pipeline, once it is full
};

/// (1 / workers) max(sum of seconds, 2 (workers - 1) sum of weight bytes / bandwidth).
double stage_seconds(std::span<const EntryProfile> entries, int workers, double bytes_per_second);

/// All workers are used. Of plans that are equally fast the one with fewer stages.
ReplicationPlan plan_replication(std::span<const EntryProfile> entries, int workers, double bytes_per_second);

}  // namespace trireme::pipeline
