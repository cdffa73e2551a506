// pipeline/replication.h -- PipeDream's partition: which entries make a stage, and on how many workers each stage runs.
//
// A stage on r workers takes every r-th micro each, so it is r times as fast as long as summing its gradients keeps up.
// The programme finds the plan whose slowest part, stage or link, is fastest (Narayanan et al. 2019, section 3.1, for
// one level of links), exactly.
// Depends on: split. No tensors.
#pragma once

#include <span>
#include <vector>

#include "trireme/pipeline/split.h"

namespace trireme::pipeline {

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
