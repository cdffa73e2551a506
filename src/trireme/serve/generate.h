// serve/generate.h -- continues token lists with a model, one token at a time, earlier keys and values kept.
//
// Depends on: base, models.
#pragma once

#include <functional>
#include <span>

#include "trireme/base/random.h"
#include "trireme/models/model.h"
#include "trireme/serve/commands.h"

namespace trireme::serve {

struct Sampling {
  double temperature = 0;
  std::int64_t top_k = 0;
  double top_p = 1;
};

/// Draws a token from logits with one number in [0, 1). Temperature 0, or top_k 1: the likeliest, the lowest number of
/// equals.
std::int64_t sample(std::span<const float> logits, const Sampling& sampling, double draw);

/// What a model adds to one prompt. The draw for the n-th new token is a function of (seed, sequence, n) alone.
std::vector<std::int64_t> continue_prompt(models::Model& model, const std::vector<std::int64_t>& prompt,
                                          std::size_t sequence, const GenerateRequest& request);

TokenLists generate(const GenerateRequest& request);

}  // namespace trireme::serve
