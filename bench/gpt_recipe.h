// bench/gpt_recipe.h -- a small GPT-2 under AdamW on made-up tokens, as a recipe: what benchmarks of training run.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>

#include "trireme/spec/recipe.h"

namespace trireme::bench {

struct GptSize {
  std::int64_t layers = 4, width = 256, sequence = 256, vocabulary = 256;
  std::int64_t heads() const { return width / 64; }
  std::string text() const { return fmt::format("{}x{}, sequence {}", layers, width, sequence); }
};

/// One step takes `rows` sequences, of all ranks.
inline spec::Recipe gpt_recipe(const GptSize& size, spec::Precision precision, std::int64_t rows) {
  spec::Recipe recipe;
  recipe.model.family = spec::Family::kGpt2;
  recipe.model.layers = size.layers;
  recipe.model.width = size.width;
  recipe.model.heads = recipe.model.kv_heads = size.heads();
  recipe.model.head_size = size.width / size.heads();
  recipe.model.inner = 4 * size.width;
  recipe.model.positions = size.sequence;
  recipe.model.vocabulary = size.vocabulary;
  recipe.data.sequence = size.sequence;
  recipe.data.synthetic.kind = spec::SyntheticKind::kCopy;
  recipe.data.synthetic.vocabulary = size.vocabulary - 6;  // and its special tokens
  recipe.batch.size = rows * size.sequence;
  recipe.optim.weight_decay = 0.1;
  recipe.optim.beta2 = 0.95;
  recipe.train.steps = 1'000'000;
  recipe.precision.compute = precision;
  return recipe;
}

inline const char* name_of(spec::Precision precision) { return precision == spec::Precision::kBf16 ? "bf16" : "fp32"; }

}  // namespace trireme::bench
