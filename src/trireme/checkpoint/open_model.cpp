#include "trireme/checkpoint/open_model.h"

#include <fmt/format.h>

#include "trireme/base/error.h"
#include "trireme/checkpoint/run_folder.h"
#include "trireme/checkpoint/store.h"
#include "trireme/models/published.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;

bool is_published(const fs::path& path) { return fs::exists(path / "config.json"); }

void check_is_something(const fs::path& path) {
  if (!fs::exists(path)) {
    throw ConfigError(fmt::format("{} does not exist", path.string()),
                      "give the folder of a run, of one of its checkpoints, or of a Hugging Face model");
  }
  if (!is_published(path) && !fs::exists(path / formats::kRecipeFile)) {
    throw ConfigError(
        fmt::format("{} holds no model: there is neither a config.json nor a {}", path.string(), formats::kRecipeFile),
        "give the folder of a run, of one of its checkpoints, or of a Hugging Face model");
  }
}

/// The run's folder of a checkpoint at RUN/checkpoints/step-N.
RunFolder run_of(const fs::path& checkpoint) {
  return {fs::absolute(checkpoint).lexically_normal().parent_path().parent_path()};
}

OpenedModel open_published(const fs::path& path, const OpenOptions& options) {
  const formats::HfDirectory directory(path);
  OpenedModel opened{.what = path.string()};
  opened.model = models::load_published(
      directory, {.precision = options.precision, .build = options.build, .shape = options.shape});
  if (fs::exists(path / "tokenizer.json")) opened.tokenizer = (path / "tokenizer.json").string();
  return opened;
}

}  // namespace

spec::ModelShape stored_shape(const fs::path& path) {
  check_is_something(path);
  if (is_published(path)) {
    const formats::HfDirectory directory(path);
    return models::format_of(directory.config()).read_config(directory.config());
  }
  if (const auto shape = spec::shape_of(read_run_recipe(path).model)) return *shape;
  throw ConfigError(fmt::format("the recipe in {} has no model", path.string()));
}

OpenedModel open_model(const fs::path& path, const OpenOptions& options) {
  check_is_something(path);
  if (is_published(path)) return open_published(path, options);
  const formats::CheckpointFolder stored = open_checkpoint(path);
  OpenedModel opened{.what = fmt::format("step {} of {}", stored.manifest().step, path.string())};
  opened.recipe = read_run_recipe(stored.path());
  const auto shape = options.shape ? options.shape : spec::shape_of(opened.recipe->model);
  if (!shape) throw ConfigError(fmt::format("the recipe in {} has no model", stored.path().string()));
  opened.model = models::build(*shape, options.build);
  nn::allocate(opened.model->params, options.precision);
  nn::State state;
  nn::add_params(state, opened.model->params);
  load(stored, state, What::kWeights);
  for (nn::Param& param : opened.model->params) nn::publish(param);
  const RunFolder run = run_of(stored.path());
  if (fs::exists(run.tokenizer())) {
    opened.tokenizer = run.tokenizer().string();
  } else {
    opened.tokenizer = opened.recipe->data.tokenizer;
  }
  return opened;
}

}  // namespace trireme::checkpoint
