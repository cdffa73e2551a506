// train/engine/recipe_layout.h -- a recipe's layout on the ranks of a world: checked, formed, and what follows from
// it.
//
// Depends on: comm, parallel, spec.
#pragma once

#include <memory>

#include "trireme/parallel/data_parallel.h"
#include "trireme/parallel/parallel_groups.h"
#include "trireme/spec/recipe.h"
#include "trireme/train/engine/step_plan.h"
#include "trireme/train/run/evaluate.h"

namespace trireme::train {

using parallel::ParallelGroups;

/// On all ranks together; `world` is borrowed. A ProblemsError with everything that the layout and the model do not
/// agree on.
std::unique_ptr<ParallelGroups> form(const spec::Recipe& recipe, const spec::ModelShape& shape, comm::Group& world,
                                     std::int64_t length);

parallel::DataParallelOptions data_parallel_options(const spec::Recipe& recipe, const ParallelGroups& parallel_groups);
Share share_of(const spec::Recipe& recipe, const ParallelGroups& parallel_groups, std::int64_t length);
/// How they share an evaluation's samples; everything is borrowed.
EvaluateRanks evaluate_ranks(const ParallelGroups& parallel_groups, comm::Group& world, int zero,
                             const spec::ModelShape& shape);

}  // namespace trireme::train
