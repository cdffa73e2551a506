#include "trireme/checkpoint/open_model.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "trireme/base/error.h"
#include "trireme/checkpoint/run_folder.h"
#include "trireme/checkpoint/stored_weights.h"
#include "trireme/checkpoint/weight_memory.h"
#include "trireme/models/published.h"
#include "trireme/models/quantised_tensors.h"

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

}  // namespace

spec::ModelShape stored_shape(const fs::path& path) {
  check_is_something(path);
  if (is_published(path)) return models::read_shape(formats::HfDirectory(path));
  if (const auto shape = spec::shape_of(read_run_recipe(path).model)) return *shape;
  throw ConfigError(fmt::format("the recipe in {} has no model", path.string()));
}

bool is_quantised(const fs::path& path) {
  return is_published(path) && models::quantised_format(formats::read_hf_config(path / "config.json")).has_value();
}

OpenedModel open_model(const fs::path& path, const OpenOptions& options) {
  const auto weights = std::make_shared<const StoredWeights>(path, options.shape);  // shared: with who reads the rest
  OpenedModel opened{.model = models::build(weights->model().shape, options.build),
                     .recipe = weights->recipe(),
                     .tokenizer = weights->tokenizer(),
                     .what = weights->what(),
                     .weights = weights};
  if (!options.masters) {
    for (nn::Param& param : opened.model->params) param.has_master = false;
  }
  for (nn::Param& param : opened.model->params) {
    if (!options.left_out || !options.left_out(param)) continue;
    const at::TensorOptions there = at::TensorOptions().device(options.device);
    param.master = at::empty({0}, there.dtype(nn::master_type(options.precision, param)));
    param.value = at::empty({0}, there.dtype(nn::compute_type(options.precision)));
  }
  allocate_in_huge_pages(opened.model->params, options.precision, options.device);
  nn::allocate(opened.model->params, options.precision, options.device);
  weights->fill(opened.model->params);
  weights->fill(opened.model->balance);
  return opened;
}

}  // namespace trireme::checkpoint
