// cli/plan/check_files.h -- opens what a run would open before its first step: data, tokenizer, weights to start from.
//
// Depends on: base, data, spec; train/commands.h where model.init_from is given.
#pragma once

#include <optional>
#include <vector>

#include "trireme/spec/recipe.h"

namespace trireme::cli {

struct OpenedFiles {
  std::optional<spec::ModelShape> shape;  ///< of the recipe's model; none where there is none, or it cannot be opened
  std::vector<config::Problem> problems;
};

/// Every file that is missing, damaged, or does not suit the model.
OpenedFiles open_files(const spec::Recipe& recipe);

}  // namespace trireme::cli
