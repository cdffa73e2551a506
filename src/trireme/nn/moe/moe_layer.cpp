#include "trireme/nn/moe/moe_layer.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sum.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <optional>

#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/device/tensor_buffer.h"
#include "trireme/nn/exchange.h"
#include "trireme/nn/flops.h"
#include "trireme/nn/moe/fp8_rows.h"

namespace trireme::nn::moe {
namespace {

std::vector<double> to_doubles(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  const at::Tensor here = tensor.to(at::kDouble).cpu().contiguous();
  return {here.const_data_ptr<double>(), here.const_data_ptr<double>() + here.numel()};
}

at::Tensor to_tensor(std::span<const std::int64_t> numbers) {
  at::Tensor out = at::empty({static_cast<std::int64_t>(numbers.size())}, at::kLong);
  std::ranges::copy(numbers, out.mutable_data_ptr<std::int64_t>());
  return out;
}

std::span<const std::int64_t> numbers_of(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(tensor.numel())};
}

/// A gradient that is small beside the layer's GEMMs: with whatever type the parameter's gradient has.
void add_deferred(Param& param, at::Tensor dy, at::Tensor x, Context& context, Tape& tape) {
  tape.weight_gradient([&param, dy = std::move(dy), x = std::move(x), &context] {
    context.begin_adding(param);
    if (param.trainable) add_gradient(param, at::matmul(dy.t(), x));
    context.end_adding(param);
    context.added(param);
  });
}

/// What a rank's experts take in training, from a pass's rows to their end: the price of an uneven load.
class Busy {
 public:
  Busy(ExpertLoads* loads, const Context& context) : loads_(context.training && !context.filler ? loads : nullptr) {}
  ~Busy() {
    if (loads_ != nullptr)
      loads_->busy_ns += std::chrono::nanoseconds(std::chrono::steady_clock::now() - begun_).count();
  }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;
  /// In backward, once for each row.
  void count(std::int64_t rows) {
    if (loads_ != nullptr) loads_->busy_rows += rows;
  }

 private:
  ExpertLoads* loads_;
  std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
};

void stop_before(PassStops::Before next, bool first, const Context& context) {
  if (first && context.stops != nullptr) context.stops->stop(next);
}

}  // namespace

MoeLayer::MoeLayer(MoeParts parts, const ParallelContext& parallel) : parts_(std::move(parts)), parallel_(&parallel) {
  const Router& router = *parts_.router;
  TRIREME_CHECK(parts_.router_weight->placement.shape[0] == router.outputs(),
                "the router of {} has {} rows for {} logits", parts_.name, parts_.router_weight->placement.shape[0],
                router.outputs());
  TRIREME_CHECK((router.bias_kind() == Router::BiasKind::kLearned) == (parts_.thresholds != nullptr),
                "the router of {} and its thresholds", parts_.name);
  TRIREME_CHECK(router.bias_kind() != Router::BiasKind::kBalanced || (parts_.loads && parts_.loads->bias.defined()),
                "the router of {} has no bias", parts_.name);
  TRIREME_CHECK(parts_.experts.local_experts() * parts_.exchange->ranks() == router.experts(),
                "{} experts of {} on each of {} ranks", parts_.experts.local_experts(), router.experts(),
                parts_.exchange->ranks());
  ++parts_.router_weight->uses;
  if (parts_.thresholds) ++parts_.thresholds->uses;
  if (parts_.shared.gate) ++parts_.shared.gate->uses;
}

at::Tensor MoeLayer::jitter(const TokenGroups& groups, std::int64_t width, const Context& context) const {
  const double most = parts_.router->config().jitter;
  at::Tensor out = at::empty({static_cast<std::int64_t>(groups.mine.size()), width}, at::kDouble);
  const Random draws(context.seed, fmt::format("router/{}/jitter/step {}", parts_.name, context.step));
  double* row = out.mutable_data_ptr<double>();
  for (const std::int64_t token : groups.mine) {
    const auto number = static_cast<std::uint64_t>(groups.numbers[static_cast<std::size_t>(token)]);
    draws.fill_uniform(number * static_cast<std::uint64_t>(width), std::span(row, static_cast<std::size_t>(width)));
    row += width;
  }
  return out.mul_(2 * most).add_(1 - most);
}

