#include "trireme/kernels/expert_ops.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "trireme/base/error.h"
#include "trireme/kernels/arguments.h"
#include "trireme/kernels/cuda.h"
#include "trireme/kernels/cuda_moe_table.h"
#include "trireme/kernels/expert_rows.h"

namespace trireme::kernels {
namespace {

CudaRouter router_call(const at::Tensor& logits, const ExpertRouting& routing, const ExpertRouter& router) {
  return {.logits = logits.const_data_ptr(),
          .element = Arguments("route_experts").element(logits, "logits"),
          .tokens = logits.size(0),
          .experts = logits.size(1),
          .top_k = router.top_k,
          .group_tokens = router.group_tokens,
          .sample_tokens = router.sample_tokens,
          .sigmoid = router.sigmoid,
          .normalised = router.normalised,
          .scaling = router.scaling,
          .chosen = routing.chosen.mutable_data_ptr<std::int32_t>(),
          .counts = routing.counts.mutable_data_ptr<std::int32_t>()};
}

void check_gpu_rows(const at::Tensor& rows, const char* what) {
  TRIREME_CHECK(rows.is_cuda() && rows.dim() == 2 && rows.is_contiguous(), "{} lie on a GPU, one by one", what);
}

at::ScalarType wide_type(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

const void* read_or_null(const at::Tensor& tensor) { return tensor.defined() ? tensor.const_data_ptr() : nullptr; }

CudaExpertActivation activation_call(const at::Tensor& pre, const at::Tensor& gates, bool gated) {
  check_gpu_rows(pre, "experts' pre-activations");
  TRIREME_CHECK(gates.is_contiguous() && gates.numel() == pre.size(0) && gates.scalar_type() == wide_type(pre),
                "{} gates for {} rows", gates.numel(), pre.size(0));
  return {.pre = pre.const_data_ptr(),
          .gates = gates.const_data_ptr(),
          .rows = pre.size(0),
          .width = gated ? pre.size(1) / 2 : pre.size(1),
          .gated = gated};
}

}  // namespace

bool routes_on_gpu(std::int64_t experts, std::int64_t top_k) {
  return experts <= kCudaMostExperts && top_k <= kCudaMostChoices;
}

ExpertRouting route_experts(const at::Tensor& logits, const at::Tensor& bias, const ExpertRouter& router) {
  check_gpu_rows(logits, "logits");
  const std::int64_t tokens = logits.size(0), experts = logits.size(1), k = router.top_k;
  TRIREME_CHECK(routes_on_gpu(experts, k) && k <= experts, "{} of {} experts for a token", k, experts);
  TRIREME_CHECK(!bias.defined() || (bias.is_cuda() && bias.scalar_type() == at::kFloat && bias.numel() == experts),
                "a bias of {} experts", experts);
  const at::TensorOptions whole = logits.options().dtype(at::kInt), real = logits.options().dtype(at::kDouble);
  const std::int64_t groups = (tokens + router.group_tokens - 1) / router.group_tokens;
  ExpertRouting out{.chosen = at::empty({tokens, k}, whole),
                    .counts = at::empty({groups, experts}, whole),
                    .row_of = at::empty({tokens, k}, whole),
                    .row_gates = at::empty({tokens * k}, logits.options()),
                    .ends = at::empty({experts}, whole),
                    .terms = at::empty({3, 2}, real)};
  const at::Tensor gates = at::empty({tokens, k}, logits.options());
  CudaRouteForward call{.router = router_call(logits, out, router),
                        .bias = bias.defined() ? bias.const_data_ptr<float>() : nullptr,
                        .groups = router.groups,
                        .top_k_groups = router.top_k_groups,
                        .group_best = router.group_best,
                        .gates = gates.mutable_data_ptr()};
  const at::Tensor partial = at::empty({groups * call.router.group_chunks(), experts + 1}, real),
                   room = at::empty({groups, experts}, real);
  call.partial = partial.mutable_data_ptr<double>();
  call.room = room.mutable_data_ptr<double>();
  call.terms = out.terms.mutable_data_ptr<double>();
  check_cuda(cuda_moe().route(call, cuda_stream()), "route_experts");
  const CudaRowOrder order{.router = call.router,
                           .gates = call.gates,
                           .row_of = out.row_of.mutable_data_ptr<std::int32_t>(),
                           .row_gates = out.row_gates.mutable_data_ptr(),
                           .ends = out.ends.mutable_data_ptr<std::int32_t>()};
  check_cuda(cuda_moe().order_rows(order, cuda_stream()), "order_rows");
  return out;
}

namespace {

CudaRouteBackward backward_call(const at::Tensor& grad_gates, const at::Tensor& logits, const ExpertRouting& routing,
                                const ExpertRouter& router, const ExpertLossScale& losses) {
  TRIREME_CHECK(grad_gates.is_contiguous() && grad_gates.scalar_type() == logits.scalar_type(), "gradients of gates");
  return {.router = router_call(logits, routing, router),
          .row_of = routing.row_of.const_data_ptr<std::int32_t>(),
          .grad_gates = grad_gates.const_data_ptr(),
          .aux_weight = losses.aux_weight,
          .z_weight = losses.z_weight,
          .scale = losses.sample,
          .scale_here = read_or_null(losses.sample_here)};
}

}  // namespace

at::Tensor route_experts_backward(const at::Tensor& grad_gates, const at::Tensor& logits, const ExpertRouting& routing,
                                  const ExpertRouter& router, const ExpertLossScale& losses) {
  at::Tensor out = at::empty_like(logits);
  CudaRouteBackward call = backward_call(grad_gates, logits, routing, router, losses);
  call.grad_logits = out.mutable_data_ptr();
  check_cuda(cuda_moe().route_backward(call, cuda_stream()), "route_experts_backward");
  return out;
}

at::Tensor route_experts_backward_in_pairs(const at::Tensor& grad_gates, const at::Tensor& logits,
                                           const ExpertRouting& routing, const ExpertRouter& router,
                                           const ExpertLossScale& losses) {
  at::Tensor out = at::empty({logits.size(0), 2 * logits.size(1)}, logits.options().dtype(at::kBFloat16));
  CudaRouteBackward call = backward_call(grad_gates, logits, routing, router, losses);
  call.grad_pairs = out.mutable_data_ptr();
  check_cuda(cuda_moe().route_backward(call, cuda_stream()), "route_experts_backward");
  return out;
}

at::Tensor permute_rows(const at::Tensor& x, const at::Tensor& row_of) {
  check_gpu_rows(x, "tokens");
  at::Tensor rows = at::empty({row_of.numel(), x.size(1)}, x.options());
  const CudaTokenRows call{.from = x.const_data_ptr(),
                           .to = rows.mutable_data_ptr(),
                           .row_of = row_of.const_data_ptr<std::int32_t>(),
                           .tokens = x.size(0),
                           .top_k = row_of.size(1),
                           .width = x.size(1)};
  check_cuda(cuda_moe().permute(call, Arguments("permute_rows").element(x, "x"), cuda_stream()), "permute_rows");
  return rows;
}

at::Tensor combine_rows(const at::Tensor& rows, const at::Tensor& row_of, const at::Tensor& add,
                        const at::Tensor& add_wide) {
  check_gpu_rows(rows, "experts' rows");
  const std::int64_t tokens = row_of.size(0), width = rows.size(1);
  at::Tensor out = at::empty({tokens, width}, rows.options());
  TRIREME_CHECK(
      !add.defined() || (add.is_contiguous() && add.numel() == out.numel() && add.scalar_type() == out.scalar_type()),
      "what is added to {} x {} has {} numbers", tokens, width, add.numel());
  TRIREME_CHECK(!add_wide.defined() || (add_wide.is_contiguous() && add_wide.numel() == out.numel() &&
                                        add_wide.scalar_type() == wide_type(out)),
                "what is added to {} x {} has {} numbers", tokens, width, add_wide.numel());
  const CudaTokenRows call{.from = rows.const_data_ptr(),
                           .to = out.mutable_data_ptr(),
                           .row_of = row_of.const_data_ptr<std::int32_t>(),
                           .tokens = tokens,
                           .top_k = row_of.size(1),
                           .width = width,
                           .add = read_or_null(add),
                           .add_wide = read_or_null(add_wide)};
  check_cuda(cuda_moe().combine(call, Arguments("combine_rows").element(rows, "rows"), cuda_stream()), "combine_rows");
  return out;
}

at::Tensor expert_activation(const at::Tensor& pre, const at::Tensor& gates, Activation kind, bool gated) {
  if (pre.is_cpu()) {
    at::Tensor y = at::empty({pre.size(0), gated ? pre.size(1) / 2 : pre.size(1)}, pre.options());
    expert_activation_on_cpu({.pre = pre, .gates = gates, .y = y, .gated = gated}, kind);
    return y;
  }
  CudaExpertActivation call = activation_call(pre, gates, gated);
  at::Tensor y = at::empty({call.rows, call.width}, pre.options());
  call.y = y.mutable_data_ptr();
  check_cuda(cuda_moe().activate(call, static_cast<int>(kind), Arguments("expert_activation").element(pre, "pre"),
                                 cuda_stream()),
             "expert_activation");
  return y;
}

ExpertActivationGrad expert_activation_backward(at::Tensor dy, const at::Tensor& pre, const at::Tensor& gates,
                                                Activation kind, bool gated, bool reuse) {
  if (pre.is_cpu()) {
    ExpertActivationGrad grad{.pre = reuse ? pre : at::empty_like(pre), .gates = at::empty_like(gates), .y = dy};
    expert_activation_on_cpu(
        {.pre = pre, .gates = gates, .dy = dy, .y = dy, .dpre = grad.pre, .dgates = grad.gates, .gated = gated}, kind);
    return grad;
  }
  CudaExpertActivation call = activation_call(pre, gates, gated);
  check_gpu_rows(dy, "gradients of experts' activations");
  ExpertActivationGrad grad{.pre = reuse ? pre : at::empty_like(pre), .gates = at::empty_like(gates), .y = dy};
  call.dy = dy.const_data_ptr();
  call.y = dy.mutable_data_ptr();
  call.dpre = grad.pre.mutable_data_ptr();
  call.dgates = grad.gates.mutable_data_ptr();
  check_cuda(cuda_moe().activate_backward(call, static_cast<int>(kind),
                                          Arguments("expert_activation_backward").element(pre, "pre"), cuda_stream()),
             "expert_activation_backward");
  return grad;
}

void add_groups(at::Tensor& out, const at::Tensor& from, const at::Tensor& ends, bool accumulate) {
  TRIREME_CHECK(from.is_contiguous() && out.is_contiguous() && from.sizes() == out.sizes() &&
                    from.scalar_type() == at::kBFloat16 &&
                    (out.scalar_type() == at::kFloat || out.scalar_type() == at::kBFloat16),
                "gradients of {} groups", from.size(0));
  const CudaAddGroups call{.from = from.const_data_ptr(),
                           .to = out.mutable_data_ptr(),
                           .ends = ends.const_data_ptr<std::int32_t>(),
                           .groups = from.size(0),
                           .each = from.numel() / from.size(0),
                           .wide = out.scalar_type() == at::kFloat,
                           .accumulate = accumulate};
  check_cuda(cuda_moe().add_groups(call, cuda_stream()), "add_groups");
}

}  // namespace trireme::kernels
