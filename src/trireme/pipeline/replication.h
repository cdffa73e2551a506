// pipeline/replication.h -- PipeDream's partition: which entries make a stage, and on which workers each stage runs.
//
// A stage on r workers takes every r-th micro each, so it is r times as fast as long as summing its gradients keeps up.
// The programme finds the plan whose slowest part, stage or link, is fastest (Narayanan et al. 2019, section 3.1),
// exactly, over the levels of links of a machine: GPUs of a server, then servers. A stage at an outer level is a
// pipeline over all workers of each component that it is on, planned at the level below.
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

/// So many components of the level below (workers, at the first), and the links between them.
struct LinkLevel {
  int count = 1;
  double bytes_per_second = 0;
};

struct ReplicatedStage {
  LayerRange stretch;
  std::vector<int> workers;  ///< in the order in which they take micros; components have consecutive ones
  bool operator==(const ReplicatedStage&) const = default;
};

struct ReplicationPlan {
  std::vector<ReplicatedStage> stages;
  double seconds = 0;  ///< between two micros that leave the pipeline, once it is full
};

/// (1 / components) max(seconds of one component, 2 (components - 1) weight bytes / bandwidth).
double stage_seconds(double of_component, double weight_bytes, int components, double bytes_per_second);

/// All workers are used. Of plans that are equally fast the one with fewer stages. `levels` from the inside out.
ReplicationPlan plan_replication(std::span<const EntryProfile> entries, std::span<const LinkLevel> levels);

}  // namespace trireme::pipeline
