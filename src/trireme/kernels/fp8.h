// kernels/fp8.h -- GEMMs of 8-bit floats: tensors rounded to them with scales, and multiplied on a GPU's tensor
// cores.
//
// E4M3 has three bits after the point and reaches 448, E5M2 two and 57344 (Micikevicius et al. 2022). A scale brings
// the largest number of what it covers to the format's largest: of the tensor as it is now (current scaling), or of
// DeepSeek-V3's small blocks, 1 x 128 of activations and gradients along what is summed, 128 x 128 of weights, where
// an outlier spoils its block only; or of the tensor as it was in the steps before (delayed scaling), which spares the
// pass that looks for the largest. GPUs only, but for the rule of delayed scales.
// Depends on: base, device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "trireme/kernels/activation.h"

namespace trireme::kernels {

enum class Fp8Format : std::uint8_t { kE4m3, kE5m2 };
enum class Fp8Scaling : std::uint8_t {
  kTensor,  ///< one scale
  kLines,   ///< one for each 1 x 128 along what a GEMM sums over
  kTiles,   ///< one for each 128 x 128
};

/// A matrix for a GEMM that sums over its last dimension.
struct Fp8Matrix {
  at::Tensor values;  ///< 8-bit [n, k], contiguous
  at::Tensor scales;  ///< float, as the GEMM wants them: values times scales are the numbers
  Fp8Scaling scaling = Fp8Scaling::kTensor;
};
struct Fp8Pair {
  Fp8Matrix rows;     ///< x [n, m] as it lies; undefined where not asked for
  Fp8Matrix columns;  ///< its transpose [m, n]
};

/// A delayed scale, in device memory: what numbers are divided by now, and where the largest of them is noted.
struct Fp8Live {
  at::Tensor scale, amax;  ///< float [1]; amax undefined: not noted
  bool known = false;      ///< false, in the first step: the scale comes from the numbers as they are
};

/// Whether matrices of these sizes can take part: multiples of 16, of 128 with scales of blocks.
bool takes_fp8(Fp8Scaling scaling, std::int64_t n, std::int64_t m);

/// `x` [n, m] float, bfloat16 or half, contiguous rows, on a GPU. `live`: with kTensor, a delayed scale. `into`:
/// tensors of an earlier call, to be written again.
Fp8Pair to_fp8(const at::Tensor& x, Fp8Format format, Fp8Scaling scaling, bool rows, bool columns,
               const Fp8Live* live = nullptr, const Fp8Pair* into = nullptr);

/// The same of f(gate) * up, both [n, m] bfloat16 or half, to the bit as if gated_forward() had made it first. A known
/// delayed scale only.
Fp8Pair gated_to_fp8(const at::Tensor& gate, const at::Tensor& up, Activation kind, Fp8Format format, bool rows,
                     bool columns, const Fp8Live& live);

/// The way back through y = f(gate) * up without its being written in between, to the bit: the gradients of both halves
/// [n, 2 m] (E5M2) as they lie and turned, and y again (E4M3), turned. Known delayed scales only.
struct Fp8GatedBack {
  Fp8Pair gradient;
  Fp8Matrix again;  ///< [m, n]
};
Fp8GatedBack gated_back_to_fp8(const at::Tensor& dy, const at::Tensor& gate, const at::Tensor& up, Activation kind,
                               const Fp8Live& of_gradient, const Fp8Live& of_again);

/// a [n, k] times b [m, k] transposed: [n, m] of `type`. `fast`: the tensor cores' own sums of about 14 bits; otherwise
/// they are added up in float as they come. Of two E5M2 matrices there is no GEMM. `bias` [m] and `onto` [n, m] are
/// added where they are defined.
at::Tensor fp8_product(const Fp8Matrix& a, const Fp8Matrix& b, at::ScalarType type, bool fast,
                       const at::Tensor& bias = {}, const at::Tensor& onto = {});
/// gradient = or += a b^T, float.
void fp8_product_into(at::Tensor& gradient, const Fp8Matrix& a, const Fp8Matrix& b, bool add);

/// After a step. A row of `table` float [tensors, 3 + history]: the largest number of this step, the scale, the
/// format's largest number, and those of earlier steps, of which `slot` is the oldest. The step's is put there (unless
/// it is 0 or no number) and the scale becomes the largest of all over the format's, times 2^margin. Any device.
void fp8_advance(at::Tensor& table, std::int64_t slot, std::int64_t margin);

}  // namespace trireme::kernels
