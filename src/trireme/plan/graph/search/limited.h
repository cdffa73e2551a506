// plan/graph/search/limited.h -- the optimum of a search problem under a limit of memory: Alpa's integer program.
//
// Alpa (Zheng 2022, 2201.12023) hands "costs of nodes and pairs, at most so much memory" to an integer programming
// solver, which highs.h does. Here a Lagrange multiplier prices a byte of each row, elimination solves the rest
// exactly, and its value is a lower bound for every assignment that fits; of one row the multiplier with the best bound
// is found by bisection, those of several then by subgradients. What is left of the gap is closed by branching over the
// choices of one node at a time. At the time limit the best assignment so far comes back with its gap.
// Depends on: elimination.
#pragma once

#include <optional>

#include "trireme/plan/graph/search/elimination.h"

namespace trireme::plan::graph {

struct LimitedOptions {
  double memory_bytes = 0;
  double seconds = 60;
  double gap = 1e-9;               ///< relative: below it an assignment counts as optimal
  double enumerate_below = 20000;  ///< so few assignments are looked at one by one
};

struct Limited {
  std::optional<Assignment> assignment;  ///< nothing: none was found, and with a proof there is none
  double cost = 0, bound = 0;            ///< no assignment that fits costs less than the bound
  bool proven = false;
  std::size_t subproblems = 0;
  double gap() const { return cost > 0 ? (cost - bound) / cost : 0; }
};

Limited solve_limited(const SearchProblem& problem, const LimitedOptions& options);

}  // namespace trireme::plan::graph
