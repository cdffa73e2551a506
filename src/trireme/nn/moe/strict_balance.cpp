// Strictly balanced gating (Shazeer et al. 2017, appendix F): in training each expert takes the m = k |X| / n tokens of
// the batch X with its largest gates, and a token's gates are normalised over the experts that took it. Evaluation
// cannot look at a batch: there an expert takes the tokens above a threshold T_i, learned beside the rest by
//
//   L(X, T) = mean over tokens of sum_i (M_threshold - M_batchwise)_i (p_i - T_i)
//
// whose minimum makes both masks the same. M are masks of 0 and 1, without a gradient.
#include "trireme/nn/moe/router_math.h"
#include "trireme/nn/moe/softmax_router.h"

namespace trireme::nn::moe {
namespace {

class StrictBalance final : public SoftmaxRouter {
 public:
  explicit StrictBalance(const spec::Experts& config) : SoftmaxRouter(config, /*normalised=*/true) {}
  BiasKind bias_kind() const override { return BiasKind::kLearned; }
  std::int64_t most_choices() const override { return experts(); }

 protected:
  bool has_aux_loss() const override { return false; }

  void select(const RouterInput& input, const Probabilities& probabilities, Routing& routing) const override {
    const std::vector<char> mask = input.training ? batchwise(input, probabilities) : threshold(input, probabilities);
    std::vector<TakenToken> taken;
    for (std::int64_t token = 0; token < input.tokens(); ++token) {
      for (std::int64_t expert = 0; expert < experts(); ++expert) {
        if (mask[static_cast<std::size_t>(token * experts() + expert)] == 0) continue;
        taken.push_back(
            {static_cast<std::int32_t>(expert), token, probabilities.row(token)[static_cast<std::size_t>(expert)]});
      }
    }
    set_choices(routing, input.tokens(), std::move(taken));
  }

  void add_further_losses(const RouterInput& input, const Probabilities& probabilities,
                          Routing& routing) const override {
    if (!input.training) return;
    const std::vector<int> difference = masks_difference(input, probabilities);
    double sum = 0;
    for (std::size_t i = 0; i < difference.size(); ++i) {
      sum += difference[i] * (probabilities.p[i] - input.bias[i % input.bias.size()]);
    }
    const double tokens = static_cast<double>(std::max<std::int64_t>(1, input.tokens()));
    routing.losses.push_back({kThresholdLoss, sum / tokens, config().threshold_loss_weight});
  }

  void add_further_gradients(const RouterInput& input, const Probabilities& probabilities, const Routing&,
                             double loss_scale, std::span<double> grad_p, RouterGrad& grad) const override {
    if (!input.training || config().threshold_loss_weight == 0) return;
    const std::vector<int> difference = masks_difference(input, probabilities);
    const double seed = loss_scale * config().threshold_loss_weight / static_cast<double>(input.tokens());
    for (std::size_t i = 0; i < difference.size(); ++i) {
      grad_p[i] += seed * difference[i];
      grad.bias[i % grad.bias.size()] -= seed * difference[i];
    }
  }

 private:
  std::vector<char> batchwise(const RouterInput& input, const Probabilities& probabilities) const {
    const std::int64_t each = expert_capacity(input.tokens(), config().top_k, experts(), 1);
    std::vector<char> mask(probabilities.p.size(), 0);
    for (std::int64_t expert = 0; expert < experts(); ++expert) {
      for (const std::int32_t token : top_tokens(probabilities.p, experts(), expert, each)) {
        mask[static_cast<std::size_t>(token * experts() + expert)] = 1;
      }
    }
    return mask;
  }

  static std::vector<char> threshold(const RouterInput& input, const Probabilities& probabilities) {
    std::vector<char> mask(probabilities.p.size(), 0);
    for (std::size_t i = 0; i < mask.size(); ++i) mask[i] = probabilities.p[i] > input.bias[i % input.bias.size()];
    return mask;
  }

  std::vector<int> masks_difference(const RouterInput& input, const Probabilities& probabilities) const {
    const std::vector<char> above = threshold(input, probabilities), taken = batchwise(input, probabilities);
    std::vector<int> difference(above.size());
    for (std::size_t i = 0; i < above.size(); ++i) difference[i] = above[i] - taken[i];
    return difference;
  }
};

}  // namespace

std::unique_ptr<Router> make_strict_balance(const spec::Experts& config) {
  return std::make_unique<StrictBalance>(config);
}

}  // namespace trireme::nn::moe
