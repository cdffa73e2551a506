// bench/gpt_recipe.h -- a small GPT-2 under AdamW on made-up tokens, as a recipe: what benchmarks of training run.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>

#include "trireme/spec/recipe.h"

namespace trireme::bench {

struct GptSize {
  std::int64_t num_layers = 4, hidden_size = 256, seq_len = 256, vocab_size = 256;
  std::int64_t num_heads() const { return hidden_size / 64; }
  std::string text() const { return fmt::format("{}x{}, sequence {}", num_layers, hidden_size, seq_len); }
};

/// One step takes `rows` sequences, of all ranks.
inline spec::Recipe gpt_recipe(const GptSize& size, spec::Precision precision, std::int64_t rows) {
  spec::Recipe recipe;
  recipe.model.family = spec::Family::kGpt2;
  recipe.model.num_layers = size.num_layers;
  recipe.model.hidden_size = size.hidden_size;
  recipe.model.num_heads = recipe.model.num_kv_heads = size.num_heads();
  recipe.model.head_dim = size.hidden_size / size.num_heads();
  recipe.model.ffn_size = 4 * size.hidden_size;
  recipe.model.max_seq_len = size.seq_len;
  recipe.model.vocab_size = size.vocab_size;
  recipe.data.seq_len = size.seq_len;
  recipe.data.synthetic.kind = spec::SyntheticKind::kCopy;
  recipe.data.synthetic.vocab_size = size.vocab_size - 6;  // and its special tokens
  recipe.batch.global_batch_tokens = rows * size.seq_len;
  recipe.optim.weight_decay = 0.1;
  recipe.optim.beta2 = 0.95;
  recipe.train.steps = 1'000'000;
  recipe.precision.compute = precision;
  return recipe;
}

inline const char* name_of(spec::Precision precision) { return precision == spec::Precision::kBf16 ? "bf16" : "fp32"; }

}  // namespace trireme::bench