at::Tensor MoeLayer::router_input(const at::Tensor& rows, const TokenGroups& groups, const Context& context) const {
  const at::ScalarType type = gate_type(rows.scalar_type());
  at::Tensor out = rows.to(type);
  if (context.training && parts_.router->config().jitter > 0) {
    out = out * jitter(groups, rows.size(1), context).to(type).to(rows.device());
  }
  return out;
}

at::Tensor MoeLayer::router_bias(Context& context) const {
  switch (parts_.router->bias_kind()) {
    case Router::BiasKind::kBalanced:
      return parts_.loads->bias.clone();  // backward reads it after a later step's may have come
    case Router::BiasKind::kLearned:
      return context.value(*parts_.thresholds);
    case Router::BiasKind::kNone:
      break;
  }
  return {};
}

RouterInput MoeLayer::input_of(const Routed& routed, std::int64_t group, const Context& context) const {
  const auto first = static_cast<std::size_t>(routed.groups.first_token(group));
  const auto count = static_cast<std::size_t>(routed.groups.tokens_of(group));
  const auto outputs = static_cast<std::size_t>(parts_.router->outputs());
  return {.logits = std::span(routed.logits).subspan(first * outputs, count * outputs),
          .token_numbers = std::span(routed.groups.numbers).subspan(first, count),
          .bias = routed.bias,
          .layer = parts_.name,
          .seed = context.seed,
          .step = context.step,
          .training = context.training,
          .limited = context.kv_batch == nullptr};
}

PendingRows MoeLayer::begin_dispatch(const Dispatch& dispatch, const at::Tensor& tokens) const {
  const bool same = parts_.router->config().dispatch_precision == spec::DispatchPrecision::kSame;
  return dispatch.begin_tokens(same ? tokens : to_fp8_rows(tokens));
}

at::Tensor MoeLayer::dispatched(const Dispatch& dispatch, PendingRows pending, at::ScalarType type) const {
  at::Tensor rows = dispatch.arrived(pending);
  const bool same = parts_.router->config().dispatch_precision == spec::DispatchPrecision::kSame;
  return same ? rows : from_fp8_rows(rows, type);
}

const ExpertCopies* MoeLayer::copies(const Context& context) {
  if (parts_.loads == nullptr || parts_.exchange->ranks() == 1) return nullptr;
  // Places are those of the weights, whatever the pass; copies are made for training.
  std::vector<std::int64_t> chosen;
  if (context.training && std::ranges::any_of(parts_.loads->copies, [](std::int64_t expert) { return expert >= 0; }))
    chosen = parts_.loads->copies;
  const std::vector<std::int64_t>& order = parts_.loads->order;
  if (chosen.empty() && order.empty()) return nullptr;
  if (!copies_ || copies_->copies() != chosen || copies_->order() != order)
    copies_ = std::make_unique<ExpertCopies>(*parts_.exchange, parts_.router->experts(), std::move(chosen), order);
  return copies_.get();
}

MoeLayer::Routed MoeLayer::route(TokenGroups groups, const at::Tensor& logits, const at::Tensor& bias,
                                 const Context& context, bool wants_losses) {
  Routed routed{
      .groups = std::move(groups), .logits = to_doubles(logits), .bias = to_doubles(bias), .routings = {}, .home = {}};
  // Groups know nothing of each other.
  routed.routings.resize(static_cast<std::size_t>(routed.groups.groups()));
  at::parallel_for(0, routed.groups.groups(), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t group = begin; group < end; ++group) {
      RouterInput input = input_of(routed, group, context);
      input.wants_losses = wants_losses;
      routed.routings[static_cast<std::size_t>(group)] = parts_.router->route(input);
    }
  });
  const auto tokens = static_cast<std::int64_t>(routed.groups.mine.size());
  const TokenRange taken = slices() ? slice_of(tokens, parallel_->tensor_rank()) : TokenRange{0, tokens};
  routed.home = home_rows(routed.groups, routed.routings,
                          {.experts = parts_.router->experts(),
                           .gate_type = logits.scalar_type(),
                           .taken = taken,
                           .copies = copies(context)});
  routed.home.move_to(logits.device());
  return routed;
}

bool MoeLayer::slices() const {
  return parts_.router->config().slice_over_tp && parallel_->tensor_ranks() > 1 && !parallel_->splits_sequence();
}

TokenRange MoeLayer::slice_of(std::int64_t tokens, int rank) const {
  const std::int64_t each = (tokens + parallel_->tensor_ranks() - 1) / parallel_->tensor_ranks();
  const std::int64_t first = std::min(tokens, rank * each);
  return {first, std::min(tokens, first + each) - first};
}

