// serve/sampler.h -- from logits to a token: penalties, temperature, top-k, top-p, min-p, and Gumbel noise.
//
//   const Draws draws(seed, /*choice=*/0);
//   const std::int64_t token = sample(logits, params, draws.noise(token_number));
//
// Plain functions of their arguments: a token depends on the logits, the parameters, the tokens before it and
// (seed, choice, token number), whatever else is generated at the time. The token is the one whose logit over the
// temperature plus noise is largest. Each token of the vocabulary has noise of its own, so that a draft model whose
// distribution q is near the model's p draws the same token with the same noise: with a probability of at least
// (1 - d) / (1 + d), where d is their total variation. One number through both inverse distribution functions agrees
// far less often, since every difference shifts all tokens behind it.
// Depends on: base.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <unordered_map>
#include <vector>

#include "trireme/base/random.h"

namespace trireme::serve {

struct SamplingParams {
  double temperature = 0;  ///< 0: the likeliest, the lowest number of equals
  std::int64_t top_k = 0;  ///< only among this many likeliest; 0: all
  double top_p = 1;        ///< only among the fewest likeliest that together have this probability
  double min_p = 0;        ///< only tokens with at least this share of the likeliest one's probability
  /// OpenAI's, of generated tokens: subtracted once, and as often as the token was generated.
  double presence_penalty = 0, frequency_penalty = 0;
  /// Hugging Face's, of prompt and generated tokens: positive logits are divided by it, negative ones multiplied.
  double repetition_penalty = 1;
  std::map<std::int64_t, double> logit_bias = {};  ///< added to a token's logit, after the penalties
  std::uint64_t seed = 0;

  bool changes_logits() const {
    return presence_penalty != 0 || frequency_penalty != 0 || repetition_penalty != 1 || !logit_bias.empty();
  }
  bool operator==(const SamplingParams&) const = default;
};

/// How often tokens stood in the prompt and among the generated ones, for penalties.
class TokenCounts {
 public:
  void add_prompt(std::span<const std::int64_t> tokens);
  void add_generated(std::int64_t token) { ++counts_[token].generated; }
  struct Count {
    std::int64_t prompt = 0, generated = 0;
  };
  const std::unordered_map<std::int64_t, Count>& counts() const { return counts_; }

 private:
  std::unordered_map<std::int64_t, Count> counts_;
};

/// The noise of one draw: a number for each token of the vocabulary, by a counter. Borrows the stream.
class TokenNoise {
 public:
  TokenNoise(const Random& random, std::uint64_t token_number) : random_(&random), first_(token_number << 32) {}
  /// In [0, 1). Of many tokens in a row at several times the speed.
  double uniform(std::int64_t token) const { return random_->uniform(first_ + static_cast<std::uint64_t>(token)); }
  void fill_uniform(std::size_t first_token, std::span<double> out) const {
    random_->fill_uniform(first_ + first_token, out);
  }

 private:
  const Random* random_;
  std::uint64_t first_;
};

/// The numbers that a sequence's tokens are drawn with: a function of seed, choice (0, 1, ... of one prompt) and token.
class Draws {
 public:
  Draws(std::uint64_t seed, std::uint64_t choice);
  TokenNoise noise(std::uint64_t token_number) const { return {random_, token_number}; }
  /// The rejection rule's own: what a draft is drawn with, whether it is accepted, and what stands in its place.
  double draft(std::uint64_t token_number) const { return draft_.uniform(token_number); }
  double accept(std::uint64_t token_number) const { return accept_.uniform(token_number); }
  double residual(std::uint64_t token_number) const { return residual_.uniform(token_number); }

 private:
  Random random_, draft_, accept_, residual_;
};

/// Penalties and biases, in float.
void adjust(std::span<float> logits, const SamplingParams& params, const TokenCounts& counts);
/// Draws a token from logits that are adjusted already.
std::int64_t sample(std::span<const float> logits, const SamplingParams& params, const TokenNoise& noise);

/// What sample() draws from: tokens in the order of their numbers, with probabilities above 0 that add up to 1.
struct Distribution {
  std::vector<std::int64_t> tokens = {};
  std::vector<double> probabilities = {};
  double of(std::int64_t token) const;  ///< 0: none of them
  std::int64_t draw(double number) const;
};
Distribution distribution_of(std::span<const float> logits, const SamplingParams& params);

struct TokenLogprob {
  std::int64_t token = 0;
  double logprob = 0;
};
/// Natural logarithms of the softmax of the model's own logits: of `token`, and of the `top` likeliest in falling
/// order.
struct Logprobs {
  TokenLogprob chosen = {};
  std::vector<TokenLogprob> top = {};
};
Logprobs logprobs_of(std::span<const float> logits, std::int64_t token, std::size_t top);

/// False where no token can be drawn: a NaN, or nothing above minus infinity.
bool can_sample(std::span<const float> logits);

}  // namespace trireme::serve
