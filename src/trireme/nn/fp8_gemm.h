// nn/fp8_gemm.h -- a linear layer's GEMMs in 8-bit floats: which side has which format and scale, and what is
// kept.
//
// Depends on: kernels.
#pragma once

#include "trireme/kernels/fp8.h"
#include "trireme/nn/param.h"

namespace trireme::nn {

enum class Fp8Side : std::uint8_t { kActivation, kWeight, kGradient };

/// Whether this parameter's GEMMs are made of 8-bit floats; a ConfigError where so many rows do not fit them.
bool in_fp8(const Param& weight, std::int64_t rows);

/// One side of the GEMMs with `weight`.
struct Fp8Wish {
  Fp8Side side;
  bool rows = false, columns = false;  ///< as it lies, and turned
  bool note = true;                    ///< its largest number counts for the scales of later steps: training
};
kernels::Fp8Pair round_side(const Param& weight, const at::Tensor& x, const Fp8Wish& wish,
                            const kernels::Fp8Pair* into = nullptr);

/// f(gate) * up as the other side of the GEMMs with `weight`, without its being written first. Only where
/// rounds_gated(): delayed scales that are known.
bool rounds_gated(const Param& weight);
kernels::Fp8Pair round_gated(const Param& weight, const at::Tensor& gate, const at::Tensor& up,
                             kernels::Activation kind, const Fp8Wish& wish);

/// And the backward pass: dy of f(gate) * up, whose gradients enter the GEMMs with `in`, and which itself enters those
/// with `out`. Only where rounds_gated() of both.
kernels::Fp8GatedBack round_gated_back(const Param& in, const Param& out, const at::Tensor& dy, const at::Tensor& gate,
                                       const at::Tensor& up, kernels::Activation kind);

/// A layer's dy, rounded for both of its GEMMs.
struct RoundedGradient {
  kernels::Fp8Pair dy = {};
};

/// A weight rounded once for all GEMMs between two updates. The memory stays where it is: CUDA graphs write and
/// read it there.
class RoundedWeight {
 public:
  /// `current`: it is the parameter's own value, in training; anything else is rounded each time. `forward`: the first
  /// use in a step, which must round it again at every replay where it is being captured.
  const kernels::Fp8Pair& of(const Param& weight, const at::Tensor& value, bool current, bool forward);

 private:
  kernels::Fp8Pair pair_;
  std::int64_t version_ = -1;
};

/// a b^T: sums of small blocks are added up in float, as DeepSeek-V3 does; so are gradients.
at::Tensor fp8_multiply(const Param& weight, const kernels::Fp8Matrix& a, const kernels::Fp8Matrix& b,
                        at::ScalarType type, const at::Tensor& bias = {}, const at::Tensor& onto = {});
/// The weight's gradient += dy^T x, both turned.
void add_fp8_gradient(Param& weight, const kernels::Fp8Matrix& dy, const kernels::Fp8Matrix& x);

}  // namespace trireme::nn
