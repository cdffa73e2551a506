// spec/derived.h -- what a recipe leaves out because it follows from what it says: written in before anybody reads it.
//
//   lr_schedule.total                    from train.steps or train.tokens
//   batch.global_batch_tokens or         any two of them and train.gradient_accumulation_steps give the third
//   train.micro_batch_size
//   paths in the file                    of a file that is there beside the recipe
//   other keys of [experts]              from model.init_from, where the section does not say experts.num_experts
//
// Depends on: base (config), recipe.h.
#pragma once

#include <string>
#include <vector>

#include "trireme/spec/recipe.h"

namespace trireme::spec {

/// Changes `recipe` and says in `said` what it has derived, a sentence each. `ranks`: that will run; 0: not known, then
/// as comm.ranks and [layout] say. What cannot be derived is a problem. Keys with problems of their own may be odd
/// here: nothing is computed with what is out of range.
std::vector<config::Problem> derive(LoadedRecipe& loaded, const config::Input& input, int ranks,
                                    std::vector<std::string>& said);

}  // namespace trireme::spec
