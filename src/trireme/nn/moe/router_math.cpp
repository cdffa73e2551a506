#include "trireme/nn/moe/router_math.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>

namespace trireme::nn::moe {

void top_k(std::span<const double> scores, std::int64_t k, std::vector<std::int32_t>& out) {
  out.resize(scores.size());
  std::iota(out.begin(), out.end(), 0);
  const auto kept = std::min<std::int64_t>(k, static_cast<std::int64_t>(scores.size()));
  std::partial_sort(out.begin(), out.begin() + kept, out.end(), [&](std::int32_t a, std::int32_t b) {
    const double left = scores[static_cast<std::size_t>(a)], right = scores[static_cast<std::size_t>(b)];
    return left != right ? left > right : a < b;
  });
  out.resize(static_cast<std::size_t>(kept));
}

std::vector<std::int32_t> top_k(std::span<const double> scores, std::int64_t k) {
  std::vector<std::int32_t> out;
  top_k(scores, k, out);
  return out;
}

std::vector<std::int32_t> top_tokens(std::span<const double> scores, std::int64_t experts, std::int64_t expert,
                                     std::int64_t k) {
  std::vector<double> column(scores.size() / static_cast<std::size_t>(experts));
  for (std::size_t token = 0; token < column.size(); ++token) {
    column[token] =
        static_cast<float>(scores[token * static_cast<std::size_t>(experts) + static_cast<std::size_t>(expert)]);
  }
  return top_k(column, k);
}

double softmax(std::span<const double> x, std::span<double> p) {
  double largest = -std::numeric_limits<double>::infinity(), sum = 0;
  for (const double value : x) largest = std::max(largest, value);
  for (std::size_t i = 0; i < x.size(); ++i) sum += p[i] = std::exp(x[i] - largest);
  for (double& value : p) value /= sum;
  return largest + std::log(sum);
}

void add_softmax_gradient(std::span<const double> p, std::span<const double> grad_p, std::span<double> grad_x) {
  double dot = 0;
  for (std::size_t i = 0; i < p.size(); ++i) dot += p[i] * grad_p[i];
  for (std::size_t i = 0; i < p.size(); ++i) grad_x[i] += p[i] * (grad_p[i] - dot);
}

double sigmoid(double x) { return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x)); }

double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

double cv_squared(std::span<const double> values) {
  const double count = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  if (mean == 0) return 0;
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return squares / count / (mean * mean);
}

std::vector<double> cv_squared_gradient(std::span<const double> values) {
  const double count = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count, cv = cv_squared(values);
  std::vector<double> gradient(values.size(), 0);
  if (mean == 0) return gradient;
  for (std::size_t i = 0; i < values.size(); ++i) {
    gradient[i] = 2 / (count * mean) * ((values[i] - mean) / mean - cv);
  }
  return gradient;
}

std::int64_t expert_capacity(std::int64_t tokens, std::int64_t choices, std::int64_t experts, double factor) {
  const double even = static_cast<double>(choices * tokens) / static_cast<double>(experts);
  // 1.1 * 10 is above 11 in binary: what is whole on paper stays whole.
  return std::min(tokens, static_cast<std::int64_t>(std::ceil(even * factor * (1 - 1e-12))));
}

void drop_above_capacity(Routing& routing, std::int64_t experts, std::int64_t capacity) {
  std::vector<std::int64_t> taken(static_cast<std::size_t>(experts), 0);
  const std::int64_t tokens = routing.tokens();
  for (std::int64_t rank = 0, found = 1; found > 0; ++rank) {
    found = 0;
    for (std::int64_t token = 0; token < tokens; ++token) {
      const std::int64_t at = routing.first[static_cast<std::size_t>(token)] + rank;
      if (at >= routing.first[static_cast<std::size_t>(token) + 1]) continue;
      ++found;
      Choice& choice = routing.choices[static_cast<std::size_t>(at)];
      if (!choice.kept) continue;
      std::int64_t& of_expert = taken[static_cast<std::size_t>(choice.expert)];
      choice.kept = of_expert < capacity;
      of_expert += choice.kept;
    }
  }
}

double balance(std::span<const std::int64_t> counts, std::span<const double> probabilities) {
  const auto experts = static_cast<std::int64_t>(counts.size());
  const std::int64_t total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  const std::int64_t tokens = static_cast<std::int64_t>(probabilities.size()) / experts;
  if (total == 0 || tokens == 0) return 0;
  std::vector<double> sums(counts.size(), 0);
  for (std::int64_t token = 0; token < tokens; ++token) {
    const auto row = row_of(probabilities, token, experts);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += row[i];
  }
  double sum = 0;
  for (std::size_t i = 0; i < sums.size(); ++i) sum += static_cast<double>(counts[i]) * sums[i];
  return sum / (static_cast<double>(total) * static_cast<double>(tokens));
}

void set_choices(Routing& routing, std::int64_t tokens, std::vector<TakenToken> taken) {
  std::ranges::sort(taken, {}, [](const TakenToken& t) { return std::tuple(t.token, -t.gate, t.expert); });
  routing.first.assign(static_cast<std::size_t>(tokens) + 1, 0);
  routing.choices.clear();
  for (const TakenToken& one : taken) {
    ++routing.first[static_cast<std::size_t>(one.token) + 1];
    routing.choices.push_back({.expert = one.expert, .gate = one.gate});
  }
  std::partial_sum(routing.first.begin(), routing.first.end(), routing.first.begin());
}

}  // namespace trireme::nn::moe
