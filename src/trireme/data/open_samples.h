// data/open_samples.h -- from a recipe to its samples: the one door to training and validation data.
//
//   const auto train = open_samples(recipe, Split::kTrain);
//   const auto validation = open_samples(recipe, Split::kValidation);   // null: the recipe keeps nothing for it
//
// Depends on: spec, data.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "trireme/data/samples.h"
#include "trireme/data/split.h"
#include "trireme/spec/recipe.h"

namespace trireme::data {

/// ConfigError when the recipe names no data, or data that its model cannot be trained on; IoError and FormatError as
/// TokenFile has them. Which samples there are, and in what order, follows from the recipe's [data], [model] and
/// run.seed.
std::unique_ptr<Samples> open_samples(const spec::Recipe& recipe, Split split);

/// The files of tokens that a source's path names, sorted: the file itself, or those of a folder that have an ending
/// of ours (.shard, .bin, .txt).
std::vector<std::filesystem::path> token_paths(const std::filesystem::path& path);

}  // namespace trireme::data
