// A mixture of experts on a GPU: as moe_layer.cpp, with choices and counts that stay there. Nothing waits for the GPU.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/matmul.h>
#include <fmt/format.h>

#include "trireme/base/error.h"
#include "trireme/kernels/gemm.h"
#include "trireme/nn/flops.h"
#include "trireme/nn/moe/moe_layer.h"

namespace trireme::nn::moe {
namespace {

bool shares_tokens(const comm::Group* group) { return group != nullptr && group->size() > 1; }

/// How many of a group's best experts are added up to its score.
std::int64_t group_best(const spec::Experts& config) {
  switch (config.group_score) {
    case spec::GroupScore::kMax:
      return 1;
    case spec::GroupScore::kTop2:
      return 2;
    case spec::GroupScore::kTopK:
      break;
  }
  return config.top_k / config.top_k_groups;
}

}  // namespace

bool MoeLayer::routes_there(const at::Tensor& x, const Context& context) const {
  const spec::Experts& config = parts_.router->config();
  const bool kind = (config.router == spec::RouterKind::kSoftmaxTopK && config.capacity_factor == 0) ||
                    config.router == spec::RouterKind::kSigmoidTopK;
  const bool draws = context.training && (config.jitter > 0 || config.expert_dropout > 0);
  // One table of counts on the GPU knows no steps.
  const bool by_step = context.training && parts_.loads != nullptr && parts_.loads->keeps_steps;
  return x.is_cuda() && kind && !draws && !by_step && !context.divided && x.numel() > 0 &&
         kernels::routes_on_gpu(config.num_experts, config.top_k) && parts_.exchange->ranks() == 1 && !slices() &&
         config.dispatch_precision == spec::DispatchPrecision::kSame &&
         !sequence_of(context, parts_.stream).columns.defined() && !parallel_->splits_sequence() &&
         !shares_tokens(parallel_->heads) && !shares_tokens(parallel_->ring);
}

kernels::ExpertRouter MoeLayer::router_of(const at::Tensor& x, const Context& context) const {
  const spec::Experts& config = parts_.router->config();
  const std::int64_t samples = context.kv_batch != nullptr ? x.size(0) : config.balance_group;
  if (context.training && !context.filler && x.size(0) % samples != 0) {
    throw ConfigError(fmt::format("experts.balance_group is {}, but a micro-batch has {} samples, no whole groups",
                                  samples, x.size(0)),
                      fmt::format("make train.micro_batch_size and the samples of each data-parallel rank multiples of "
                                  "{}, or set experts.balance_group = 1",
                                  samples));
  }
  return {.sigmoid = config.router == spec::RouterKind::kSigmoidTopK,
          .normalised = config.norm_topk_prob,
          .scaling = config.routed_scaling_factor,
          .top_k = config.top_k,
          .groups = config.num_groups,
          .top_k_groups = config.top_k_groups,
          .group_best = group_best(config),
          .group_tokens = samples * x.size(1),
          .sample_tokens = x.size(1)};
}

void MoeLayer::tell_losses_on_gpu(const at::Tensor& terms, Context& context) const {
  if (context.filler) return;
  const spec::Experts& config = parts_.router->config();
  std::vector<LossTerm> told;
  const auto tell = [&](const char* name, std::int64_t row, double weight) {
    told.push_back({.name = name,
                    .pending = terms.select(0, row),
                    .weight = weight,
                    .mean = weight > 0 ? LossMean::kSamples : LossMean::kCount,
                    .sum_over_cp = false});
  };
  tell(kAuxLoss, 0, config.aux_loss_weight);
  if (config.router == spec::RouterKind::kSoftmaxTopK && config.z_loss_weight > 0)
    tell(kRouterZLoss, 1, config.z_loss_weight);
  tell("router_max_load", 2, 0);
  if (!context.losses_later) settle(told);
  for (LossTerm& term : told) context.losses.push_back(std::move(term));
}

at::Tensor MoeLayer::forward_on_gpu(at::Tensor x, Context& context, Tape* tape) {
  const at::Tensor rows = as_rows(x);
  const at::Tensor& weight = context.value(*parts_.router_weight);
  context.flops += gemm_flops(rows.size(0), weight.size(1), weight.size(0));
  // Products of the compute type, summed in float.
  const at::Tensor logits =
      kernels::gemm({.a = rows, .b = weight, .transpose_b = true, .out_type = gate_type(x.scalar_type())}).out;
  at::Tensor bias;
  if (parts_.router->bias_kind() == Router::BiasKind::kBalanced)
    bias = parts_.loads->gpu(x.device()).refresh(parts_.loads->bias);
  const kernels::ExpertRouting routing = kernels::route_experts(logits, bias, router_of(x, context));
  tell_losses_on_gpu(routing.terms, context);
  passes_ = 1;

  const ExpertRows expert_rows{.x = kernels::permute_rows(rows, routing.row_of),
                               .gates = routing.row_gates,
                               .token_numbers = {},
                               .offsets = {},
                               .ends = routing.ends};
  at::Tensor pre_activation = parts_.experts.pre_activation(expert_rows, context);
  const at::Tensor of_experts = parts_.experts.forward(expert_rows, pre_activation, context);
  at::Tensor ungated, shared;
  if (parts_.shared.mlp) shared = as_rows(forward_shared(x, context, tape, ungated));
  at::Tensor y = kernels::combine_rows(of_experts, routing.row_of, shared).view(x.sizes());
  if (tape) {
    tape->push({logits, routing.chosen, routing.counts, routing.row_of, routing.row_gates, routing.ends,
                std::move(pre_activation), std::move(ungated), std::move(x)});
  }
  return y;
}

at::Tensor MoeLayer::backward_on_gpu(at::Tensor dy, Context& context, Tape& tape) {
  auto [logits, chosen, counts, row_of, row_gates, ends, pre_activation, ungated, x] = tape.pop<9>();
  const at::Tensor rows = as_rows(x);
  at::Tensor of_rows = kernels::permute_rows(as_rows(dy).contiguous(), row_of);
  at::Tensor of_shared;
  if (parts_.shared.mlp) of_shared = as_rows(backward_shared(std::move(dy), x, ungated, context, tape));
  const ExpertRows expert_rows{
      .x = rows, .gates = row_gates, .token_numbers = {}, .offsets = {}, .ends = ends, .row_of = row_of};
  const Experts::Grad grad =
      parts_.experts.backward_on_gpu(std::move(of_rows), expert_rows, std::move(pre_activation), context, tape);

  const spec::Experts& config = parts_.router->config();
  const bool softmax = config.router == spec::RouterKind::kSoftmaxTopK;
  const kernels::ExpertRouting routing{
      .chosen = chosen, .counts = counts, .row_of = row_of, .row_gates = row_gates, .ends = ends, .terms = {}};
  const kernels::ExpertLossScale losses{.aux_weight = config.aux_loss_weight,
                                        .z_weight = softmax ? config.z_loss_weight : 0,
                                        .sample = context.sample_scale,
                                        .sample_here = context.sample_scale_on_device};
  if (parts_.loads && !context.filler) parts_.loads->gpu(x.device()).add(counts);
  Param& router_weight = *parts_.router_weight;
  context.flops += 2 * gemm_flops(rows.size(0), logits.size(1), rows.size(1));
  const at::ScalarType type = gate_type(rows.scalar_type());
  at::Tensor of_router;
  if (rows.scalar_type() == at::kBFloat16) {
    // GEMMs of bfloat16 lose nothing of the weight and of the tokens, and of the gradient what is behind 16 bits.
    const at::Tensor pairs =
        kernels::route_experts_backward_in_pairs(grad.gates, logits, routing, router_of(x, context), losses);
    const at::Tensor& weight = context.value(router_weight);
    of_router = kernels::gemm({.a = pairs, .b = at::cat({weight, weight}), .out_type = type}).out;
    tape.weight_gradient([&router_weight, pairs, rows, type, &context] {
      context.begin_adding(router_weight);
      if (router_weight.trainable) {
        const at::Tensor both = kernels::gemm({.a = pairs, .b = rows, .transpose_a = true, .out_type = type})
                                    .out.view({2, -1, rows.size(1)});
        add_gradient(router_weight, both.select(0, 0) + both.select(0, 1));
      }
      context.end_adding(router_weight);
      context.added(router_weight);
    });
  } else {
    const at::Tensor grad_logits =
        kernels::route_experts_backward(grad.gates, logits, routing, router_of(x, context), losses);
    of_router = at::matmul(grad_logits, context.value(router_weight).to(type));
    tape.weight_gradient([&router_weight, grad_logits, rows, type, &context] {
      context.begin_adding(router_weight);
      if (router_weight.trainable) add_gradient(router_weight, at::matmul(grad_logits.t(), rows.to(type)));
      context.end_adding(router_weight);
      context.added(router_weight);
    });
  }
  return kernels::combine_rows(grad.x, row_of, of_shared.defined() ? of_shared.contiguous() : of_shared, of_router)
      .view(x.sizes());
}

}  // namespace trireme::nn::moe
