#include "trireme/train/run/effective_recipe.h"

#include <algorithm>

#include "trireme/base/cores.h"

namespace trireme::train {

namespace fs = std::filesystem;

std::optional<fs::path> tokenizer_file(const spec::DataConfig& data) {
  if (!data.tokenizer || *data.tokenizer == "bytes") return std::nullopt;
  const fs::path path = *data.tokenizer;
  return fs::is_directory(path) ? path / "tokenizer.json" : path;
}

spec::Recipe effective_recipe(const RunRequest& request, const spec::ModelShape& shape) {
  spec::Recipe recipe = request.recipe;
  const auto init_from = recipe.model.init_from;
  recipe.model = spec::resolved(spec::config_of(shape));
  if (init_from) recipe.model.init_from = fs::absolute(*init_from).string();
  if (!recipe.train.threads) {
    recipe.train.threads = std::max(1, usable_cores() / std::max(1, request.local_ranks));
  }
  if (const auto tokenizer = tokenizer_file(recipe.data)) recipe.data.tokenizer = fs::absolute(*tokenizer).string();
  for (auto* sources : {&recipe.data.sources, &recipe.data.validation}) {
    for (spec::DataSource& source : *sources) source.path = fs::absolute(source.path).lexically_normal().string();
  }
  return recipe;
}

}  // namespace trireme::train
