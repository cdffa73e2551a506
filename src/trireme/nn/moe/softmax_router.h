// nn/moe/softmax_router.h -- what routers with p = softmax(logits) over all experts share: gates, losses, backward.
//
// A router of this kind only says which experts a token visits. The gate is p_i, or p_i / (sum over the token's
// choices of p_j), which of k kept logits is their own softmax (Mixtral); dropped choices stay in the sum. Losses:
//
//   auxiliary   factor * sum_i f_i P_i   f_i: share of the choices that are expert i (no gradient), P_i: mean of p_i
//   z-loss      mean over tokens of logsumexp(logits)^2
//
// With factor = experts the first is 1 for even loads, and `experts` where all goes to one with p = 1.
// Depends on: router.h.
#pragma once

#include "trireme/nn/moe/router.h"

namespace trireme::nn::moe {

class SoftmaxRouter : public Router {
 public:
  SoftmaxRouter(const spec::Experts& config, bool normalised) : Router(config), normalised_(normalised) {}

 protected:
  struct Probabilities {
    std::vector<double> p;    // [tokens, experts]
    std::vector<double> lse;  // [tokens]
    std::span<const double> row(std::int64_t token) const;
  };
  static Probabilities probabilities(const RouterInput& input, std::int64_t experts);

  /// Which experts each token visits, `first` and `choices`; gates are set afterwards.
  virtual void select(const RouterInput& input, const Probabilities& probabilities, Routing& routing) const = 0;
  /// Of the auxiliary loss.
  virtual double factor() const { return static_cast<double>(experts()); }
  virtual std::vector<std::int64_t> counts_of(const Routing& routing) const { return routing.counts; }
  virtual bool has_aux_loss() const { return true; }
  /// A further loss of p, whose gradients are added to those of p [tokens, experts].
  virtual void add_further_losses(const RouterInput&, const Probabilities&, Routing&) const {}
  virtual void add_further_gradients(const RouterInput&, const Probabilities&, const Routing&, double /*loss_scale*/,
                                     std::span<double> /*grad_p*/, RouterGrad&) const {}

  /// k largest of each token; gates to be set.
  void select_top_k(const RouterInput& input, std::int64_t k, Routing& routing) const;

  void choose(const RouterInput& input, Routing& routing) const final;
  void add_losses(const RouterInput& input, Routing& routing) const final;
  void add_gradients(const RouterInput& input, const Routing& routing, std::span<const double> grad_gates,
                     double loss_scale, RouterGrad& grad) const final;

 private:
  bool normalised_;
};

}  // namespace trireme::nn::moe
