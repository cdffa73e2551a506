// serve/generate.h -- continues token lists with a model: prefill in chunks, then decode token by token over a KV
// cache.
//
// Depends on: base, comm, models, parallel.
#pragma once

#include <functional>
#include <span>

#include "trireme/comm/group.h"
#include "trireme/models/model.h"
#include "trireme/serve/commands.h"

namespace trireme::serve {

/// A ConfigError for a token outside the vocabulary: a GPU would read beside its table.
void check_tokens(std::span<const std::int64_t> tokens, const spec::ModelShape& shape);

struct Sampling {
  double temperature = 0;
  std::int64_t top_k = 0;
  double top_p = 1;
};

/// Draws a token from logits with one number in [0, 1). Temperature 0, or top_k 1: the likeliest, the lowest number of
/// equals.
std::int64_t sample(std::span<const float> logits, const Sampling& sampling, double draw);

/// Tokens of a prompt that go through the model at once: what a KV cache of sliding windows holds beside the window.
inline constexpr std::int64_t kPrefillChunk = 512;

/// What a model adds to one prompt. The draw for the n-th new token is a function of (seed, sequence, n) alone.
std::vector<std::int64_t> continue_prompt(models::Model& model, const std::vector<std::int64_t>& prompt,
                                          std::size_t sequence, const GenerateRequest& request);

/// By all ranks of `world`, which hold the model together. A ProblemsError where the model cannot be split over so
/// many.
TokenLists generate(const GenerateRequest& request, comm::Group& world);

}  // namespace trireme::serve
