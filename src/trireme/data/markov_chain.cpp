#include <algorithm>
#include <cmath>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/data/synthetic.h"

namespace trireme::data {
namespace {

double entropy_term(double probability) { return probability > 0 ? -probability * std::log(probability) : 0; }

}  // namespace

MarkovChain::MarkovChain(std::int64_t vocabulary, std::int64_t order, double sharpness, std::uint64_t seed, double zipf)
    : vocabulary_(vocabulary), order_(order), contexts_(1) {
  for (std::int64_t i = 0; i < order; ++i) contexts_ *= vocabulary;
  const auto size = static_cast<std::size_t>(contexts_ * vocabulary);
  cumulative_.resize(size);
  Random(seed, "synthetic/markov/transitions").fill_normal(0, std::span(cumulative_));
  for (std::int64_t context = 0; context < contexts_; ++context) {
    const std::span row(cumulative_.data() + context * vocabulary, static_cast<std::size_t>(vocabulary));
    for (std::size_t token = 0; token < row.size(); ++token) {
      row[token] = std::exp(sharpness * row[token]);
      if (zipf != 0) row[token] *= std::pow(static_cast<double>(token + 1), -zipf);
    }
    const double total = std::accumulate(row.begin(), row.end(), 0.0);
    double sum = 0;
    for (double& value : row) value = (sum += value / total);
    row.back() = 1;  // whatever the rounding: a uniform number always falls on a token
  }

  // The power method: every transition is possible, so the chain forgets where it began geometrically fast.
  stationary_.assign(static_cast<std::size_t>(contexts_), 1.0 / static_cast<double>(contexts_));
  std::vector<double> next(stationary_.size());
  for (int round = 0; round < 10'000; ++round) {
    std::ranges::fill(next, 0);
    for (std::int64_t context = 0; context < contexts_; ++context) {
      for (std::int64_t token = 0; token < vocabulary; ++token)
        next[static_cast<std::size_t>(next_context(context, token))] +=
            stationary_[static_cast<std::size_t>(context)] * probability(context, token);
    }
    double change = 0;
    for (std::size_t i = 0; i < next.size(); ++i) change += std::abs(next[i] - stationary_[i]);
    std::swap(next, stationary_);
    if (change < 1e-14) break;
  }
  stationary_sums_.resize(stationary_.size());
  std::partial_sum(stationary_.begin(), stationary_.end(), stationary_sums_.begin());
}

double MarkovChain::probability(std::int64_t context, std::int64_t token) const {
  const double* row = cumulative_.data() + context * vocabulary_;
  return token == 0 ? row[0] : row[token] - row[token - 1];
}

std::int64_t MarkovChain::draw_token(std::int64_t context, double uniform) const {
  const double* row = cumulative_.data() + context * vocabulary_;
  return std::upper_bound(row, row + vocabulary_ - 1, uniform) - row;
}

std::int64_t MarkovChain::draw_context(double uniform) const {
  const auto found = std::upper_bound(stationary_sums_.begin(), stationary_sums_.end() - 1, uniform);
  return found - stationary_sums_.begin();
}

double MarkovChain::best_loss(std::int64_t length) const {
  double rate = 0;  // of a token after a whole context
  for (std::int64_t context = 0; context < contexts_; ++context) {
    double row = 0;
    for (std::int64_t token = 0; token < vocabulary_; ++token) row += entropy_term(probability(context, token));
    rate += stationary(context) * row;
  }
  // Token t < order of a row has only t tokens before it: its entropy is that of the first t + 1 tokens of a context
  // less that of the first t.
  double sum = 0, before = 0;
  for (std::int64_t t = 0; t < std::min(order_, length + 1); ++t) {
    std::int64_t group = 1;  // contexts that begin with the same t + 1 tokens lie next to each other
    for (std::int64_t i = t + 1; i < order_; ++i) group *= vocabulary_;
    double entropy = 0;
    for (std::int64_t context = 0; context < contexts_; context += group) {
      const auto begin = stationary_.begin() + context;
      entropy += entropy_term(std::accumulate(begin, begin + group, 0.0));
    }
    if (t > 0) sum += entropy - before;  // token 0 is read, never a target
    before = entropy;
  }
  const std::int64_t after_context = std::max<std::int64_t>(0, length + 1 - order_);
  return (sum + static_cast<double>(after_context) * rate) / static_cast<double>(length);
}

}  // namespace trireme::data
