#include "trireme/nn/fp8_gemm.h"

#include <fmt/format.h>

#include "trireme/base/error.h"
#include "trireme/device/stream.h"
#include "trireme/nn/fp8_history.h"

namespace trireme::nn {

using kernels::Fp8Pair;
using spec::GemmPrecision;

bool in_fp8(const Param& weight, std::int64_t rows) {
  if (weight.gemm == GemmPrecision::kSame) return false;
  const std::int64_t grain = weight.gemm == GemmPrecision::kFp8Blocks ? 128 : 16;
  if (rows % grain != 0) {
    throw ConfigError(fmt::format("FP8 GEMMs with {} take multiples of {} tokens, not {}", weight.name, grain, rows),
                      fmt::format("make data.seq_len a multiple of {}, or set precision.gemm = \"same\"", grain));
  }
  return true;
}

namespace {

/// Gradients have the format with more range where one scale serves a whole tensor; small blocks do not need it.
kernels::Fp8Format format_of(const Param& weight, Fp8Role role) {
  const bool wide = role == Fp8Role::kGradient && weight.gemm != GemmPrecision::kFp8Blocks;
  return wide ? kernels::Fp8Format::kE5m2 : kernels::Fp8Format::kE4m3;
}

kernels::Fp8DelayedScale delayed_scale(const Param& weight, const Fp8Quantise& how) {
  TRIREME_CHECK(weight.scales.defined(), "{} has no delayed scales", weight.name);
  const at::Tensor row = weight.scales.select(0, static_cast<std::int64_t>(how.role));
  return {.scale = row.narrow(0, 1, 1),
          .amax = how.note ? row.narrow(0, 0, 1) : at::Tensor(),
          .known = weight.scales_known};
}

}  // namespace

Fp8Pair quantise(const Param& weight, const at::Tensor& x, const Fp8Quantise& how, const Fp8Pair* into) {
  const bool blocks = weight.gemm == GemmPrecision::kFp8Blocks;
  const auto format = format_of(weight, how.role);
  const auto scaling = !blocks                        ? kernels::Fp8Scaling::kTensor
                       : how.role == Fp8Role::kWeight ? kernels::Fp8Scaling::kBlocks128x128
                                                      : kernels::Fp8Scaling::kBlocks1x128;
  if (weight.gemm != GemmPrecision::kFp8Delayed) {
    return kernels::to_fp8(x, format, scaling, how.rows, how.columns, nullptr, into);
  }
  const kernels::Fp8DelayedScale delayed = delayed_scale(weight, how);
  return kernels::to_fp8(x, format, scaling, how.rows, how.columns, &delayed, into);
}

bool quantises_gated(const Param& weight) { return weight.gemm == GemmPrecision::kFp8Delayed && weight.scales_known; }

Fp8Pair quantise_gated(const Param& weight, const at::Tensor& gate, const at::Tensor& up, kernels::Activation kind,
                       const Fp8Quantise& how) {
  return kernels::gated_to_fp8(gate, up, kind, format_of(weight, how.role), how.rows, how.columns,
                               delayed_scale(weight, how));
}

kernels::Fp8GatedBackward quantise_gated_backward(const Param& in, const Param& out, const at::Tensor& dy,
                                                  const at::Tensor& gate, const at::Tensor& up,
                                                  kernels::Activation kind) {
  return kernels::gated_backward_to_fp8(dy, gate, up, kind, delayed_scale(in, {.role = Fp8Role::kGradient}),
                                        delayed_scale(out, {.role = Fp8Role::kActivation}));
}

const Fp8Pair& Fp8WeightCache::get(const Param& weight, const at::Tensor& value, bool current, bool forward) {
  const bool stale = !current || version_ != weight.version;
  if (stale || (forward && device::cuda_capturing())) {
    pair_ = quantise(weight, value, {.role = Fp8Role::kWeight, .rows = true, .columns = true, .note = current}, &pair_);
    version_ = current ? weight.version : -1;
  }
  return pair_;
}

}  // namespace trireme::nn
