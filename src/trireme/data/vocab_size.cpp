#include "trireme/data/vocab_size.h"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/data/open_samples.h"
#include "trireme/data/token_file.h"
#include "trireme/data/tokenizer/tokenizer.h"

namespace trireme::data {
namespace {

constexpr std::int64_t kVocabMultiple = 64;

void check_rows(const VocabSize& found, std::int64_t rows, bool loaded) {
  if (rows >= found.tokens) {
    if (found.multiple > 1 && rows > 2 * found.padded()) {
      log_warn("model.vocab_size = {} is more than twice the {} tokens of {}: the other rows are never used", rows,
               found.tokens, found.source);
    }
    return;
  }
  throw ConfigError(
      fmt::format("{} has {} tokens, but model.vocab_size = {}", found.source, found.tokens, rows),
      loaded ? fmt::format("set model.vocab_size = {} and model.init_resize_vocab = true, or name the model's own "
                           "tokenizer",
                           found.padded())
             : fmt::format("set model.vocab_size = {}, or leave it out", found.padded()));
}

}  // namespace

std::optional<VocabSize> vocab_size_of(const spec::Recipe& recipe) {
  const spec::DataConfig& data = recipe.data;
  if (data.synthetic.kind) {
    return VocabSize{.tokens = spec::synthetic_tokens(data.synthetic, spec::task_of(data, recipe.model)),
                     .source = "data.synthetic"};
  }
  const bool bytes = data.tokenizer == "bytes";
  if (data.tokenizer && !bytes) {
    return VocabSize{.tokens = load_tokenizer(*data.tokenizer)->vocab_size(),
                     .source = fmt::format("data.tokenizer = \"{}\"", *data.tokenizer),
                     .multiple = kVocabMultiple};
  }
  VocabSize found{.multiple = kVocabMultiple};
  for (const spec::DataSource& source : data.sources) {
    for (const auto& path : token_paths(source.path)) {
      const std::int64_t tokens = TokenFile(path, {.end_of_text = data.end_of_text}).info().vocab_size;
      if (tokens > found.tokens) found.tokens = tokens, found.source = path.string();
    }
  }
  if (found.tokens == 0 && bytes) {
    found.tokens = Tokenizer::bytes()->vocab_size();
    found.source = "data.tokenizer = \"bytes\"";
  }
  return found.tokens > 0 ? std::optional(found) : std::nullopt;
}

std::string settle_vocab_size(spec::Recipe& recipe) {
  spec::ModelConfig& model = recipe.model;
  if (!model.family || model.init_from) return {};
  const auto found = vocab_size_of(recipe);
  if (model.vocab_size) {
    if (found) check_rows(*found, *model.vocab_size, false);
    return {};
  }
  if (!found) {
    return fmt::format(
        "model.vocab_size = {}, the family's: neither a tokenizer nor the data says how many tokens "
        "there are",
        spec::shape_of(model)->vocab_size);
  }
  model.vocab_size = found->padded();
  return fmt::format("model.vocab_size = {}: {} has {} tokens{}", found->padded(), found->source, found->tokens,
                     found->padded() == found->tokens
                         ? std::string()
                         : fmt::format(", rounded up to a multiple of {}", found->multiple));
}

void check_vocab_size(const spec::Recipe& recipe, const spec::ModelShape& shape) {
  if (const auto found = vocab_size_of(recipe))
    check_rows(*found, shape.vocab_size, recipe.model.init_from.has_value());
}

}  // namespace trireme::data
