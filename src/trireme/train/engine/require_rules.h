// train/engine/require_rules.h -- the trainer's door to the rules of what runs together (spec/rules.h).
//
// `trireme check` reads the same list, so whoever comes through here was told before.
// Depends on: comm, plan, spec.
#pragma once

#include <cstdint>

#include "trireme/comm/group.h"
#include "trireme/plan/run_setup.h"

namespace trireme::train {

/// A ProblemsError with all that does not go together, in the recipe's own values and of them with the model and so
/// many ranks.
void require_rules(const spec::Recipe& recipe, const spec::ModelShape& shape, const plan::RunRanks& place);
/// On the ranks of `world`, with samples of `length` tokens.
void require_rules(const spec::Recipe& recipe, const spec::ModelShape& shape, const comm::Group& world,
                   std::int64_t length);

}  // namespace trireme::train
