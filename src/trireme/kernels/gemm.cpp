#include "trireme/kernels/gemm.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <fmt/format.h>

#include <atomic>
#include <optional>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/kernels/activation.h"
#include "trireme/kernels/gemm_plans.h"
#include "trireme/kernels/sum_rows.h"

namespace trireme::kernels {
namespace {

std::atomic<bool> tuned{true};

/// A library's GELU is within a few roundings of 16 bits, not of float.
bool narrow(const at::Tensor& x) { return x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf; }

/// A GEMM that the library may take: the call, but for what does not fit.
std::optional<CudaGemm> call_for(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add,
                                 const GemmExtras& extras) {
  if (!out.is_cuda() || !tuned.load(std::memory_order_relaxed)) return std::nullopt;
  return product_call(out, a, b, add, extras);
}

/// By the tensor library.
void plain_product(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add) {
  const bool wider = a.scalar_type() != out.scalar_type();
  if (add) {
    wider ? at::addmm_out(out, out, a, b, out.scalar_type()) : out.addmm_(a, b);
  } else {
    wider ? at::mm_out(out, a, b, out.scalar_type()) : at::mm_out(out, a, b);
  }
}

std::string way_key(const char* what, const at::Tensor& out, std::int64_t summed, std::string_view more) {
  return fmt::format("{} {} {}x{}x{}{}", what, c10::toString(out.scalar_type()), out.size(0), out.size(1), summed,
                     more);
}

}  // namespace

void set_tuned_products(bool on) { tuned = on; }
bool tuned_products() { return tuned; }

bool takes_product(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, const GemmExtras& extras,
                   bool add) {
  const auto call = call_for(out, a, b, add, extras);
  return call && has_plan(*call, out);
}

void fused_product(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add, const GemmExtras& extras) {
  const auto call = call_for(out, a, b, add, extras);
  TRIREME_CHECK(call && has_plan(*call, out), "a GEMM of {} x {} x {} that no plan fits", out.size(0), out.size(1),
                a.size(1));
  run_product(*call, out);
}

at::Tensor product_of(const at::Tensor& a, const at::Tensor& b) {
  if (!a.is_cuda()) return at::mm(a, b);
  at::Tensor out = at::empty({a.size(0), b.size(1)}, a.options());
  product_into(out, a, b);
  return out;
}

void product_into(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add) {
  const auto call = call_for(out, a, b, add, {});
  if (call && has_plan(*call, out)) return run_product(*call, out);
  plain_product(out, a, b, add);
}

at::Tensor linear_product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                          const at::Tensor& onto) {
  if (x.is_cuda() && tuned) {
    at::Tensor out = at::empty({x.size(0), weight.size(0)}, x.options());
    const GemmExtras extras{
        .kind = bias.defined() ? GemmExtras::Kind::kBias : GemmExtras::Kind::kNone, .bias = bias, .onto = onto};
    const auto call = call_for(out, x, weight.t(), /*add=*/onto.defined(), extras);
    if (call && has_plan(*call, out)) {
      run_product(*call, out);
      return out;
    }
  }
  at::Tensor out = bias.defined() ? at::addmm(bias, x, weight.t()) : at::mm(x, weight.t());
  return onto.defined() ? out.add_(onto) : out;
}

GeluLinear gelu_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  GeluLinear out{.inner = at::empty({x.size(0), weight.size(0)}, x.options()), .active = {}};
  out.active = at::empty_like(out.inner);
  const GemmExtras extras{.kind = GemmExtras::Kind::kGelu, .bias = bias, .inner = out.inner};
  const auto apart = [&] {
    out.inner = linear_product(x, weight, bias);
    activation_forward(out.active, out.inner, at::Tensor(), Activation::kGeluTanh);
  };
  if (!narrow(x) || !call_for(out.active, x, weight.t(), /*add=*/false, extras)) {
    apart();
    return out;
  }
  const std::string way = fastest_way(way_key("gelu", out.inner, x.size(1), bias.defined() ? " bias" : ""),
                                      {{"apart", apart},
                                       {"fused",
                                        [&] {
                                          out.inner = extras.inner;
                                          fused_product(out.active, x, weight.t(), /*add=*/false, extras);
                                        }}},
                                      [&] {
                                        return std::vector<at::Tensor>{out.inner, out.active};
                                      });
  if (way == "fused") {
    out.inner = extras.inner;
    fused_product(out.active, x, weight.t(), /*add=*/false, extras);
  } else {
    apart();
  }
  return out;
}

