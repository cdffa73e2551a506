// DeepSeek-V3 (2412.19437): s = sigmoid(logits). Experts are chosen by s + b, where b is a bias that only selects; each
// token is limited to its best groups of experts (of one node, say). Gates are s / (sum of the chosen s) times
// routed_scaling_factor, without b. The bias moves after each step: balance.h. What remains of an auxiliary loss is
//
//   sum_i f_i P_i   f_i = experts / (k tokens) * choices of i,  P_i: mean over tokens of s_i / sum_j s_j
//
// over a balance group, which is one sequence unless the recipe says otherwise.
#include <algorithm>
#include <limits>
#include <numeric>

#include "trireme/nn/moe/router_math.h"

namespace trireme::nn::moe {
namespace {

/// s of each token, and s / sum(s).
struct Affinities {
  std::vector<double> s, share;  // [tokens, experts]
  std::vector<double> sums;      // [tokens]
};

Affinities affinities(const RouterInput& input, std::int64_t experts) {
  Affinities out{.s = std::vector<double>(input.logits.size()), .share = {}, .sums = {}};
  std::ranges::transform(input.logits, out.s.begin(), sigmoid);
  out.share = out.s;
  for (std::int64_t token = 0; token < input.tokens(); ++token) {
    const auto row = row_of(std::span(out.share), token, experts);
    // All of them may be 0 where logits are far below: then none has a share.
    const double sum = std::max(std::accumulate(row.begin(), row.end(), 0.0), std::numeric_limits<double>::min());
    for (double& share : row) share /= sum;
    out.sums.push_back(sum);
  }
  return out;
}

class SigmoidTopK final : public Router {
 public:
  using Router::Router;
  BiasKind bias_kind() const override { return config().bias_update_rate > 0 ? BiasKind::kBalanced : BiasKind::kNone; }

 protected:
  void choose(const RouterInput& input, Routing& routing) const override {
    const Affinities all = affinities(input, experts());
    std::vector<double> scores(static_cast<std::size_t>(experts()));
    std::vector<std::int32_t> best;
    routing.first.push_back(0);
    for (std::int64_t token = 0; token < input.tokens(); ++token) {
      const auto s = row_of(std::span(all.s), token, experts());
      for (std::size_t i = 0; i < scores.size(); ++i) scores[i] = s[i] + (input.bias.empty() ? 0 : input.bias[i]);
      leave_best_groups(scores);
      top_k(scores, config().top_k, best);
      double sum = 0;
      for (const std::int32_t expert : best) sum += s[static_cast<std::size_t>(expert)];
      const double divisor = config().norm_topk_prob ? std::max(sum, std::numeric_limits<double>::min()) : 1;
      for (const std::int32_t expert : best) {
        routing.choices.push_back(
            {.expert = expert, .gate = config().routed_scaling_factor * s[static_cast<std::size_t>(expert)] / divisor});
      }
      routing.first.push_back(static_cast<std::int64_t>(routing.choices.size()));
    }
  }

  void add_losses(const RouterInput& input, Routing& routing) const override {
    const double sum = balance(routing.counts, affinities(input, experts()).share);
    routing.losses.push_back({kAuxLoss, static_cast<double>(experts()) * sum, config().aux_loss_weight});
  }

  void add_gradients(const RouterInput& input, const Routing& routing, std::span<const double> grad_gates,
                     double loss_scale, RouterGrad& grad) const override {
    const Affinities all = affinities(input, experts());
    const auto total = static_cast<double>(routing.choices.size()), tokens = static_cast<double>(input.tokens());
    const double seed = loss_scale * config().aux_loss_weight * static_cast<double>(experts()) / (total * tokens);
    std::vector<double> grad_s(static_cast<std::size_t>(experts()));
    for (std::int64_t token = 0; token < input.tokens(); ++token) {
      const auto s = row_of(std::span(all.s), token, experts()), share = row_of(std::span(all.share), token, experts());
      double mean = 0;  // of the loss's gradients, by share
      for (std::size_t i = 0; i < grad_s.size(); ++i) mean += seed * static_cast<double>(routing.counts[i]) * share[i];
      for (std::size_t i = 0; i < grad_s.size(); ++i) {
        grad_s[i] = (seed * static_cast<double>(routing.counts[i]) - mean) / all.sums[static_cast<std::size_t>(token)];
      }
      add_gate_gradient(routing.of_token(token), s,
                        grad_gates.subspan(static_cast<std::size_t>(routing.first[static_cast<std::size_t>(token)])),
                        grad_s);
      const auto of_logits = row_of(std::span(grad.logits), token, experts());
      for (std::size_t i = 0; i < grad_s.size(); ++i) of_logits[i] += grad_s[i] * s[i] * (1 - s[i]);
    }
  }

 private:
  /// Experts outside of the best groups are never chosen.
  void leave_best_groups(std::span<double> scores) const {
    if (config().num_groups == config().top_k_groups) return;
    const std::int64_t each = experts() / config().num_groups;
    std::vector<double> of_groups;
    for (std::int64_t group = 0; group < config().num_groups; ++group) {
      of_groups.push_back(group_score(row_of(std::span<const double>(scores), group, each)));
    }
    std::vector<char> kept(of_groups.size(), 0);
    for (const std::int32_t group : top_k(of_groups, config().top_k_groups)) kept[static_cast<std::size_t>(group)] = 1;
    for (std::size_t i = 0; i < scores.size(); ++i) {
      if (kept[i / static_cast<std::size_t>(each)] == 0) scores[i] = -std::numeric_limits<double>::infinity();
    }
  }

  double group_score(std::span<const double> scores) const {
    const std::int64_t best = config().group_score == spec::GroupScore::kMax ? 1
                              : config().group_score == spec::GroupScore::kTop2
                                  ? 2
                                  : config().top_k / config().top_k_groups;
    double sum = 0;
    for (const std::int32_t expert : top_k(scores, best)) sum += scores[static_cast<std::size_t>(expert)];
    return sum;
  }

  void add_gate_gradient(std::span<const Choice> choices, std::span<const double> s, std::span<const double> grad_gates,
                         std::span<double> grad_s) const {
    double sum = 0, dot = 0;
    for (std::size_t i = 0; i < choices.size(); ++i) {
      sum += s[static_cast<std::size_t>(choices[i].expert)];
      dot += grad_gates[i] * s[static_cast<std::size_t>(choices[i].expert)];
    }
    const bool normalised = config().norm_topk_prob;
    if (normalised && sum < std::numeric_limits<double>::min()) return;
    for (std::size_t i = 0; i < choices.size(); ++i) {
      const double of_gate = normalised ? (grad_gates[i] - dot / sum) / sum : grad_gates[i];
      grad_s[static_cast<std::size_t>(choices[i].expert)] += config().routed_scaling_factor * of_gate;
    }
  }
};

}  // namespace

std::unique_ptr<Router> make_sigmoid_top_k(const spec::Experts& config) {
  return std::make_unique<SigmoidTopK>(config);
}

}  // namespace trireme::nn::moe
