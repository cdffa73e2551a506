// plan/graph/random_strategy.h -- a legal strategy drawn at random: what tests run and searches start from.
//
// Every operator gets splits that it and its gradient operators can take; operators that share a parameter get the
// same.
// Depends on: strategy, base/random.
#pragma once

#include <cstdint>

#include "trireme/plan/graph/strategy.h"

namespace trireme::plan::graph {

/// A function of its arguments alone. `wholeness`: of ten mesh axes of an operator so many are left whole, about.
Strategy random_strategy(const Graph& both, const layout::Mesh& mesh, std::uint64_t seed, int wholeness = 3);

}  // namespace trireme::plan::graph