at::Tensor gelu_linear_back(const at::Tensor& dy, const at::Tensor& weight, const at::Tensor& inner, at::Tensor& active,
                            at::Tensor& dbias) {
  at::Tensor dinner = at::empty_like(inner);
  const GemmExtras extras{.kind = GemmExtras::Kind::kGeluSlope, .inner = inner};
  const auto apart = [&](at::Tensor& sum) {
    product_into(dinner, dy, weight);
    activation_backward(dinner, sum, dinner, inner, at::Tensor(), Activation::kGeluTanh,
                        active.defined() ? &active : nullptr, /*anew=*/true);
  };
  const auto fused = [&](at::Tensor& sum) {
    fused_product(dinner, dy, weight, /*add=*/false, extras);
    if (active.defined()) activation_forward(active, inner, at::Tensor(), Activation::kGeluTanh);
    if (sum.defined()) add_row_sum(sum, dinner, /*anew=*/true);
  };
  std::string way = "apart";
  if (narrow(dy) && call_for(dinner, dy, weight, /*add=*/false, extras)) {
    at::Tensor trial = dbias.defined() ? at::empty_like(dbias) : at::Tensor();
    way = fastest_way(way_key("gelu slope", dinner, dy.size(1),
                              fmt::format("{}{}", active.defined() ? " again" : "", dbias.defined() ? " sum" : "")),
                      {{"apart", [&] { apart(trial); }}, {"fused", [&] { fused(trial); }}}, [&] {
                        std::vector<at::Tensor> made{dinner};
                        if (trial.defined()) made.push_back(trial);
                        return made;
                      });
  }
  way == "fused" ? fused(dbias) : apart(dbias);
  return dinner;
}

bool sums_in_product(const at::Tensor& gradient, const at::Tensor& dy, const at::Tensor& x) {
  const bool rounds = narrow(gradient);  // the library then rounds the sum as it does the GEMM
  if (!dy.is_cuda() || (!rounds && gradient.scalar_type() != at::kFloat)) return false;
  const at::Tensor a = dy.t();
  if (!gradient.is_contiguous()) return false;
  // Any place will do to ask.
  GemmExtras extras{.kind = GemmExtras::Kind::kSum, .bias = gradient.view({-1}).narrow(0, 0, dy.size(1))};
  if (!call_for(gradient, a, x, /*add=*/false, extras)) return false;
  at::Tensor trial, sum;  // made where they are needed: when the ways are timed
  const auto prepare = [&] {
    if (trial.defined()) return;
    trial = at::empty_like(gradient);
    sum = at::empty({dy.size(1)}, gradient.options().dtype(at::kFloat));
    extras.bias = rounds ? at::empty({dy.size(1)}, gradient.options()) : sum;
  };
  return fastest_way(way_key("bias sum", gradient, dy.size(0), ""),
                     {{"apart",
                       [&] {
                         prepare();
                         product_into(trial, a, x);
                         add_row_sum(sum, dy, /*anew=*/true);
                       }},
                      {"fused",
                       [&] {
                         prepare();
                         fused_product(trial, a, x, /*add=*/false, extras);
                         if (rounds) sum.copy_(extras.bias);
                       }}},
                     [&] {
                       return std::vector<at::Tensor>{trial, sum};
                     }) == "fused";
}

}  // namespace trireme::kernels
