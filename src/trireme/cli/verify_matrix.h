// cli/verify_matrix.h -- trireme verify --matrix: many layouts of so many ranks, each against one rank.
#pragma once

#include <optional>
#include <string>

#include "trireme/cli/commands.h"
#include "trireme/train/commands.h"

namespace trireme::cli {

struct MatrixOptions {
  bool all = false, json = false;
  std::optional<std::string> write;  ///< a Markdown file
  std::string recipe;                ///< where the recipe is, for that file
};

/// Whether all were equal. Prints a line for each layout, what was refused and why, and which features were together.
bool verify_matrix(const spec::Recipe& recipe, train::VerifyRequest request, const MatrixOptions& options,
                   const train::Commands& commands, Context& context);

}  // namespace trireme::cli
