#include "trireme/cli/plan/check_files.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/cli/runtime_commands.h"
#include "trireme/data/open_samples.h"
#include "trireme/data/tokenizer/tokenizer.h"
#include "trireme/data/vocab_size.h"
#include "trireme/spec/parameters.h"

namespace trireme::cli {
namespace {

using Problems = std::vector<config::Problem>;

/// Runs `open`; what it throws is a problem of `key`. Whether it could be opened.
template <typename Open>
bool try_to_open(const char* key, Problems& problems, const Open& open) {
  try {
    open();
    return true;
  } catch (const Error& error) {
    problems.push_back({.key = key, .reason = error.message(), .hint = error.hint(), .where = {}});
    return false;
  }
}

/// Patterns of published names are known to the rooms with tensors only.
bool freezes_by_other_names(const spec::Recipe& recipe, const spec::ModelShape& shape) {
  if (recipe.train.freeze.empty()) return false;
  const std::vector<spec::ParameterShape> ours = spec::list_parameters(shape);
  return !std::ranges::all_of(recipe.train.freeze, [&](const std::string& pattern) {
    return std::ranges::any_of(ours, [&](const auto& parameter) { return spec::matches(pattern, parameter.name); });
  });
}

}  // namespace

OpenedFiles open_files(const spec::Recipe& given) {
  spec::Recipe recipe = given;
  OpenedFiles opened;
  if (recipe.model.init_from) {
    spec::Recipe weights = given;
    weights.train.freeze.clear();  // a problem of its own, as is the teacher
    weights.distill = {};
    const auto open = [&] { opened.shape = load_train().shape(weights); };
    if (!try_to_open("model.init_from", opened.problems, open)) return opened;
  }
  const auto open_tokenizer = [&] {
    if (recipe.data.tokenizer) data::load_tokenizer(*recipe.data.tokenizer);
  };
  const auto open_training = [&] {  // in the order of a run: data::settle_vocab_size() may say how large the model is
    if (opened.shape) {
      data::check_vocab_size(recipe, *opened.shape);
      recipe.model = spec::resolved(spec::config_of(*opened.shape));
    } else {
      data::settle_vocab_size(recipe);
    }
    data::open_samples(recipe, data::Split::kTrain);
  };
  const char* key = spec::has_data(recipe.data) ? "data.sources" : "data";
  // Data is held against its tokenizer, and would only repeat what is wrong with that.
  if (try_to_open("data.tokenizer", opened.problems, open_tokenizer) &&
      try_to_open(key, opened.problems, open_training) && recipe.eval.every > 0) {
    try_to_open("data.validation", opened.problems, [&] { data::open_samples(recipe, data::Split::kValidation); });
  }
  if (!opened.shape) opened.shape = spec::shape_of(recipe.model);
  if (opened.shape && recipe.distill.used()) {  // with the vocabulary that the data has
    spec::Recipe taught = recipe;
    taught.model = spec::resolved(spec::config_of(*opened.shape));
    taught.train.freeze.clear();
    try_to_open("distill.teacher", opened.problems, [&] { load_train().shape(taught); });
  }
  if (opened.shape && freezes_by_other_names(given, *opened.shape)) {
    try_to_open("train.freeze", opened.problems, [&] { load_train().shape(given); });
  }
  return opened;
}

}  // namespace trireme::cli
