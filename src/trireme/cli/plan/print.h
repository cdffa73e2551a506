// cli/plan/print.h -- estimates as tables, as JSON and as a page.
//
// Depends on: plan, observe (page), cli/plan/options.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "trireme/cli/plan/options.h"
#include "trireme/plan/estimate.h"
#include "trireme/plan/sizes.h"

namespace trireme::cli {

/// Layout, rates, and where time and memory go.
std::string breakdown(const PlanTask& task, const plan::Estimate& estimate);
nlohmann::ordered_json to_json(const PlanTask& task, const plan::Estimate& estimate);
nlohmann::ordered_json to_json(const spec::ParallelConfig& config);
nlohmann::ordered_json memory_json(const plan::MemoryParts& parts);
/// What was not given, with what was taken for it.
nlohmann::ordered_json chosen_json(const PlanTask& task, const plan::Estimate& estimate);

/// A plan as one HTML document that needs nothing else: layout, breakdown, time over memory, decisions.
std::string plan_page(const PlanTask& task, const plan::Sized& sized);

}  // namespace trireme::cli
