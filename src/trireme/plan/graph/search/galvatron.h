// plan/graph/search/galvatron.h -- Galvatron (Miao 2022, 2211.13878): a decision tree of strategies for each layer, and
// a dynamic program over layers under a memory budget.
//
// The tree first cuts devices into pipeline stages, then a stage's devices into tensor parallel (innermost, on
// neighbouring devices), data parallel, plain or sharded (FSDP), each in powers of two, with or without activation
// recomputation (checkpointing); tensor parallel also with sequence parallel. Layers of one stage may differ, which
// costs a transformation of activations between them. Memory is counted in units, rounded up.
// Depends on: base.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace trireme::plan::graph {

struct LayerStrategy {
  int pp = 1, tp = 1, dp = 1;
  bool sharded = false;  ///< data parallel with parameters, gradients and optimizer states sharded
  bool recompute = false;
  bool sequence_parallel = false;
  bool operator==(const LayerStrategy&) const = default;
};
/// "1-2*-4f-c-sp": pipeline, tensor (* on neighbours) and data parallel degree, sharded, recomputed, sequence parallel.
std::string to_text(const LayerStrategy& strategy);

struct GalvatronSpace {
  int devices = 8;
  bool pipeline = true, tensor = true, sharded = true, recompute = true, sequence_parallel = true;
};
/// Every leaf of the tree, in the order of Galvatron's own list.
std::vector<LayerStrategy> layer_strategies(const GalvatronSpace& space);

/// What a layer takes with a strategy, in its stage: seconds of a step and bytes of a device.
struct LayerCost {
  double seconds = 0, bytes = 0;
};
struct GalvatronProblem {
  int layers = 0;
  std::vector<LayerStrategy> strategies;  ///< of one pipeline degree
  std::function<LayerCost(int layer, int strategy)> cost;
  std::function<double(int layer, int from, int to)>
      transformation;  ///< seconds before `layer`, between two strategies
  double memory_bytes = 0;
  double unit_bytes = 64e6;
};
struct GalvatronPlan {
  std::vector<int> strategies;  ///< [layer]
  double seconds = 0, bytes = 0;
};
/// The fastest that fits; nothing where none does. Equal ones: the least indices, from the last layer on.
std::optional<GalvatronPlan> galvatron_layers(const GalvatronProblem& problem);
/// Every combination: for small problems.
std::optional<GalvatronPlan> brute_force_layers(const GalvatronProblem& problem);

}  // namespace trireme::plan::graph
