// Noisy top-k gating (Shazeer et al. 2017), with one level or two.
//
// A gate over n outputs has a logit l and a noise logit m for each. In training H = l + N(0, 1) softplus(m), in
// evaluation H = l; the k largest H are kept, and their softmax G are the gates. Two losses keep it balanced:
//
//   importance   CV^2 of sum over tokens of G
//   load         CV^2 of sum over tokens of P_i, the probability that output i would be among the k largest if its own
//                noise alone were drawn again: Phi((l_i - k-th largest H of the others) / softplus(m_i))
//
// CV is the standard deviation of the population over the mean. P is smooth where the choice is not: that is how the
// gate learns from tokens an expert did not get.
//
// Two levels: a first gate chooses top_k_groups of num_groups groups, a gate in each of those top_k / top_k_groups of
// its experts, and gates multiply. Importance is that of the products. The load of expert j of group i is (load of i)
// (sum of P_j over the tokens that chose i) / (how many those are).
//
// Logits of a token: l of the first level, m of the first level (two levels only), then l and m of the experts.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "trireme/base/random.h"
#include "trireme/nn/moe/router_math.h"

namespace trireme::nn::moe {
namespace {

constexpr double kRootTwo = 1.4142135623730951, kRootTwoPi = 2.5066282746310002;

/// What one gate sees of one token, and what it makes of it.
struct NoisyGate {
  std::span<const double> logits, noise_logits;  // l and m
  std::vector<double> draws;                     // N(0, 1); empty: evaluation
  std::int64_t k = 1;

  std::vector<double> noisy;        // H
  std::vector<std::int32_t> kept;   // falling H
  std::vector<double> gates;        // of those
  std::vector<double> load;         // P; empty in evaluation
  std::vector<double> z;            // Phi's argument; infinite where the output is always kept
  std::vector<std::int32_t> rival;  // whose H is the threshold of i; -1: nobody's

  void forward();
  /// Adds to the gradients of l and m, from those of gates (as `kept` lists them) and of P.
  void backward(std::span<const double> grad_gates, std::span<const double> grad_load, std::span<double> grad_logits,
                std::span<double> grad_noise) const;

 private:
  void find_loads(std::span<const std::int32_t> order);
};

void NoisyGate::forward() {
  noisy.assign(logits.begin(), logits.end());
  for (std::size_t i = 0; i < draws.size(); ++i) noisy[i] += draws[i] * softplus(noise_logits[i]);
  std::vector<std::int32_t> order;
  top_k(noisy, k + 1, order);
  kept.assign(order.begin(), order.begin() + std::min<std::ptrdiff_t>(k, std::ssize(order)));
  for (const std::int32_t i : kept) gates.push_back(noisy[static_cast<std::size_t>(i)]);
  softmax(gates, gates);
  if (!draws.empty()) find_loads(order);
}

/// `order`: the k + 1 largest, or all where there are no more than k.
void NoisyGate::find_loads(std::span<const std::int32_t> order) {
  load.assign(noisy.size(), 1);
  z.assign(noisy.size(), std::numeric_limits<double>::infinity());
  rival.assign(noisy.size(), -1);
  if (std::ssize(noisy) <= k) return;
  const auto most = static_cast<std::size_t>(k);
  for (std::size_t i = 0; i < noisy.size(); ++i) {
    const bool is_kept = std::ranges::find(kept, static_cast<std::int32_t>(i)) != kept.end();
    rival[i] = order[is_kept ? most : most - 1];  // without i the k-th largest is the next one where i is above it
    z[i] = (logits[i] - noisy[static_cast<std::size_t>(rival[i])]) / softplus(noise_logits[i]);
    load[i] = 0.5 * std::erfc(-z[i] / kRootTwo);
  }
}

void NoisyGate::backward(std::span<const double> grad_gates, std::span<const double> grad_load,
                         std::span<double> grad_logits, std::span<double> grad_noise) const {
  std::vector<double> of_kept(kept.size(), 0), of_noisy(noisy.size(), 0);
  add_softmax_gradient(gates, grad_gates, of_kept);
  for (std::size_t i = 0; i < kept.size(); ++i) of_noisy[static_cast<std::size_t>(kept[i])] += of_kept[i];
  for (std::size_t i = 0; i < load.size(); ++i) {
    if (rival[i] < 0 || grad_load[i] == 0) continue;
    const double width = softplus(noise_logits[i]);
    const double of_z = grad_load[i] * std::exp(-0.5 * z[i] * z[i]) / kRootTwoPi;
    grad_logits[i] += of_z / width;
    of_noisy[static_cast<std::size_t>(rival[i])] -= of_z / width;
    grad_noise[i] -= of_z * z[i] / width * sigmoid(noise_logits[i]);
  }
  for (std::size_t i = 0; i < of_noisy.size(); ++i) {
    grad_logits[i] += of_noisy[i];
    if (!draws.empty()) grad_noise[i] += of_noisy[i] * draws[i] * sigmoid(noise_logits[i]);
  }
}

class NoisyTopK final : public Router {
 public:
  explicit NoisyTopK(const spec::Experts& config)
      : Router(config), groups_(config.num_groups), each_(config.num_experts / config.num_groups) {}
  std::int64_t outputs() const override { return 2 * (experts() + (two_levels() ? groups_ : 0)); }

