// plan/graph/search/inter_op.h -- pipeline stages: Alpa's dynamic program over submeshes, and PipeDream's over levels.
//
// Alpa (Zheng 2022, 2201.12023, section 5.2): a stage is a run of layers on a submesh, (1, 2^k) or (n, M) devices of an
// N x M cluster, so that all stages together tile it. For each bound t_max on the slowest stage, F(s, k, d) is the
// least sum of stage times of layers k.. in s stages on d devices; a step of B micro-batches takes the sum plus (B - 1)
// times the slowest. A stage that is the s-th from the end holds activations of s micro-batches. PipeDream (Narayanan
// 2019, 1806.03377, section 3.1): the slowest of stages, each replicated over some machines, level by level of the
// network; throughput counts, not the time of one micro-batch. Both take tables as values: who fills them is another
// matter.
// Depends on: base.
#pragma once

#include <functional>
#include <optional>
#include <vector>

namespace trireme::plan::graph {

struct Submesh {
  int nodes = 1, per_node = 1;
  int devices() const { return nodes * per_node; }
  bool operator==(const Submesh&) const = default;
};
/// Those that tile: (1, 1), (1, 2), ... (1, M), then (2, M) ... (N, M).
std::vector<Submesh> submeshes_of(int nodes, int per_node);

/// What a run of layers takes on a submesh; nothing where it cannot be there.
struct StageCost {
  double seconds = 0;           ///< of one micro-batch, forward and backward
  double fixed_bytes = 0;       ///< weights, gradients, optimizer states
  double activation_bytes = 0;  ///< of one micro-batch
};
struct StageTable {
  int layers = 0;
  int nodes = 1, per_node = 1;
  std::vector<Submesh> submeshes;
  int micros = 1;
  double memory_bytes = 0;  ///< of a device; 0: no limit
  std::function<std::optional<StageCost>(int begin, int end, int submesh)> cost;
};

struct PipelineStage {
  int begin = 0, end = 0;  ///< layers
  int submesh = 0;
  double seconds = 0;
  bool operator==(const PipelineStage&) const = default;
};
struct Pipeline {
  std::vector<PipelineStage> stages;
  double seconds = 0;  ///< of a step
};

/// The optimum; nothing where no pipeline fits. Among equals the one with the least first stage. `step`: bounds of the
/// slowest stage that are closer than this are one.
std::optional<Pipeline> alpa_stages(const StageTable& table, double step = 1e-6);
/// Every pipeline: for small tables.
std::optional<Pipeline> brute_force_stages(const StageTable& table);

/// A level of the network, innermost first: how many of the level below it joins, and the bytes a second between them.
struct NetworkLevel {
  int width = 1;
  double bytes_per_second = 1;
};
struct PipeDreamLayer {
  double seconds = 0;       ///< forward and backward on one device
  double output_bytes = 0;  ///< that cross to the next layer, one way
  double weight_bytes = 0;
};
struct PipeDreamStage {
  int begin = 0, end = 0;
  int machines = 1;  ///< of the outermost level, on which the stage is replicated
};
struct PipeDreamPlan {
  std::vector<PipeDreamStage> stages;
  double seconds = 0;  ///< between two micro-batches, of the slowest stage
};
PipeDreamPlan pipedream_stages(const std::vector<PipeDreamLayer>& layers, const std::vector<NetworkLevel>& levels);

}  // namespace trireme::plan::graph
