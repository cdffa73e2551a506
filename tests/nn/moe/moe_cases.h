// tests/nn/moe/moe_cases.h -- a mixture of experts with its parameters, and the same mathematics as a loop over
// experts.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <ostream>
#include <string>

#include "tests/nn/layer_cases.h"
#include "trireme/base/random.h"
#include "trireme/layout/placing.h"
#include "trireme/nn/moe/moe_layer.h"

namespace trireme::nn::moe {

struct MoeCase {
  std::string name;
  spec::Experts config;
  std::int64_t samples = 4, length = 3;
  bool gated = true;
  double router_scale = 1;  ///< 0: all logits are equal
  std::int64_t hidden = 6, inner = 5;
  bool training = true;
};

inline void PrintTo(const MoeCase& one, std::ostream* out) { *out << one.name; }

/// A layer and everything it borrows.
struct BuiltMoe {
  Params params;
  Balance balance;
  std::unique_ptr<MoeLayer> layer;
};

/// Experts are sharded over `group`, where there is one.
inline std::unique_ptr<BuiltMoe> build_moe(const MoeCase& c, Precision precision, comm::Group* group = nullptr,
                                           const ParallelContext& parallel = single_rank(),
                                           at::Device device = at::kCPU) {
  auto built = std::make_unique<BuiltMoe>();
  const std::int64_t experts = c.config.num_experts, into = c.gated ? 2 * c.inner : c.inner;
  const layout::Mesh mesh({{"ep", group ? group->size() : 1}});
  const auto sharded = [&](const std::string& name, layout::Shape shape) -> Param& {
    layout::Placing placing(mesh, group ? group->rank() : 0, name, std::move(shape));
    if (group) placing.split(0, "ep");
    return built->params.add(placing.placement(), {Init::Kind::kNormal, 0.6}, true);
  };
  auto router = make_router(c.config);
  Param& weight =
      built->params.add("router.weight", {router->outputs(), c.hidden}, {Init::Kind::kNormal, c.router_scale}, true);
  Param* thresholds = nullptr;
  if (router->bias_kind() == Router::BiasKind::kLearned) {
    thresholds = &built->params.add("router.thresholds", {experts}, {Init::Kind::kUniform, 0.3}, false);
  }
  ExpertLoads loads{
      .layer = "mlp", .counts = std::vector<std::int64_t>(static_cast<std::size_t>(experts), 0), .last = {}};
  if (router->bias_kind() == Router::BiasKind::kBalanced) {
    loads.bias = at::zeros({experts}, at::kFloat);
    for (std::int64_t i = 0; i < experts; ++i) loads.bias[i] = 0.05 * static_cast<double>((i * 5) % 3);
    loads.rate = c.config.bias_update_rate;
    loads.placement = layout::Placing(mesh, group ? group->rank() : 0, "bias", {experts}).placement();
  }
  if (group && c.config.redundant_experts > 0)
    loads.policy = {
        .every = c.config.rebalance_every, .ranks = group->size(), .room = c.config.redundant_experts / group->size()};
  ExpertLoads& kept = built->balance.add(std::move(loads));
  Param &in = sharded("experts.in", {experts, into, c.hidden}),
        &out = sharded("experts.out", {experts, c.hidden, c.inner});
  const auto activation = c.gated ? kernels::Activation::kSilu : kernels::Activation::kGelu;
  const std::int64_t first = group ? group->rank() * experts / group->size() : 0;
  SharedExperts shared;
  if (c.config.num_shared_experts > 0) {
    const std::int64_t inner = c.inner * c.config.num_shared_experts;
    Param& shared_in =
        built->params.add("shared.in", {c.gated ? 2 * inner : inner, c.hidden}, {Init::Kind::kNormal, 0.6}, true);
    Param& shared_out = built->params.add("shared.out", {c.hidden, inner}, {Init::Kind::kNormal, 0.6}, true);
    shared.mlp = std::make_unique<Mlp>(Linear(shared_in, nullptr), Linear(shared_out, nullptr), activation, c.gated);
    if (c.config.shared_expert_gate)
      shared.gate = &built->params.add("shared.gate", {1, c.hidden}, {Init::Kind::kNormal, 1}, true);
  }
  std::unique_ptr<RowExchange> exchange = std::make_unique<LocalExchange>();
  if (group) exchange = std::make_unique<AllToAllExchange>(*group);
  built->layer = std::make_unique<MoeLayer>(MoeParts{.name = "mlp",
                                                     .router = std::move(router),
                                                     .router_weight = &weight,
                                                     .thresholds = thresholds,
                                                     .loads = &kept,
                                                     .experts = Experts({.name = "mlp",
                                                                         .activation = activation,
                                                                         .gated = c.gated,
                                                                         .dropout = c.config.expert_dropout,
                                                                         .first_expert = first},
                                                                        in, out),
                                                     .shared = std::move(shared),
                                                     .exchange = std::move(exchange)},
                                            parallel);
  initialise(built->params, precision, /*seed=*/7, device);
  return built;
}

/// Samples [first, first + count) of the case's batch.
inline at::Tensor moe_input(const MoeCase& c, std::int64_t first, std::int64_t count, const char* stream = "x") {
  at::Tensor x = at::empty({count, c.length, c.hidden}, at::kDouble);
  Random(3, stream).fill_normal(static_cast<std::uint64_t>(first * c.length * c.hidden),
                                std::span(x.data_ptr<double>(), static_cast<std::size_t>(x.numel())));
  return x;
}

inline Context moe_context(const MoeCase& c, std::int64_t first, std::int64_t count) {
  Context context;
  context.training = c.training;
  context.seed = 11;
  context.step = 5;
  context.samples = at::arange(first, first + count, at::kLong);
  context.sequence = plain_sequence(count, c.length);
  context.sample_scale = 0.25;
  return context;
}

/// {y, sum over losses of weight * sum over samples} in differentiable operators: every expert computes every token.
/// Choices are the router's, as masks; gates and losses follow from the logits here.
inline Tensors moe_oracle(const MoeCase& c, const at::Tensor& x, const NamedWeights& weights, const at::Tensor& bias) {
  const spec::Experts& config = c.config;
  const bool sigmoid = config.router == spec::RouterKind::kSigmoidTopK;
  const bool normalised = config.router == spec::RouterKind::kGshard ||
                          config.router == spec::RouterKind::kStrictBalance ||
                          ((sigmoid || config.router == spec::RouterKind::kSoftmaxTopK) && config.norm_topk_prob);
  const at::Tensor rows = x.reshape({-1, c.hidden}), logits = at::matmul(rows, weights.at("router.weight").t());
  const std::int64_t tokens = rows.size(0), experts = config.num_experts;
  const at::Tensor scores = sigmoid ? at::sigmoid(logits) : at::softmax(logits, -1);
  at::Tensor chosen = at::zeros({tokens, experts}, at::kDouble), kept = at::zeros_like(chosen);
  const auto router = make_router(config);
  const std::int64_t each = config.balance_group * c.length;
  const at::Tensor values = logits.detach().contiguous();
  std::vector<double> of_bias;
  if (bias.defined()) of_bias = {bias.const_data_ptr<float>(), bias.const_data_ptr<float>() + experts};
  at::Tensor loss = at::zeros({}, at::kDouble);
  for (std::int64_t first = 0; first < tokens; first += each) {
    std::vector<std::int64_t> numbers;
    for (std::int64_t t = first; t < first + each; ++t) numbers.push_back(((t / c.length) << 32) + t % c.length);
    const Routing routing = router->route({.logits = std::span(values.const_data_ptr<double>() + first * experts,
                                                               static_cast<std::size_t>(each * experts)),
                                           .token_numbers = numbers,
                                           .bias = of_bias,
                                           .layer = "mlp",
                                           .seed = 11,
                                           .step = 5,
                                           .training = c.training});
    for (std::int64_t t = 0; t < each; ++t) {
      for (const Choice& choice : routing.of_token(t)) {
        chosen[first + t][choice.expert] = 1;
        if (choice.kept) kept[first + t][choice.expert] = 1;
      }
    }
    const at::Tensor shares = chosen.narrow(0, first, each).sum(0) / chosen.narrow(0, first, each).sum();
    at::Tensor p = scores.narrow(0, first, each);
    if (sigmoid) p = p / p.sum(-1, true);
    const auto samples = static_cast<double>(config.balance_group);
    loss = loss + samples * config.aux_loss_weight * static_cast<double>(experts) * (shares * p.mean(0)).sum();
    if (config.z_loss_weight > 0) {
      loss =
          loss + samples * config.z_loss_weight * at::square(at::logsumexp(logits.narrow(0, first, each), {1})).mean();
    }
  }
  at::Tensor gates = scores * chosen;
  if (normalised) gates = gates / gates.sum(-1, true).clamp_min(1e-300);
  gates = gates * kept * config.routed_scaling_factor;
  const auto mlp = [&](const at::Tensor& in, const at::Tensor& out) {
    const at::Tensor inner = at::matmul(rows, in.t());
    if (!c.gated) return at::matmul(at::gelu(inner), out.t());
    const auto halves = inner.chunk(2, -1);
    return at::matmul(at::silu(halves[0]) * halves[1], out.t());
  };
  at::Tensor y = at::zeros_like(rows);
  for (std::int64_t e = 0; e < experts; ++e) {
    y = y + gates.select(1, e).unsqueeze(1) *
                mlp(weights.at("experts.in").select(0, e), weights.at("experts.out").select(0, e));
  }
  if (config.num_shared_experts > 0) {
    at::Tensor shared = mlp(weights.at("shared.in"), weights.at("shared.out"));
    if (config.shared_expert_gate) shared = shared * at::sigmoid(at::matmul(rows, weights.at("shared.gate").t()));
    y = y + shared;
  }
  return {y.view(x.sizes()), loss};
}

}  // namespace trireme::nn::moe
