// nn/loss_terms.h -- a loss as named, weighted terms: what layers tell of them, and how they add up over micro-batches
// and ranks.
//
// The total loss, which is optimised, is the weighted sum of the terms' means:
//
//   total = sum over terms of weight * (sum over micro-batches and ranks) / (what its mean is over)
//
// A layer with a loss of its own (auxiliary loss, z-loss, multi-token head) pushes a term to Context::losses and seeds
// its gradient with weight * Context::gradient_scale (kTargets) or weight * Context::sample_scale (kSamples): both are
// known before the step, on every rank and stage. A term of weight 0 is a metric: it is added up and told, not
// optimised.
// Depends on: base, comm.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/comm/group.h"

namespace trireme::nn {

/// What the mean of a term is taken over.
enum class LossMean : std::uint8_t {
  kTargets,  ///< the targets of the whole step, by their weights: as the main loss
  kSamples,  ///< the samples (rows) of the whole step
  kCount,    ///< the term's own counts, added up: not known before the step, hence for terms of weight 0
};

struct LossTerm {
  std::string name;         ///< of several layers that give the same name the terms are added up
  double sum = 0;           ///< on this rank, without the weight
  double count = 0;         ///< of what was added up
  at::Tensor pending = {};  ///< double [2], sum and count, where they are still on a GPU: settle() reads them
  double weight = 1;        ///< in the total; 0: told only
  LossMean mean = LossMean::kTargets;
  /// Whether ranks of the axis hold parts of the term, which are added up, or all the same, of which one counts. Ranks
  /// of dp always hold parts; stages of a pipeline have those terms that arise there.
  bool sum_over_tp = false, sum_over_cp = true;
};

/// Of the term that every model with targets has: cross-entropy.
inline constexpr std::string_view kMainLoss = "loss";

/// Waits for the terms whose numbers are still on a GPU.
void settle(std::vector<LossTerm>& losses);

/// Adds a term to those of the same name. `sums` are in one order whatever order terms come in: the main loss, then by
/// name, so that no layout changes the order of additions. A CHECK where two terms of a name differ in weight or mean.
void add_term(std::vector<LossTerm>& sums, const LossTerm& term);
/// Their place in this order.
bool comes_before(std::string_view a, std::string_view b);
/// Whether everything but the numbers is the same.
bool same_kind(const LossTerm& a, const LossTerm& b);

/// The sum of the term of that name; 0 where there is none.
double sum_of(std::span<const LossTerm> terms, std::string_view name = kMainLoss);

/// What a whole step's means are over.
struct LossCounts {
  double targets = 0, samples = 0;
};
double mean_of(const LossTerm& term, const LossCounts& counts);
/// The weighted sum of the means.
double total_of(std::span<const LossTerm> terms, const LossCounts& counts);

/// Adds terms up over the ranks of a group, in one all-reduce. Ranks need not have the same terms: names are agreed on
/// in the first call, and again when some rank has a new one.
class LossReducer {
 public:
  /// Borrowed.
  explicit LossReducer(comm::Group& group) : group_(group) {}

  /// On all ranks together, for as many steps on each. Afterwards each step has the terms of all ranks in the order of
  /// add_term(); `numbers` are added up with them.
  void reduce(std::span<std::vector<LossTerm>> steps, std::span<double> numbers = {}) {
    start(steps, numbers);
    finish(steps, numbers);
  }
  /// The same in two halves, with the same arguments: what other calls take passes beside it.
  void start(std::span<const std::vector<LossTerm>> steps, std::span<const double> numbers = {});
  void finish(std::span<std::vector<LossTerm>> steps, std::span<double> numbers = {});

 private:
  bool knows(const LossTerm& term) const;
  void agree(std::span<const std::vector<LossTerm>> steps);

  comm::Group& group_;
  std::vector<LossTerm> agreed_;  // sums of 0
  std::vector<double> sent_;      // on its way
  comm::Work work_;
};

}  // namespace trireme::nn
