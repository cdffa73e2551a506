// plan/features.h -- what recipes choose between, as values that can be combined: parallelism, schedules, precisions,
// optimizers and the rest.
//
//   spec::Recipe recipe = feature_base();
//   for (const Feature* feature : chosen) feature->choose(recipe);      // in any order
//   spec::find_refusals(run_setup(recipe, shape, {.ranks = ranks_of(recipe)}))
//
// The page of what works together is made of all pairs of them, and tests/train/combinations_test.cpp trains those
// pairs. A feature brings what it needs (sequence parallelism brings tp = 2) and nothing else.
// Depends on: spec, schedule.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "trireme/spec/recipe.h"

namespace trireme::plan {

struct Feature {
  std::string name;   ///< as docs/combinations.md calls it
  std::string group;  ///< of features of which a recipe has one; they are not combined with each other
  std::function<void(spec::Recipe&)> choose;
};

/// In groups that belong together.
std::span<const Feature> features();

/// A tiny decoder on one rank, which every feature can be chosen for.
spec::Recipe feature_base();
/// comm.ranks, or as many as the layout takes.
int ranks_of(const spec::Recipe& recipe);

}  // namespace trireme::plan
