#include "trireme/train/engine/require_rules.h"

namespace trireme::train {

void require_rules(const spec::Recipe& recipe, const spec::ModelShape& shape, const plan::RunRanks& place) {
  std::vector<config::Problem> problems = spec::find_problems(recipe);
  const auto refusals = spec::find_refusals(plan::run_setup(recipe, shape, place), spec::RuleNeeds::kLayout);
  for (config::Problem& problem : spec::problems_of(refusals)) problems.push_back(std::move(problem));
  if (!problems.empty()) throw config::ProblemsError("the recipe", std::move(problems));
}

void require_rules(const spec::Recipe& recipe, const spec::ModelShape& shape, const comm::Group& world,
                   std::int64_t length) {
  require_rules(recipe, shape,
                {.ranks = world.size(),
                 .rank_kind = world.has_processes() ? spec::RankKind::kProcesses : spec::RankKind::kThreads,
                 .seq_len = length});
}

}  // namespace trireme::train
