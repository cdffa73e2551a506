// plan/explain.h -- in words: where one configuration spends more than another, and what it lacks.
//
// What becomes of the best one when a decision is made otherwise is SearchResult::decisions.
// Depends on: search.
#pragma once

#include <string>

#include "trireme/plan/search.h"

namespace trireme::plan {

/// "4.1 % slower, most of it in replicas".
std::string why_slower(const Estimate& best, const Estimate& other);
/// "needs 93.1 GiB of 80.0, most of it activations".
std::string why_not(const Memory& memory);

}  // namespace trireme::plan
