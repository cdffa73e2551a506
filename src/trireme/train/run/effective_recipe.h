// train/run/effective_recipe.h -- the recipe as it runs: nothing left to be found out, nothing that depends on where it
// was started.
//
// Depends on: base, spec.
#pragma once

#include <filesystem>
#include <optional>

#include "trireme/train/commands.h"

namespace trireme::train {

/// Every key of the model, threads, absolute paths. What recipe.toml in the run's folder says.
spec::Recipe effective_recipe(const RunRequest& request, const spec::ModelShape& shape);

/// The tokenizer.json that the data was made with; none for bytes and where nothing was said.
std::optional<std::filesystem::path> tokenizer_file(const spec::DataConfig& data);

}  // namespace trireme::train
