#include "trireme/serve/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "trireme/base/random_math.h"

namespace trireme::serve {
namespace {

using Ids = std::vector<std::int32_t>;

/// Orders by falling logit, equal ones by number: the same on every machine.
struct Likelier {
  std::span<const float> logits;
  bool operator()(std::int32_t a, std::int32_t b) const {
    const float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  }
};

/// The `count` likeliest, in falling order; all where there are fewer.
Ids likeliest(std::span<const float> logits, std::size_t count) {
  Ids ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  count = std::min(count, ids.size());
  const auto middle = ids.begin() + static_cast<std::ptrdiff_t>(count);
  if (count < ids.size()) std::nth_element(ids.begin(), middle, ids.end(), Likelier{logits});
  std::sort(ids.begin(), middle, Likelier{logits});
  ids.resize(count);
  return ids;
}

struct Weights {
  std::span<const float> logits;
  double top, temperature;
  double of(std::int32_t id) const {
    return std::exp((static_cast<double>(logits[static_cast<std::size_t>(id)]) - top) / temperature);
  }
};

/// Of `order`, the fewest first ones that have `share` of `total`; those above `least`, of which there is at least one.
/// Returns how many, and their sum; 0 where `order` ends before the share is reached.
struct Nucleus {
  std::size_t kept = 0;
  double mass = 0;
  bool whole = false;
};
Nucleus nucleus_of(const Ids& order, const Weights& weights, double wanted, double least) {
  Nucleus out;
  for (const std::int32_t id : order) {
    const double weight = weights.of(id);
    if (out.kept > 0 && (out.mass >= wanted || weight < least)) {
      out.whole = true;
      return out;
    }
    out.mass += weight;
    ++out.kept;
  }
  out.whole = out.mass >= wanted;
  return out;
}

/// The token whose logit over the temperature plus Gumbel noise is largest, of those that are offered. Logits are taken
/// off the largest one first. By exactly rounded operations alone, so that all machines draw alike.
class LargestNoisy {
 public:
  LargestNoisy(std::span<const float> logits, double top, double temperature)
      : logits_(logits), top_(top), temperature_(temperature) {}

  void offer(std::int64_t token, double uniform) {
    const double score = scaled(logits_[static_cast<std::size_t>(token)]) - random_math::log(exponential(uniform));
    if (score > score_ || (score == score_ && token < token_)) score_ = score, token_ = token;
  }
  /// Below it a uniform's distance to 1 must be, for a token with this logit to win. What is exponential is no smaller
  /// than that distance, which saves two logarithms for nearly every token. With room for the rounding of exp().
  double within(float logit) const { return std::exp(scaled(logit) - score_) * (1 + 1e-9); }
  std::int64_t token() const { return token_; }

 private:
  static double exponential(double uniform) { return -random_math::log(std::max(uniform, 0x1p-54)); }
  double scaled(float logit) const { return (static_cast<double>(logit) - top_) / temperature_; }

