#include "trireme/train/convert.h"

#include <fmt/format.h>

#include "trireme/base/error.h"
#include "trireme/checkpoint/open_model.h"
#include "trireme/checkpoint/store.h"
#include "trireme/formats/hf_directory.h"
#include "trireme/models/published.h"

namespace trireme::train {
namespace {

namespace fs = std::filesystem;

formats::Dtype dtype_of(const std::string& name) {
  const auto dtype = formats::parse_dtype(name);
  if (dtype == formats::Dtype::kF32 || dtype == formats::Dtype::kBF16 || dtype == formats::Dtype::kF16) return *dtype;
  throw ConfigError(fmt::format("\"{}\" is no type that weights are published in", name), "use F32, BF16 or F16");
}

std::int64_t write_published(checkpoint::OpenedModel& opened, const ConvertRequest& request) {
  models::save_published(*opened.model, request.to, dtype_of(request.dtype));
  if (opened.tokenizer && fs::exists(*opened.tokenizer)) {
    fs::copy_file(*opened.tokenizer, request.to / "tokenizer.json", fs::copy_options::overwrite_existing);
  }
  return static_cast<std::int64_t>(formats::HfDirectory(request.to).tensors().size());
}

/// Weights alone, at step 0, with a recipe that holds the model: what model.init_from, eval and generate take.
std::int64_t write_checkpoint(checkpoint::OpenedModel& opened, const ConvertRequest& request) {
  spec::Recipe recipe = opened.recipe.value_or(spec::Recipe{});
  recipe.model = spec::resolved(spec::config_of(opened.model->shape));
  if (opened.tokenizer) recipe.data.tokenizer = fs::absolute(*opened.tokenizer).string();
  nn::State state;
  nn::add_params(state, opened.model->params);
  const fs::path to = fs::absolute(request.to).lexically_normal();
  checkpoint::save(state, {.folder = to.parent_path(),
                           .name = to.filename().string(),
                           .files = {{std::string(formats::kRecipeFile), config::to_toml(recipe)}}});
  return static_cast<std::int64_t>(state.tensors().size());
}

}  // namespace

ConvertResult convert(const ConvertRequest& request) {
  if (fs::exists(request.to)) {
    throw ConfigError(fmt::format("{} is already there", request.to.string()), "give another name, or remove it");
  }
  dtype_of(request.dtype);
  checkpoint::OpenedModel opened = checkpoint::open_model(request.from, {});
  ConvertResult result{.parameters = opened.model->params.elements()};
  result.tensors = request.kind == ConvertRequest::Kind::kHuggingFace ? write_published(opened, request)
                                                                      : write_checkpoint(opened, request);
  return result;
}

}  // namespace trireme::train