void MoeLayer::gather_slices(at::Tensor& rows) const {
  if (!slices()) return;
  std::vector<std::size_t> counts;
  for (int rank = 0; rank < parallel_->tensor_ranks(); ++rank)
    counts.push_back(static_cast<std::size_t>(slice_of(rows.size(0), rank).count * rows.size(1)));
  const TokenRange mine = slice_of(rows.size(0), parallel_->tensor_rank());
  const at::Tensor own = rows.narrow(0, mine.first, mine.count);
  parallel_->tensor->all_gather_v(device::to_const_buffer(own), device::to_buffer(rows), counts).wait();
}

void MoeLayer::tell_losses(const Routed& routed, Context& context) const {
  if (context.filler) return;
  std::vector<LossTerm> terms;
  double dropped = 0, choices = 0;
  for (std::int64_t group = 0; group < routed.groups.groups(); ++group) {
    const Routing& routing = routed.routings[static_cast<std::size_t>(group)];
    const auto samples = static_cast<double>(routed.groups.samples_of(group));
    const auto add = [&](const std::string& name, double value, double weight, LossMean mean) {
      add_term(terms, {.name = name,
                       .sum = samples * value,
                       .count = samples,
                       .weight = weight,
                       .mean = mean,
                       .sum_over_cp = false});  // every rank that shares a sample has the whole of it
    };
    for (const RouterLoss& loss : routing.losses) {
      add(loss.name, loss.value, loss.weight, loss.weight > 0 ? LossMean::kSamples : LossMean::kCount);
    }
    const auto total = static_cast<double>(routing.choices.size());
    if (total == 0) continue;
    const auto most = static_cast<double>(*std::ranges::max_element(routing.counts));
    add("router_max_load", most * static_cast<double>(parts_.router->experts()) / total, 0, LossMean::kCount);
    choices += total;
    dropped += static_cast<double>(std::accumulate(routing.dropped.begin(), routing.dropped.end(), std::int64_t{0}));
  }
  if (parts_.router->config().capacity_factor > 0) {
    add_term(terms, {.name = "router_dropped",
                     .sum = dropped,
                     .count = choices,
                     .weight = 0,
                     .mean = LossMean::kCount,
                     .sum_over_cp = false});
  }
  for (LossTerm& term : terms) context.losses.push_back(std::move(term));
}

at::Tensor MoeLayer::forward_experts(const at::Tensor& x, const Routed& routed, const DispatchPlan& plan,
                                     Context& context, Saved* saved, const Meanwhile& meanwhile) {
  std::optional<CopiedWeights> copied;
  if (const ExpertCopies* of_experts = copies(context))
    copied.emplace(parts_.experts.with_copies(*of_experts, context));
  at::Tensor home_y = at::empty({routed.home.token.size(0), x.size(1)}, x.options());
  for (const DispatchPass& pass : plan) {
    // Further passes, of rows that one has no room for, run through: how many there are is not known beforehand.
    const bool first = &pass == &plan.front();
    stop_before(PassStops::Before::kDispatch, first, context);
    const Dispatch dispatch(*parts_.exchange, pass, {routed.home.token, routed.home.token_number},
                            parts_.router->config().node_ranks);
    PendingRows of_tokens = begin_dispatch(dispatch, x), of_gates = dispatch.begin_to_experts(routed.home.gates);
    if (first && meanwhile) meanwhile();
    stop_before(PassStops::Before::kExpert, first, context);
    const ExpertRows rows{.x = dispatched(dispatch, std::move(of_tokens), x.scalar_type()),
                          .gates = dispatch.arrived(of_gates),
                          .token_numbers = dispatch.token_numbers(),
                          .offsets = pass.offsets,
                          .copied = copied ? &*copied : nullptr};
    at::Tensor pre_activation, y;
    {
      const Busy busy(parts_.loads, context);
      pre_activation = parts_.experts.pre_activation(rows, context);
      y = parts_.experts.forward(rows, pre_activation, context);
    }
    PendingRows back = dispatch.begin_home(y);
    stop_before(PassStops::Before::kCombine, first, context);
    dispatch.arrived_home(back, home_y);
    if (saved == nullptr || plan.size() > 1) continue;
    saved->pre_activation = pre_activation;
    if (parts_.exchange->ranks() > 1) saved->x = rows.x;  // here alone it is gathered from x again
  }
  return home_y;
}

