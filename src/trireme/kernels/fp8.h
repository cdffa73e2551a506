// kernels/fp8.h -- FP8 operands of GEMMs (gemm.h): tensors quantised with scales.
//
// E4M3 has three bits after the point and reaches 448, E5M2 two and 57344 (Micikevicius et al. 2022). A scale brings
// the largest number of what it covers to the format's largest: of the tensor as it is now (current scaling), or of
// DeepSeek-V3's small blocks, 1 x 128 of activations and gradients along k, 128 x 128 of weights, where an outlier
// spoils its block only; or of the tensor as it was in the steps before (delayed scaling), which spares the pass that
// looks for the largest. On the CPU the same codes and scales are computed, and GEMMs of them emulated (fp8_cpu.h).
// Depends on: base, device, fp8_codes.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "trireme/kernels/activation.h"
#include "trireme/kernels/fp8_codes.h"

namespace trireme::kernels {

enum class Fp8Scaling : std::uint8_t {
  kTensor,         ///< one scale
  kBlocks1x128,    ///< one for each 1 x 128 along k
  kBlocks128x128,  ///< one for each 128 x 128
};

/// A GEMM operand: k is its last dimension.
struct Fp8Matrix {
  at::Tensor values;  ///< 8-bit [n, k], contiguous
  at::Tensor scales;  ///< float, as the GEMM wants them: values times scales are the numbers
  Fp8Scaling scaling = Fp8Scaling::kTensor;
};
struct Fp8Pair {
  Fp8Matrix rows;     ///< x [n, m]; undefined where not asked for
  Fp8Matrix columns;  ///< its transpose [m, n]
};

/// A delayed scale, in device memory: what numbers are divided by now, and where the largest of them is noted.
struct Fp8DelayedScale {
  at::Tensor scale, amax;  ///< float [1]; amax undefined: not noted
  bool known = false;      ///< false, in the first step: the scale comes from the numbers as they are
};

/// Whether matrices of these sizes can take part: multiples of 16, of 128 with scales of blocks.
bool takes_fp8(Fp8Scaling scaling, std::int64_t n, std::int64_t m);

/// `x` [n, m] float, bfloat16 or half, contiguous rows. `delayed`: with kTensor, a delayed scale.
/// `into`: tensors of an earlier call, to be written again.
Fp8Pair to_fp8(const at::Tensor& x, Fp8Format format, Fp8Scaling scaling, bool rows, bool columns,
               const Fp8DelayedScale* delayed = nullptr, const Fp8Pair* into = nullptr);

/// The same of f(gate) * up, both [n, m] bfloat16 or half, to the bit as if gated_forward() had made it first. A known
/// delayed scale only.
Fp8Pair gated_to_fp8(const at::Tensor& gate, const at::Tensor& up, Activation kind, Fp8Format format, bool rows,
                     bool columns, const Fp8DelayedScale& delayed);

/// Backward of y = f(gate) * up without its gradients being written in between, to the bit: those of both halves
/// [n, 2 m] (E5M2) and their transpose, and y recomputed (E4M3), transposed. Known delayed scales only.
struct Fp8GatedBackward {
  Fp8Pair grad;
  Fp8Matrix recomputed;  ///< [m, n]
};
Fp8GatedBackward gated_backward_to_fp8(const at::Tensor& dy, const at::Tensor& gate, const at::Tensor& up,
                                       Activation kind, const Fp8DelayedScale& of_grad,
                                       const Fp8DelayedScale& of_recomputed);

/// After a step. A row of `table` float [tensors, 3 + history]: the largest number of this step, the scale, the
/// format's largest number, and those of earlier steps, of which `slot` is the oldest. The step's is put there (unless
/// it is 0, NaN or Inf) and the scale becomes the largest of all over the format's, times 2^margin. Any device.
void fp8_advance(at::Tensor& table, std::int64_t slot, std::int64_t margin);

}  // namespace trireme::kernels
