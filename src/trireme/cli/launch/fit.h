// cli/launch/fit.h -- how many ranks and nodes a recipe asks for, and whether it fits there.
//
// Depends on: cost, plan, spec.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trireme/plan/check_recipe.h"
#include "trireme/spec/recipe.h"

namespace trireme::cli {

/// What the command line, the launcher and the cluster say; nothing where they do not.
struct FitRequest {
  std::optional<int> ranks, nodes, ranks_per_node;
  int slots = 0, named_nodes = 0;  ///< of the launcher's settings (launch/launcher.h); 0: it does not say
  std::string cluster;
};

struct Fit {
  int ranks = 1, nodes = 1, ranks_per_node = 1;
  std::string why;  ///< where the numbers come from, a sentence
  plan::Checkup checkup;
};

/// Where nothing says how many ranks, the fewest whole nodes of the cluster in whose memory the run fits. Throws
/// config::ProblemsError with all that stands against it.
Fit fit_recipe(const spec::LoadedRecipe& loaded, const FitRequest& request, const std::string& title);

}  // namespace trireme::cli
