#include "trireme/nn/moe/router.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

#include "trireme/base/error.h"

namespace trireme::nn::moe {
namespace {

struct RouterRow {
  spec::RouterKind kind;
  std::unique_ptr<Router> (*make)(const spec::Experts& config);
};

constexpr std::array kRouters{
    RouterRow{spec::RouterKind::kSoftmaxTopK, make_softmax_top_k},
    RouterRow{spec::RouterKind::kSigmoidTopK, make_sigmoid_top_k},
    RouterRow{spec::RouterKind::kSwitch, make_switch},
    RouterRow{spec::RouterKind::kGshard, make_gshard},
    RouterRow{spec::RouterKind::kNoisyTopK, make_noisy_top_k},
    RouterRow{spec::RouterKind::kStrictBalance, make_strict_balance},
    RouterRow{spec::RouterKind::kExpertChoice, make_expert_choice},
};

void check_logits(const RouterInput& input, std::int64_t outputs) {
  for (std::size_t i = 0; i < input.logits.size(); ++i) {
    if (!std::isnan(input.logits[i])) [[likely]]
      continue;
    const std::int64_t number = input.token_numbers[i / static_cast<std::size_t>(outputs)];
    throw Error(fmt::format("the router of {} gave NaN in step {} for token {} of sample {}", input.layer, input.step,
                            number & 0xFFFFFFFF, number >> 32),
                "the activations before it are NaN or Inf: look for the first layer with `trireme probe`, or lower "
                "optim.learning_rate");
  }
}

}  // namespace

std::span<const Choice> Routing::of_token(std::int64_t token) const {
  const auto at = static_cast<std::size_t>(token);
  return std::span(choices).subspan(static_cast<std::size_t>(first[at]),
                                    static_cast<std::size_t>(first[at + 1] - first[at]));
}

Routing Router::route(const RouterInput& input) const {
  TRIREME_CHECK(input.logits.size() == input.token_numbers.size() * static_cast<std::size_t>(outputs()),
                "{} logits for {} tokens of {} each", input.logits.size(), input.tokens(), outputs());
  TRIREME_CHECK(input.bias.size() == (bias_kind() == BiasKind::kNone ? 0 : static_cast<std::size_t>(experts())),
                "{} biases for {} experts", input.bias.size(), experts());
  check_logits(input, outputs());
  Routing routing;
  choose(input, routing);
  TRIREME_CHECK(routing.tokens() == input.tokens(), "a router chose for {} of {} tokens", routing.tokens(),
                input.tokens());
  routing.counts.assign(static_cast<std::size_t>(experts()), 0);
  routing.dropped.assign(static_cast<std::size_t>(experts()), 0);
  for (const Choice& choice : routing.choices) {
    ++routing.counts[static_cast<std::size_t>(choice.expert)];
    if (!choice.kept) ++routing.dropped[static_cast<std::size_t>(choice.expert)];
  }
  if (input.wants_losses) add_losses(input, routing);
  return routing;
}

RouterGrad Router::backward(const RouterInput& input, const Routing& routing, std::span<const double> grad_gates,
                            double loss_scale) const {
  TRIREME_CHECK(grad_gates.size() == routing.choices.size(), "{} gradients for {} gates", grad_gates.size(),
                routing.choices.size());
  RouterGrad grad;
  grad.logits.assign(input.logits.size(), 0);
  if (bias_kind() == BiasKind::kLearned) grad.bias.assign(static_cast<std::size_t>(experts()), 0);
  add_gradients(input, routing, grad_gates, loss_scale, grad);
  return grad;
}

std::unique_ptr<Router> make_router(const spec::Experts& config) {
  if (config.num_experts < 1) throw ConfigError("experts.num_experts is 0", "set experts.num_experts = 8");
  if (auto problems = spec::find_problems(config); !problems.empty()) {
    throw config::ProblemsError("[experts]", std::move(problems));
  }
  for (const RouterRow& row : kRouters) {
    if (row.kind == config.router) return row.make(config);
  }
  TRIREME_CHECK(false, "router {} is not in the table", static_cast<int>(config.router));
  return nullptr;
}

}  // namespace trireme::nn::moe
