// data/vocab_size.h -- how many token ids the data of a recipe has, and whether the model has a row for each.
//
//   if (const auto found = vocab_size_of(recipe)) recipe.model.vocab_size = found->padded();
//
// Depends on: base, spec, token_file, tokenizer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "trireme/spec/recipe.h"

namespace trireme::data {

struct VocabSize {
  std::int64_t tokens = 0;    ///< every id is below this
  std::string source;         ///< who says so, for people: "text/tokenizer.json"
  std::int64_t multiple = 1;  ///< rows are rounded up to this, so that GEMMs have even sizes
  std::int64_t padded() const { return (tokens + multiple - 1) / multiple * multiple; }
};

/// What data.tokenizer ("bytes": the files), else the files, or the synthetic task say; nothing where none does, as
/// with llm.c's files. Opens what it asks.
std::optional<VocabSize> vocab_size_of(const spec::Recipe& recipe);

/// Sets model.vocab_size where a family is given without it; gives a sentence that says so, empty where nothing was
/// set. ConfigError when the model that is given has fewer rows than there are tokens, a warning when it has far more.
std::string settle_vocab_size(spec::Recipe& recipe);
/// The same for a shape that comes from elsewhere: model.init_from.
void check_vocab_size(const spec::Recipe& recipe, const spec::ModelShape& shape);

}  // namespace trireme::data