at::Tensor MoeLayer::shared_gate(const at::Tensor& rows, Context& context) const {
  const at::ScalarType type = gate_type(rows.scalar_type());
  return at::sigmoid(at::matmul(rows.to(type), context.value(*parts_.shared.gate).to(type).t())).view({-1});
}

at::Tensor MoeLayer::forward_shared(const at::Tensor& x, Context& context, Tape* tape, at::Tensor& ungated) {
  at::Tensor y = static_cast<UnaryLayer&>(*parts_.shared.mlp).forward(x, context, tape);
  if (parts_.shared.gate == nullptr) return y;
  ungated = y;
  at::Tensor rows = as_rows(y).clone();
  scale_rows_(rows, shared_gate(as_rows(x), context));
  return rows.view(x.sizes());
}

at::Tensor MoeLayer::forward(at::Tensor x, Context& context, Tape* tape) {
  if (context.kv_batch != nullptr && parts_.router->looks_at_other_tokens()) {
    throw ConfigError(
        fmt::format("{} cannot generate: its experts choose among tokens, also those still to come", parts_.name),
        "evaluate it with `trireme eval`, or train with another experts.router");
  }
  TRIREME_CHECK(!parts_.sliced || (tape == nullptr && x.is_cpu()), "sliced experts compute inference on the CPU");
  if (routes_there(x, context)) return forward_on_gpu(std::move(x), context, tape);
  const Router& router = *parts_.router;
  const at::Tensor rows = as_rows(x);
  TokenGroups groups = token_groups(x, router.config().balance_group, context, parts_.stream, *parallel_);
  const at::ScalarType type = gate_type(x.scalar_type());
  const at::Tensor weight = context.value(*parts_.router_weight).to(type);
  context.flops += gemm_flops(rows.size(0), weight.size(1), weight.size(0));
  const at::Tensor own = at::matmul(router_input(rows, groups, context), weight.t());
  const at::Tensor logits =
      gather_tokens(own.view({x.size(0), x.size(1), router.outputs()}), groups.length, *parallel_);
  const at::Tensor bias = router_bias(context);
  const Routed routed = route(std::move(groups), logits, bias, context, /*wants_losses=*/true);
  tell_losses(routed, context);

  const std::vector<std::int64_t> counts = parts_.exchange->gather_counts(routed.home.counts);
  const int ranks = parts_.exchange->ranks();
  const DispatchPlan plan =
      plan_dispatch(counts, ranks, parts_.exchange->rank(), arena_rows(counts, ranks, router.config().arena));
  passes_ = plan.size();
  Saved saved;
  at::Tensor ungated, of_shared;
  Meanwhile shared;
  if (parts_.shared.mlp) shared = [&] { of_shared = forward_shared(x, context, tape, ungated); };
  at::Tensor y = sum_rows_of_tokens(forward_experts(rows, routed, plan, context, tape ? &saved : nullptr, shared),
                                    routed.home.of_tokens());
  gather_slices(y);
  if (parts_.sliced) sum_over(y, *parallel_->tensor);
  y = y.view(x.sizes());
  if (of_shared.defined()) y.add_(of_shared);
  if (!tape) return y;
  if (context.divided) {
    // Rows of experts belong to no part: each part is dispatched again, by counts of its own. Biases as rows of it.
    const at::Tensor of_samples = bias.defined() ? bias.unsqueeze(0).expand({x.size(0), bias.size(0)}) : at::Tensor();
    tape->push({logits, of_samples, at::Tensor(), at::Tensor(), at::Tensor(), std::move(ungated), std::move(x)});
  } else {
    tape->push({logits, bias, to_tensor(counts), std::move(saved.x), std::move(saved.pre_activation),
                std::move(ungated), std::move(x)});
  }
  return y;
}

