// plan/graph/search/cost_table.h -- what every search works on: choices of nodes, costs of nodes, costs of pairs.
//
// A problem is nodes with choices, a cost for each choice, and a cost for each pair of choices of two nodes that share
// a tensor. The problem of a graph has a node for each operator with those that must or should be split alike:
// operators that share a parameter (which lies in one way; all time steps of a cell), and operators that only follow,
// such as activations, norms and reshapes. Costs are those of pricing.h over the links of strategy.h, so the cost of an
// assignment is that of its lowering, to rounding; a test holds them against each other.
// Depends on: strategy.
#pragma once

#include <string>
#include <vector>

#include "trireme/plan/graph/strategy.h"

namespace trireme::plan::graph {

/// Between nodes a < b; cost[i * choices of b + j].
struct PairCost {
  int a = -1, b = -1;
  std::vector<double> cost;
};

using MemoryRow = std::vector<std::vector<double>>;  ///< [node][choice] bytes of a device at some operator

struct SearchProblem {
  std::vector<std::vector<double>> cost;  ///< [node][choice]
  MemoryRow memory;                       ///< where one device alone would hold most; empty: nothing limits it
  std::vector<PairCost> pairs;            ///< at most one for two nodes
  std::vector<MemoryRow> rows = {};       ///< at further operators
};

using Assignment = std::vector<int>;  ///< [node] a choice

double cost_of(const SearchProblem& problem, const Assignment& assignment);
/// By the row that holds most.
double memory_of(const SearchProblem& problem, const Assignment& assignment);
double memory_of(const MemoryRow& row, const Assignment& assignment);

/// Which splits an operator may have.
struct ChoiceOptions {
  bool canonical =
      true;  ///< axes go to dimensions in their order: sample first. Otherwise every axis to every dimension.
  bool reduced = false;  ///< also along sums: input channels, inner dimensions
  bool halos = true;     ///< also heights and widths
  bool statistics = true;
  bool heavy_are_split = false;    ///< no GEMM, convolution or attention is repeated along a mesh axis: Alpa's rule
  int only_axis = -1;              ///< the only axis that is free; the others are as in `base`
  int other_axis = -1;             ///< one more
  const Strategy* base = nullptr;  ///< splits on top of which choices are made; null: none
  const Strategy* also = nullptr;  ///< whose splits are choices too, in whatever order of axes; null: none
};

/// Operators that do little and are best where their input is: activations, norms, reshapes that rename nothing.
bool follows(const Op& op);

/// A graph as a problem, and the way back.
struct GraphProblem {
  SearchProblem problem;
  std::vector<std::vector<int>> nodes;      ///< forward operators of a node; the first one names it
  std::vector<std::vector<Split>> choices;  ///< [node][choice]
  layout::Mesh mesh;

  /// Operators are split along the dimensions of their node's choice that they have.
  Strategy strategy_of(const Graph& both, const Assignment& assignment) const;
  /// -1 where the node has no such choice.
  int choice_of(int node, const Split& split) const;
};

/// Strategies that between them have every choice of every node: what a profile measures.
std::vector<Strategy> strategies_of_choices(const Graph& both, const layout::Mesh& mesh);

GraphProblem make_problem(const Graph& both, const Pricing& pricing, const ChoiceOptions& options = {});

}  // namespace trireme::plan::graph
