// cli/plan/options.h -- what `plan` and `estimate` have in common: the model, the cluster and what is given of a
// layout.
//
// A model is a name, a recipe, or plain sizes as tables of papers print them.
// Depends on: command.h, plan.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trireme/cli/command.h"
#include "trireme/cost/hardware.h"
#include "trireme/plan/published.h"
#include "trireme/plan/search.h"
#include "trireme/spec/recipe.h"

namespace trireme::cli {

/// The task as it was resolved.
struct PlanTask {
  cost::Hardware hardware;
  plan::Job job;
  spec::Recipe recipe;  ///< the one that was named, or an empty one
  int gpus = 0;
  plan::Choices given;
  std::vector<std::string> chosen;  ///< names of flags whose values were not given, beside those of the layout
};

class PlanOptions {
 public:
  /// What stands without a flag: a recipe whose layout is meant, or a model of which nothing else is taken.
  enum class Positional { kRecipe, kModel };
  void add_to(Command& command, Positional positional);
  /// Throws ConfigError or config::ProblemsError with everything that is missing or contradicts itself.
  PlanTask resolve() const;

 private:
  spec::ModelShape shape(spec::Recipe& recipe) const;
  int device_count(const cost::Hardware& hardware, const plan::Choices& given,
                   const std::optional<int>& recipe_ranks) const;

  /// The model's name or path, from wherever it was given.
  std::string named() const;

  Positional positional_ = Positional::kRecipe;
  std::string recipe_, model_, cluster_;
  plan::ModelSizes sizes_;
  std::optional<std::int64_t> seq_, global_batch_;
  std::optional<int> gpus_;
  plan::Choices given_;
  std::string family_, precision_, attention_, software_, recompute_, sequence_parallel_, schedule_, offload_, cp_kind_;
};

}  // namespace trireme::cli
