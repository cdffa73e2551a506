#include "trireme/nn/fp8_gemm.h"

#include <fmt/format.h>

#include "trireme/base/error.h"
#include "trireme/device/stream.h"
#include "trireme/nn/fp8_history.h"

namespace trireme::nn {

using kernels::Fp8Matrix;
using kernels::Fp8Pair;
using spec::GemmPrecision;

bool in_fp8(const Param& weight, std::int64_t rows) {
  if (weight.gemm == GemmPrecision::kSame) return false;
  const std::int64_t grain = weight.gemm == GemmPrecision::kFp8Blocks ? 128 : 16;
  if (rows % grain != 0) {
    throw ConfigError(
        fmt::format("GEMMs of 8-bit floats with {} take multiples of {} tokens, not {}", weight.name, grain, rows),
        fmt::format("make data.seq_len a multiple of {}, or set precision.gemm = \"same\"", grain));
  }
  return true;
}

namespace {

/// Gradients have the format with more range where one scale serves a whole tensor; small blocks do not need it.
kernels::Fp8Format format_of(const Param& weight, Fp8Side side) {
  const bool wide = side == Fp8Side::kGradient && weight.gemm != GemmPrecision::kFp8Blocks;
  return wide ? kernels::Fp8Format::kE5m2 : kernels::Fp8Format::kE4m3;
}

kernels::Fp8Live delayed_scale(const Param& weight, const Fp8Wish& wish) {
  TRIREME_CHECK(weight.scales.defined(), "{} has no delayed scales", weight.name);
  const at::Tensor row = weight.scales.select(0, static_cast<std::int64_t>(wish.side));
  return {.scale = row.narrow(0, 1, 1),
          .amax = wish.note ? row.narrow(0, 0, 1) : at::Tensor(),
          .known = weight.scales_known};
}

}  // namespace

Fp8Pair round_side(const Param& weight, const at::Tensor& x, const Fp8Wish& wish, const Fp8Pair* into) {
  const bool blocks = weight.gemm == GemmPrecision::kFp8Blocks;
  const auto format = format_of(weight, wish.side);
  const auto scaling = !blocks                         ? kernels::Fp8Scaling::kTensor
                       : wish.side == Fp8Side::kWeight ? kernels::Fp8Scaling::kTiles
                                                       : kernels::Fp8Scaling::kLines;
  if (weight.gemm != GemmPrecision::kFp8Delayed) {
    return kernels::to_fp8(x, format, scaling, wish.rows, wish.columns, nullptr, into);
  }
  const kernels::Fp8Live live = delayed_scale(weight, wish);
  return kernels::to_fp8(x, format, scaling, wish.rows, wish.columns, &live, into);
}

bool rounds_gated(const Param& weight) { return weight.gemm == GemmPrecision::kFp8Delayed && weight.scales_known; }

Fp8Pair round_gated(const Param& weight, const at::Tensor& gate, const at::Tensor& up, kernels::Activation kind,
                    const Fp8Wish& wish) {
  return kernels::gated_to_fp8(gate, up, kind, format_of(weight, wish.side), wish.rows, wish.columns,
                               delayed_scale(weight, wish));
}

kernels::Fp8GatedBack round_gated_back(const Param& in, const Param& out, const at::Tensor& dy, const at::Tensor& gate,
                                       const at::Tensor& up, kernels::Activation kind) {
  return kernels::gated_back_to_fp8(dy, gate, up, kind, delayed_scale(in, {.side = Fp8Side::kGradient}),
                                    delayed_scale(out, {.side = Fp8Side::kActivation}));
}

const Fp8Pair& RoundedWeight::of(const Param& weight, const at::Tensor& value, bool current, bool forward) {
  const bool stale = !current || version_ != weight.version;
  if (stale || (forward && device::cuda_capturing())) {
    pair_ =
        round_side(weight, value, {.side = Fp8Side::kWeight, .rows = true, .columns = true, .note = current}, &pair_);
    version_ = current ? weight.version : -1;
  }
  return pair_;
}

at::Tensor fp8_multiply(const Param& weight, const Fp8Matrix& a, const Fp8Matrix& b, at::ScalarType type,
                        const at::Tensor& bias, const at::Tensor& onto) {
  const bool forward = a.values.scalar_type() == at::kFloat8_e4m3fn && type != at::kFloat;
  return kernels::fp8_product(a, b, type, /*fast=*/forward && weight.gemm != GemmPrecision::kFp8Blocks, bias, onto);
}

void add_fp8_gradient(Param& weight, const Fp8Matrix& dy, const Fp8Matrix& x) {
  if (weight.gemm == GemmPrecision::kFp8Blocks) {
    add_gradient(weight, fp8_multiply(weight, dy, x, at::kFloat));
    return;
  }
  const bool begun = !weight.gradient_empty;
  kernels::fp8_product_into(gradient_to_write(weight), dy, x, begun);
}

}  // namespace trireme::nn
