#include "trireme/nn/moe/softmax_router.h"

#include <numeric>

#include "trireme/nn/moe/router_math.h"

namespace trireme::nn::moe {
namespace {

double probability_of_choices(std::span<const Choice> choices, std::span<const double> p) {
  double sum = 0;
  for (const Choice& choice : choices) sum += p[static_cast<std::size_t>(choice.expert)];
  return sum;
}

double mean_square(std::span<const double> values) {
  if (values.empty()) return 0;
  return std::inner_product(values.begin(), values.end(), values.begin(), 0.0) / static_cast<double>(values.size());
}

}  // namespace

std::span<const double> SoftmaxRouter::Probabilities::row(std::int64_t token) const {
  return row_of(std::span(p), token, static_cast<std::int64_t>(p.size() / lse.size()));
}

SoftmaxRouter::Probabilities SoftmaxRouter::probabilities(const RouterInput& input, std::int64_t experts) {
  Probabilities out{.p = std::vector<double>(input.logits.size()), .lse = {}};
  for (std::int64_t token = 0; token < input.tokens(); ++token) {
    out.lse.push_back(softmax(row_of(input.logits, token, experts), row_of(std::span(out.p), token, experts)));
  }
  return out;
}

void SoftmaxRouter::select_top_k(const RouterInput& input, std::int64_t k, Routing& routing) const {
  std::vector<std::int32_t> best;
  routing.first.push_back(0);
  for (std::int64_t token = 0; token < input.tokens(); ++token) {
    top_k(row_of(input.logits, token, experts()), k, best);  // of logits: equal to those of p, and free of rounding
    for (const std::int32_t expert : best) routing.choices.push_back({.expert = expert});
    routing.first.push_back(static_cast<std::int64_t>(routing.choices.size()));
  }
}

void SoftmaxRouter::choose(const RouterInput& input, Routing& routing) const {
  const Probabilities all = probabilities(input, experts());
  select(input, all, routing);
  for (std::int64_t token = 0; token < input.tokens(); ++token) {
    const auto p = all.row(token);
    const double sum = normalised_ ? probability_of_choices(routing.of_token(token), p) : 1;
    for (auto i = routing.first[static_cast<std::size_t>(token)];
         i < routing.first[static_cast<std::size_t>(token) + 1]; ++i) {
      Choice& choice = routing.choices[static_cast<std::size_t>(i)];
      choice.gate = config().routed_scaling_factor * p[static_cast<std::size_t>(choice.expert)] / sum;
    }
  }
}

void SoftmaxRouter::add_losses(const RouterInput& input, Routing& routing) const {
  const Probabilities all = probabilities(input, experts());
  if (has_aux_loss()) {
    const double even = static_cast<double>(experts()), sum = balance(counts_of(routing), all.p);
    routing.losses.push_back({kAuxLoss, factor() * sum, config().aux_loss_weight});
    if (factor() != even) routing.losses.push_back({kScaledAuxLoss, even * sum, 0});
  }
  if (config().z_loss_weight > 0) {
    routing.losses.push_back({kRouterZLoss, mean_square(all.lse), config().z_loss_weight});
  }
  add_further_losses(input, all, routing);
}

void SoftmaxRouter::add_gradients(const RouterInput& input, const Routing& routing, std::span<const double> grad_gates,
                                  double loss_scale, RouterGrad& grad) const {
  const Probabilities all = probabilities(input, experts());
  const auto tokens = static_cast<double>(input.tokens());
  std::vector<double> grad_p(all.p.size(), 0);
  if (has_aux_loss() && config().aux_loss_weight > 0) {
    const std::vector<std::int64_t> counts = counts_of(routing);
    const auto total = static_cast<double>(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
    const double seed = loss_scale * config().aux_loss_weight * factor() / (total * tokens);
    for (std::size_t i = 0; i < grad_p.size(); ++i) grad_p[i] = seed * static_cast<double>(counts[i % counts.size()]);
  }
  add_further_gradients(input, all, routing, loss_scale, grad_p, grad);
  const double of_z = 2 * loss_scale * config().z_loss_weight / tokens;
  for (std::int64_t token = 0; token < input.tokens(); ++token) {
    const auto p = all.row(token);
    const auto of_p = row_of(std::span(grad_p), token, experts());
    const auto choices = routing.of_token(token);
    const auto gates = grad_gates.subspan(static_cast<std::size_t>(routing.first[static_cast<std::size_t>(token)]));
    const double sum = normalised_ ? probability_of_choices(choices, p) : 1;
    double mean = 0;  // of the gates' gradients, by gate: what normalising takes off
    for (std::size_t i = 0; i < choices.size() && normalised_; ++i) {
      mean += gates[i] * p[static_cast<std::size_t>(choices[i].expert)] / sum;
    }
    for (std::size_t i = 0; i < choices.size(); ++i) {
      of_p[static_cast<std::size_t>(choices[i].expert)] += config().routed_scaling_factor * (gates[i] - mean) / sum;
    }
    const auto of_logits = row_of(std::span(grad.logits), token, experts());
    add_softmax_gradient(p, of_p, of_logits);
    const double z = of_z * all.lse[static_cast<std::size_t>(token)];
    for (std::size_t i = 0; i < p.size() && z != 0; ++i) of_logits[i] += z * p[i];
  }
}

}  // namespace trireme::nn::moe
