// data/synthetic.h -- tasks without files whose best possible loss is known: what training must come near to.
//
//   markov    causal: a Markov chain of order k over V tokens. The transitions' logarithms are normal with the given
//             sharpness; the first k tokens are drawn from the chain's stationary distribution. Best loss: the entropy
//             of each target given all before it, summed exactly over the contexts.
//   copy      causal: the second half of a row is the first again. Best: log V where a token is new, 0 where it is not.
//             masked: the same rows with tokens hidden behind the mask. Best: log V where both copies are hidden.
//   reverse   seq2seq: the target is the source backwards. Best loss: 0.
//
// Sample i is a function of the seed and i; training and validation draw from different streams. There is no end.
// Depends on: spec, data/samples.h, data/rows.h.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "trireme/base/random.h"
#include "trireme/data/samples.h"
#include "trireme/data/split.h"
#include "trireme/spec/data.h"

namespace trireme::data {

/// ConfigError when the kind is none for the task.
std::unique_ptr<Samples> synthetic_samples(const spec::DataConfig& data, spec::DataTask task, Split split,
                                           std::uint64_t seed);

/// The chain behind "markov".
class MarkovChain {
 public:
  /// `zipf`: token i has a weight of (i + 1)^-zipf beside its transitions', so that the contexts' frequencies fall as a
  /// power of their rank; the entropy stays exact.
  MarkovChain(std::int64_t vocabulary, std::int64_t order, double sharpness, std::uint64_t seed, double zipf = 0);

  std::int64_t vocabulary() const { return vocabulary_; }
  std::int64_t order() const { return order_; }
  std::int64_t contexts() const { return contexts_; }
  /// A context is the last `order` tokens as digits, the oldest first. Rows of the table add up to 1.
  double probability(std::int64_t context, std::int64_t token) const;
  double stationary(std::int64_t context) const { return stationary_[static_cast<std::size_t>(context)]; }
  std::int64_t next_context(std::int64_t context, std::int64_t token) const {
    return (context * vocabulary_ + token) % contexts_;
  }
  /// Inverse of the distribution function: the token, or the first context, that a uniform number falls on.
  std::int64_t draw_token(std::int64_t context, double uniform) const;
  std::int64_t draw_context(double uniform) const;

  /// Mean entropy, in nats, of tokens 1 to `length` of a row given all those before each of them.
  double best_loss(std::int64_t length) const;

 private:
  std::int64_t vocabulary_, order_, contexts_;
  std::vector<double> cumulative_;  // [context, token]: sums of probabilities up to and with the token
  std::vector<double> stationary_, stationary_sums_;
};

}  // namespace trireme::data