MoeLayer::HomeGrad MoeLayer::backward_experts(const at::Tensor& dy, const at::Tensor& x, const Routed& routed,
                                              const DispatchPlan& plan, const Saved& saved, Context& context,
                                              Tape& tape, const Meanwhile& meanwhile) {
  std::optional<CopiedWeights> copied;
  if (const ExpertCopies* of_experts = copies(context))
    copied.emplace(parts_.experts.with_copies(*of_experts, context));
  HomeGrad grad{.x = at::empty({routed.home.token.size(0), dy.size(1)}, dy.options()),
                .gates = at::empty_like(routed.home.gates)};
  for (const DispatchPass& pass : plan) {
    const bool first = &pass == &plan.front();
    stop_before(PassStops::Before::kDispatch, first, context);
    const Dispatch dispatch(*parts_.exchange, pass, {routed.home.token, routed.home.token_number},
                            parts_.router->config().node_ranks);
    PendingRows of_dy = begin_dispatch(dispatch, dy), of_gates = dispatch.begin_to_experts(routed.home.gates), of_x;
    if (!saved.x.defined()) of_x = begin_dispatch(dispatch, x);
    if (first && meanwhile) meanwhile();
    stop_before(PassStops::Before::kExpert, first, context);
    const ExpertRows rows{.x = saved.x.defined() ? saved.x : dispatched(dispatch, std::move(of_x), x.scalar_type()),
                          .gates = dispatch.arrived(of_gates),
                          .token_numbers = dispatch.token_numbers(),
                          .offsets = pass.offsets,
                          .copied = copied ? &*copied : nullptr};
    at::Tensor pre_activation = saved.pre_activation;
    at::Tensor of_expert_rows = dispatched(dispatch, std::move(of_dy), dy.scalar_type());
    std::optional<Busy> busy(std::in_place, parts_.loads, context);
    busy->count(pass.rows());
    if (!pre_activation.defined()) {
      const CountAsRecomputed again(context);
      pre_activation = parts_.experts.pre_activation(rows, context);
    }
    const auto of_rows = parts_.experts.backward(std::move(of_expert_rows), rows, pre_activation, context, tape);
    busy.reset();
    PendingRows x_back = dispatch.begin_home(of_rows.x), gates_back = dispatch.begin_home(of_rows.gates);
    stop_before(PassStops::Before::kCombine, first, context);
    dispatch.arrived_home(x_back, grad.x);
    dispatch.arrived_home(gates_back, grad.gates);
  }
  // Here and not with the last pass, which is before the stop at combine where there is one pass and behind it where
  // there are more. Ranks that reduce these gradients together share experts with others, so that their numbers of
  // passes differ; their calls, among which those of the other micro-batch of a pair stand, must not.
  parts_.experts.end_backward(context, tape);
  return grad;
}

at::Tensor MoeLayer::backward_router(const at::Tensor& rows, const Routed& routed, const at::Tensor& grad_gates,
                                     Context& context, Tape& tape) const {
  const Router& router = *parts_.router;
  std::size_t choices = 0;
  for (const Routing& routing : routed.routings) choices += routing.choices.size();
  std::vector<double> of_choices(choices, 0);
  const std::vector<double> of_rows = to_doubles(grad_gates);
  for (std::size_t i = 0; i < of_rows.size(); ++i) of_choices[routed.home.choice[i]] = of_rows[i];
  if (slices())  // each rank has those of its slice, and zeros elsewhere
    parallel_->tensor
        ->all_reduce(comm::Buffer{of_choices.data(), of_choices.size(), comm::DType::kF64}, comm::Reduce::kSum)
        .wait();

  std::vector<RouterGrad> grads(routed.routings.size());
  std::vector<std::size_t> begins{0};
  for (const Routing& routing : routed.routings) begins.push_back(begins.back() + routing.choices.size());
  at::parallel_for(0, routed.groups.groups(), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t group = begin; group < end; ++group) {
      const auto at = static_cast<std::size_t>(group);
      const double scale = static_cast<double>(routed.groups.samples_of(group)) * context.sample_scale;
      grads[at] = router.backward(input_of(routed, group, context), routed.routings[at],
                                  std::span(of_choices).subspan(begins[at], begins[at + 1] - begins[at]), scale);
    }
  });
  std::vector<double> of_logits, of_bias;
  for (std::size_t group = 0; group < grads.size(); ++group) {
    const RouterGrad& grad = grads[group];
    of_logits.insert(of_logits.end(), grad.logits.begin(), grad.logits.end());
    of_bias.resize(grad.bias.size(), 0);
    for (std::size_t i = 0; i < grad.bias.size(); ++i) of_bias[i] += grad.bias[i];
    if (parts_.loads && !context.filler) parts_.loads->add(routed.routings[group].counts, context.step);
  }
  if (parts_.thresholds) {
    if (of_bias.empty()) of_bias.assign(static_cast<std::size_t>(router.experts()), 0);
    context.begin_adding(*parts_.thresholds);
    if (parts_.thresholds->trainable)
      add_gradient(*parts_.thresholds,
                   at::from_blob(of_bias.data(), {router.experts()}, at::kDouble).to(rows.device()));
    context.end_adding(*parts_.thresholds);
    context.added(*parts_.thresholds);
  }

  const std::int64_t tokens = static_cast<std::int64_t>(routed.groups.mine.size()), outputs = router.outputs();
  at::Tensor own = at::empty({tokens, outputs}, at::kDouble);
  for (std::int64_t token = 0; token < tokens; ++token) {
    const auto from = static_cast<std::size_t>(routed.groups.mine[static_cast<std::size_t>(token)] * outputs);
    std::copy_n(of_logits.begin() + static_cast<std::ptrdiff_t>(from), outputs,
                own.mutable_data_ptr<double>() + token * outputs);
  }
  const at::ScalarType type = gate_type(rows.scalar_type());
  const at::Tensor grad_logits = own.to(type).to(rows.device());
  const at::Tensor weight = context.value(*parts_.router_weight).to(type);
  context.flops += 2 * gemm_flops(tokens, outputs, weight.size(1));
  at::Tensor dx = at::matmul(grad_logits, weight);
  if (context.training && router.config().jitter > 0) {
    dx.mul_(jitter(routed.groups, rows.size(1), context).to(type).to(rows.device()));
  }
  add_deferred(*parts_.router_weight, grad_logits, router_input(rows, routed.groups, context), context, tape);
  return dx;
}