 protected:
  void choose(const RouterInput& input, Routing& routing) const override {
    routing.first.push_back(0);
    for (std::int64_t token = 0; token < input.tokens(); ++token) {
      const TokenGates gates = gates_of(input, token);
      std::vector<Choice> choices;
      for (std::size_t g = 0; g < gates.first.kept.size(); ++g) {
        const NoisyGate& second = gates.second[g];
        for (std::size_t i = 0; i < second.kept.size(); ++i) {
          const std::int64_t expert = gates.first.kept[g] * each_ + second.kept[i];
          choices.push_back({.expert = static_cast<std::int32_t>(expert),
                             .gate = config().routed_scaling_factor * gates.first.gates[g] * second.gates[i]});
        }
      }
      routing.choices.insert(routing.choices.end(), choices.begin(), choices.end());
      routing.first.push_back(static_cast<std::int64_t>(routing.choices.size()));
    }
  }

  void add_losses(const RouterInput& input, Routing& routing) const override {
    routing.losses.push_back({kImportanceLoss, cv_squared(importance_of(routing)), config().importance_loss_weight});
    if (!input.training) return;  // without noise there is no load
    routing.losses.push_back({kLoadLoss, cv_squared(loads_of(input).of_experts), config().load_loss_weight});
  }

  void add_gradients(const RouterInput& input, const Routing& routing, std::span<const double> grad_gates,
                     double loss_scale, RouterGrad& grad) const override {
    std::vector<double> of_importance = cv_squared_gradient(importance_of(routing));
    for (double& value : of_importance) value *= loss_scale * config().importance_loss_weight;
    const LoadGrad of_load = load_gradient(input, loss_scale * config().load_loss_weight);
    for (std::int64_t token = 0; token < input.tokens(); ++token) {
      const TokenGates gates = gates_of(input, token);
      auto at = static_cast<std::size_t>(routing.first[static_cast<std::size_t>(token)]);
      const auto row = row_of(std::span(grad.logits), token, outputs());
      std::vector<double> of_first(gates.first.kept.size(), 0);
      for (std::size_t g = 0; g < gates.first.kept.size(); ++g) {
        const NoisyGate& second = gates.second[g];
        const std::int64_t group = gates.first.kept[g];
        std::vector<double> of_second;
        for (std::size_t i = 0; i < second.kept.size(); ++i, ++at) {
          const double of_gate = config().routed_scaling_factor *
                                 (grad_gates[at] + of_importance[static_cast<std::size_t>(routing.choices[at].expert)]);
          of_first[g] += of_gate * second.gates[i];
          of_second.push_back(of_gate * gates.first.gates[g]);
        }
        second.backward(of_second, row_of(std::span(of_load.of_experts), group, each_), part(row, Part::kLogits, group),
                        part(row, Part::kNoise, group));
      }
      if (two_levels()) {
        gates.first.backward(of_first, of_load.of_groups, part(row, Part::kGroupLogits), part(row, Part::kGroupNoise));
      }
    }
  }

 private:
  struct TokenGates {
    NoisyGate first;                // one level: one group, whose gate is 1
    std::vector<NoisyGate> second;  // of the groups that `first` kept
  };
  struct Loads {
    std::vector<double> of_groups;  // sum of P
    std::vector<double> within;     // [experts]: sum of P over the tokens that chose the group
    std::vector<double> tokens;     // [groups]: how many those are
    std::vector<double> of_experts;
  };
  /// With respect to P of each token: the same for all of them that have it.
  struct LoadGrad {
    std::vector<double> of_groups, of_experts;
  };
  enum class Part : std::uint8_t { kGroupLogits, kGroupNoise, kLogits, kNoise };

  bool two_levels() const { return groups_ > 1; }

  template <typename Number>
  std::span<Number> part(std::span<Number> row, Part which, std::int64_t group = 0) const {
    const std::int64_t before = two_levels() ? 2 * groups_ : 0;
    switch (which) {
      case Part::kGroupLogits:
        return row.subspan(0, static_cast<std::size_t>(groups_));
      case Part::kGroupNoise:
        return row.subspan(static_cast<std::size_t>(groups_), static_cast<std::size_t>(groups_));
      case Part::kLogits:
        return row.subspan(static_cast<std::size_t>(before + group * each_), static_cast<std::size_t>(each_));
      case Part::kNoise:
        return row.subspan(static_cast<std::size_t>(before + experts() + group * each_),
                           static_cast<std::size_t>(each_));
    }
    return {};
  }

