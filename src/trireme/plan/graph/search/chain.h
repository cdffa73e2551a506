// plan/graph/search/chain.h -- a graph as a chain of layers, which pipelines are cut from.
//
// Operators stay in the order of the graph, which is a topological one, so every run of layers is convex: nothing
// leaves it and comes back. What crosses a cut is every tensor that is made before it and read after it.
// Depends on: cost_table.
#pragma once

#include <string>
#include <vector>

#include "trireme/plan/graph/pricing.h"
#include "trireme/plan/graph/strategy.h"

namespace trireme::plan::graph {

struct ChainLayer {
  std::string name;      ///< of its first operator
  std::vector<int> ops;  ///< forward operators
  double forward = 0;    ///< seconds on one device
  double backward = 0;
  double weight_bytes = 0;      ///< of parameters that it reads; one that several layers read is held by each
  double activation_bytes = 0;  ///< what it makes and backward reads
  double cut_bytes = 0;         ///< that cross to later layers
  double flops = 0;
};

/// Each operator with those that follow it.
std::vector<ChainLayer> chain_of(const Graph& both, const Pricing& device);

/// Alpa's clustering (Zheng 2022, section 5.2): at most `layers` runs of the chain, none with more than (1 + spread) of
/// an even share of the FLOPs, so that the largest cut is least; among those the most even ones.
std::vector<ChainLayer> cluster_layers(const std::vector<ChainLayer>& chain, int layers, double spread = 0.5);
/// [run] first and one past the last layer of a chain.
std::vector<std::pair<int, int>> cluster_runs(const std::vector<double>& flops, const std::vector<double>& cuts,
                                              int layers, double spread);

}  // namespace trireme::plan::graph
