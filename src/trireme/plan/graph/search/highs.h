// plan/graph/search/highs.h -- Alpa's integer program, solved by HiGHS where that library is there.
//
// A node's choices are binary and add up to one; what a pair of choices costs is carried by continuous variables whose
// sums are those choices, which is tighter than Alpa's e <= s; each row of memory is a row. Costs are scaled to what
// the unlimited optimum is, because the solver's tolerances are absolute. HiGHS (Huangfu and Hall 2018; MIT licence) is
// opened when it is first asked for, by a few functions of its C interface that are declared here: scripts/setup
// --highs fetches it. limited.h solves the same without it; each is the other's oracle.
// Depends on: limited.
#pragma once

#include <optional>
#include <string>

#include "trireme/plan/graph/search/limited.h"

namespace trireme::plan::graph {

/// The file and version of the library that is there; nothing: there is none. ConfigError where the one that
/// TRIREME_HIGHS_LIBRARY names does not load.
std::optional<std::string> highs_library();

/// The optimum, or the best assignment that was found in time with a bound. Nothing without the library.
std::optional<Limited> solve_by_highs(const SearchProblem& problem, const LimitedOptions& options);

}  // namespace trireme::plan::graph