  /// Draws of the token's experts from `begin` on; those of groups are a stream of their own.
  static std::vector<double> draws(const RouterInput& input, std::int64_t token, const char* level, std::int64_t count,
                                   std::int64_t begin, std::int64_t all) {
    if (!input.training) return {};
    std::vector<double> out(static_cast<std::size_t>(count));
    const auto number = static_cast<std::uint64_t>(input.token_numbers[static_cast<std::size_t>(token)]);
    Random(input.seed, fmt::format("router/{}/{} noise/step {}", input.layer, level, input.step))
        .fill_normal(number * static_cast<std::uint64_t>(all) + static_cast<std::uint64_t>(begin), out);
    return out;
  }

  TokenGates gates_of(const RouterInput& input, std::int64_t token) const {
    const auto row = row_of(input.logits, token, outputs());
    TokenGates gates;
    if (two_levels()) {
      gates.first.logits = part(row, Part::kGroupLogits);
      gates.first.noise_logits = part(row, Part::kGroupNoise);
      gates.first.draws = draws(input, token, "group", groups_, 0, groups_);
      gates.first.k = config().top_k_groups;
      gates.first.forward();
    } else {
      gates.first.kept = {0};
      gates.first.gates = {1};
      gates.first.load = {1};
    }
    for (const std::int32_t group : gates.first.kept) {
      NoisyGate& second = gates.second.emplace_back();
      second.logits = part(row, Part::kLogits, group);
      second.noise_logits = part(row, Part::kNoise, group);
      second.draws = draws(input, token, "expert", each_, group * each_, experts());
      second.k = config().top_k / (two_levels() ? config().top_k_groups : 1);
      second.forward();
    }
    return gates;
  }

  std::vector<double> importance_of(const Routing& routing) const {
    std::vector<double> sums(static_cast<std::size_t>(experts()), 0);
    for (const Choice& choice : routing.choices) sums[static_cast<std::size_t>(choice.expert)] += choice.gate;
    return sums;
  }

  Loads loads_of(const RouterInput& input) const {
    const auto groups = static_cast<std::size_t>(groups_), all = static_cast<std::size_t>(experts());
    Loads loads{.of_groups = std::vector<double>(groups, 0),
                .within = std::vector<double>(all, 0),
                .tokens = std::vector<double>(groups, 0),
                .of_experts = std::vector<double>(all, 0)};
    for (std::int64_t token = 0; token < input.tokens(); ++token) {
      const TokenGates gates = gates_of(input, token);
      for (std::size_t g = 0; g < groups; ++g) loads.of_groups[g] += gates.first.load[g];
      for (std::size_t g = 0; g < gates.second.size(); ++g) {
        const std::int64_t group = gates.first.kept[g];
        ++loads.tokens[static_cast<std::size_t>(group)];
        const auto within = row_of(std::span(loads.within), group, each_);
        for (std::size_t i = 0; i < within.size(); ++i) within[i] += gates.second[g].load[i];
      }
    }
    for (std::size_t i = 0; i < all; ++i) {
      const std::size_t g = i / static_cast<std::size_t>(each_);
      if (loads.tokens[g] > 0) loads.of_experts[i] = loads.of_groups[g] * loads.within[i] / loads.tokens[g];
    }
    return loads;
  }

  LoadGrad load_gradient(const RouterInput& input, double seed) const {
    LoadGrad grad{.of_groups = std::vector<double>(static_cast<std::size_t>(groups_), 0),
                  .of_experts = std::vector<double>(static_cast<std::size_t>(experts()), 0)};
    if (seed == 0 || !input.training) return grad;
    const Loads loads = loads_of(input);
    const std::vector<double> of_loads = cv_squared_gradient(loads.of_experts);
    for (std::size_t i = 0; i < of_loads.size(); ++i) {
      const std::size_t g = i / static_cast<std::size_t>(each_);
      if (loads.tokens[g] == 0) continue;
      grad.of_experts[i] = seed * of_loads[i] * loads.of_groups[g] / loads.tokens[g];
      grad.of_groups[g] += seed * of_loads[i] * loads.within[i] / loads.tokens[g];
    }
    return grad;
  }

  std::int64_t groups_, each_;
};

}  // namespace

std::unique_ptr<Router> make_noisy_top_k(const spec::Experts& config) { return std::make_unique<NoisyTopK>(config); }

}  // namespace trireme::nn::moe