at::Tensor MoeLayer::backward_shared(at::Tensor dy, const at::Tensor& x, const at::Tensor& ungated, Context& context,
                                     Tape& tape) {
  auto& mlp = static_cast<UnaryLayer&>(*parts_.shared.mlp);
  if (parts_.shared.gate == nullptr) return mlp.backward(std::move(dy), context, tape);
  const at::Tensor rows = as_rows(x), gate = shared_gate(rows, context);
  at::Tensor of_mlp = as_rows(dy).clone();
  const at::Tensor of_gate = scale_rows_backward_(of_mlp, as_rows(ungated), gate);
  at::Tensor dx = mlp.backward(of_mlp.view(dy.sizes()), context, tape);
  const at::Tensor of_logit = (of_gate * gate * (1 - gate)).unsqueeze(1);
  const at::ScalarType type = gate_type(x.scalar_type());
  add_deferred(*parts_.shared.gate, of_logit, rows.to(type), context, tape);
  as_rows(dx).add_(at::matmul(of_logit, context.value(*parts_.shared.gate).to(type)));
  return dx;
}

at::Tensor MoeLayer::backward(at::Tensor dy, Context& context, Tape& tape) {
  if (routes_there(dy, context)) return backward_on_gpu(std::move(dy), context, tape);
  auto [logits, bias, counts, saved_x, pre_activation, ungated, x] = tape.pop<7>();
  const at::Tensor rows = as_rows(x), of_rows = as_rows(dy);
  if (bias.defined() && bias.dim() == 2) bias = bias.select(0, 0);
  const Routed routed =
      route(token_groups(x, parts_.router->config().balance_group, context, parts_.stream, *parallel_), logits, bias,
            context, /*wants_losses=*/false);
  const int ranks = parts_.exchange->ranks();
  if (!counts.defined()) counts = to_tensor(parts_.exchange->gather_counts(routed.home.counts));
  const DispatchPlan plan = plan_dispatch(numbers_of(counts), ranks, parts_.exchange->rank(),
                                          arena_rows(numbers_of(counts), ranks, parts_.router->config().arena));
  at::Tensor of_shared;
  Meanwhile shared;
  // In memory of its own: rows of the gradient are still on their way.
  if (parts_.shared.mlp) shared = [&] { of_shared = backward_shared(dy.clone(), x, ungated, context, tape); };
  const HomeGrad grad = backward_experts(of_rows, rows, routed, plan, {std::move(saved_x), std::move(pre_activation)},
                                         context, tape, shared);
  at::Tensor dx = sum_rows_of_tokens(grad.x, routed.home.of_tokens());
  gather_slices(dx);
  dx.add_(backward_router(rows, routed, grad.gates, context, tape));
  dx = dx.view(x.sizes());
  if (of_shared.defined()) dx.add_(of_shared);
  return dx;
}

}  // namespace trireme::nn::moe
