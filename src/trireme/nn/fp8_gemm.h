// nn/fp8_gemm.h -- the FP8 operands of a linear layer's GEMMs: which has which format and scale, and what is cached.
//
// Depends on: kernels.
#pragma once

#include "trireme/kernels/fp8.h"
#include "trireme/nn/param.h"

namespace trireme::nn {

/// Whether this parameter's GEMMs are FP8; a ConfigError where so many rows do not fit them.
bool in_fp8(const Param& weight, std::int64_t rows);

/// What takes part in the GEMMs with a weight; the rows of an Fp8History.
enum class Fp8Role : std::uint8_t { kActivation, kWeight, kGradient };
struct Fp8Quantise {
  Fp8Role role;
  bool rows = false, columns = false;  ///< as it is, and its transpose
  bool note = true;                    ///< its largest number counts for the scales of later steps: training
};
kernels::Fp8Pair quantise(const Param& weight, const at::Tensor& x, const Fp8Quantise& how,
                          const kernels::Fp8Pair* into = nullptr);

/// f(gate) * up as the activation of the GEMMs with `weight`, without its being written first. Only where
/// quantises_gated(): delayed scales that are known.
bool quantises_gated(const Param& weight);
kernels::Fp8Pair quantise_gated(const Param& weight, const at::Tensor& gate, const at::Tensor& up,
                                kernels::Activation kind, const Fp8Quantise& how);
/// And backward: dy of f(gate) * up, whose gradients enter the GEMMs with `in`, and which itself enters those with
/// `out`. Only where quantises_gated() of both.
kernels::Fp8GatedBackward quantise_gated_backward(const Param& in, const Param& out, const at::Tensor& dy,
                                                  const at::Tensor& gate, const at::Tensor& up,
                                                  kernels::Activation kind);

/// A weight quantised once for all GEMMs between two updates. The memory stays where it is: CUDA graphs write and read
/// it there.
class Fp8WeightCache {
 public:
  /// `current`: it is the parameter's own value, in training; anything else is quantised each time. `forward`: the
  /// first use in a step, which must quantise it again at every replay where a CUDA graph is being captured.
  const kernels::Fp8Pair& get(const Param& weight, const at::Tensor& value, bool current, bool forward);

 private:
  kernels::Fp8Pair pair_;
  std::int64_t version_ = -1;
};

}  // namespace trireme::nn
