// plan/graph/search/elimination.h -- the exact optimum of a search problem by eliminating its nodes.
//
// OptCNN (Jia 2018, 1802.04924) eliminates a node with two neighbours by the best of its choices for each pair of
// theirs, and adds up what then lies between the same two. Generalised to any number of neighbours this is bucket
// elimination: the node with the smallest table goes first, and what it costs is the choices of a node to the power of
// the width plus one. Chains, residual networks and inception blocks have width 2. The optimum does not depend on the
// order. Among equal choices the least index is taken.
// Depends on: cost_table.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "trireme/plan/graph/search/cost_table.h"

namespace trireme::plan::graph {

struct Elimination {
  Assignment assignment;
  double cost = 0;
  int width = 0;            ///< the most neighbours that a node had when it went
  std::size_t entries = 0;  ///< looked at, in all tables
};

/// ConfigError where a table would need more than `most_entries`, naming how many. `order`: nodes in the order in which
/// they go; empty: by least table.
Elimination eliminate(const SearchProblem& problem, const std::vector<int>& order = {},
                      std::size_t most_entries = 200'000'000);

/// Every assignment: the oracle of the others. Nothing where there are more than `most`; the first among equals.
std::optional<Elimination> brute_force(const SearchProblem& problem, double most = 1e7);

}  // namespace trireme::plan::graph
