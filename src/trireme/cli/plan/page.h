// cli/plan/page.h -- a plan as an HTML page: layout, breakdown, time over memory, decisions.
//
// Depends on: plan, observe (page).
#pragma once

#include <string>

#include "trireme/cli/plan/options.h"
#include "trireme/plan/sizes.h"

namespace trireme::cli {

/// One document that needs nothing else.
std::string plan_page(const PlanTask& task, const plan::Sized& sized);

}  // namespace trireme::cli