  std::span<const float> logits_;
  double top_, temperature_;
  double score_ = -std::numeric_limits<double>::infinity();
  std::int64_t token_ = std::numeric_limits<std::int64_t>::max();
};

std::int64_t draw_from_all(std::span<const float> logits, LargestNoisy largest, const TokenNoise& noise) {
  constexpr std::size_t kBlock = 256;
  std::array<double, kBlock> uniforms;
  for (std::size_t first = 0; first < logits.size(); first += kBlock) {
    const std::span<const float> block = logits.subspan(first, std::min(kBlock, logits.size() - first));
    noise.fill_uniform(first, std::span(uniforms).first(block.size()));
    const double within = largest.within(*std::ranges::max_element(block));
    for (std::size_t i = 0; i < block.size(); ++i)
      if (1 - uniforms[i] < within) largest.offer(static_cast<std::int64_t>(first + i), uniforms[i]);
  }
  return largest.token();
}

std::size_t most_candidates(std::span<const float> logits, const SamplingParams& params) {
  return params.top_k > 0 ? std::min(logits.size(), static_cast<std::size_t>(params.top_k)) : logits.size();
}

/// Nothing is left out, so nothing need be sorted.
bool draws_from_all(std::span<const float> logits, const SamplingParams& params) {
  return most_candidates(logits, params) == logits.size() && params.top_p >= 1 && params.min_p <= 0;
}

/// What top-k, top-p and min-p leave: the first `nucleus.kept` of `order`.
struct Candidates {
  Ids order;
  Nucleus nucleus;
};
Candidates likeliest_candidates(std::span<const float> logits, const SamplingParams& params, const Weights& weights) {
  const std::size_t candidates = most_candidates(logits, params);
  double total = 0;  // of the candidates
  Ids order;
  if (candidates < logits.size()) {
    order = likeliest(logits, candidates);
    for (const std::int32_t id : order) total += weights.of(id);
  } else {
    for (std::size_t id = 0; id < logits.size(); ++id) total += weights.of(static_cast<std::int32_t>(id));
    order = likeliest(logits, 256);  // a nucleus is small as a rule
  }
  // top_p = 1 asks for all; the sum of rounded weights in another order may fall a little short of it.
  const double wanted = params.top_p >= 1 ? std::numeric_limits<double>::infinity() : params.top_p * total;
  Nucleus nucleus = nucleus_of(order, weights, wanted, params.min_p);
  while (!nucleus.whole && order.size() < candidates) {
    order = likeliest(logits, std::min(candidates, order.size() * 16));
    nucleus = nucleus_of(order, weights, wanted, params.min_p);
  }
  return {std::move(order), nucleus};
}

}  // namespace

void TokenCounts::add_prompt(std::span<const std::int64_t> tokens) {
  for (const std::int64_t token : tokens) ++counts_[token].prompt;
}

Draws::Draws(std::uint64_t seed, std::uint64_t choice)
    : random_(seed, fmt::format("generate/sequence {}", choice)),
      draft_(seed, fmt::format("generate/sequence {}/draft", choice)),
      accept_(seed, fmt::format("generate/sequence {}/accept", choice)),
      residual_(seed, fmt::format("generate/sequence {}/residual", choice)) {}

void adjust(std::span<float> logits, const SamplingParams& params, const TokenCounts& counts) {
  const auto repeat = static_cast<float>(params.repetition_penalty);
  for (const auto& [token, count] : counts.counts()) {
    float& logit = logits[static_cast<std::size_t>(token)];
    if (repeat != 1) logit = logit > 0 ? logit / repeat : logit * repeat;
    if (count.generated == 0) continue;
    logit -= static_cast<float>(params.presence_penalty) +
             static_cast<float>(params.frequency_penalty) * static_cast<float>(count.generated);
  }
  for (const auto& [token, bias] : params.logit_bias)
    logits[static_cast<std::size_t>(token)] += static_cast<float>(bias);
}

bool can_sample(std::span<const float> logits) {
  float top = -std::numeric_limits<float>::infinity();
  bool number = true;
  for (const float logit : logits) {
    number &= !std::isnan(logit);
    top = std::max(top, logit);
  }
  return number && top > -std::numeric_limits<float>::infinity() && top < std::numeric_limits<float>::infinity();
}

std::int64_t sample(std::span<const float> logits, const SamplingParams& params, const TokenNoise& noise) {
  const auto best = std::max_element(logits.begin(), logits.end());
  if (params.temperature <= 0 || params.top_k == 1) return best - logits.begin();
  LargestNoisy largest(logits, *best, params.temperature);
  if (draws_from_all(logits, params)) return draw_from_all(logits, largest, noise);
  const Candidates some = likeliest_candidates(logits, params, {logits, *best, params.temperature});
  for (std::size_t i = 0; i < some.nucleus.kept; ++i) largest.offer(some.order[i], noise.uniform(some.order[i]));
  return largest.token();
}

double Distribution::of(std::int64_t token) const {
  const auto found = std::ranges::lower_bound(tokens, token);
  if (found == tokens.end() || *found != token) return 0;
  return probabilities[static_cast<std::size_t>(found - tokens.begin())];
}

std::int64_t Distribution::draw(double number) const {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    number -= probabilities[i];
    if (number < 0) return tokens[i];
  }
  return tokens.back();  // rounding left a little at the end
}

Distribution distribution_of(std::span<const float> logits, const SamplingParams& params) {
  const auto best = std::max_element(logits.begin(), logits.end());
  if (params.temperature <= 0 || params.top_k == 1) return {{best - logits.begin()}, {1.0}};
  const Weights weights{logits, *best, params.temperature};
  Ids ids;
  if (draws_from_all(logits, params)) {
    ids.resize(logits.size());
    std::iota(ids.begin(), ids.end(), 0);
  } else {
    Candidates some = likeliest_candidates(logits, params, weights);
    some.order.resize(some.nucleus.kept);
    std::ranges::sort(some.order);
    ids = std::move(some.order);
  }
  Distribution out;
  double total = 0;
  for (const std::int32_t id : ids) {
    const double weight = weights.of(id);
    if (weight <= 0) continue;
    out.tokens.push_back(id);
    out.probabilities.push_back(weight);
    total += weight;
  }
  for (double& probability : out.probabilities) probability /= total;
  return out;
}

Logprobs logprobs_of(std::span<const float> logits, std::int64_t token, std::size_t top) {
  const double best = *std::max_element(logits.begin(), logits.end());
  double total = 0;
  for (const float logit : logits) total += std::exp(static_cast<double>(logit) - best);
  const double norm = best + std::log(total);
  const auto of = [&](std::int64_t id) {
    return TokenLogprob{id, static_cast<double>(logits[static_cast<std::size_t>(id)]) - norm};
  };
  Logprobs out{.chosen = of(token)};
  if (top == 0) return out;
  for (const std::int32_t id : likeliest(logits, top)) out.top.push_back(of(id));
  return out;
}

}  // namespace trireme::serve
