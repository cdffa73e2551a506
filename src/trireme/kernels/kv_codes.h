// kernels/kv_codes.h -- keys and values of a KV cache as FP8 (e4m3) codes with float scales.
//
// Each head of each token has scales of its own, one or several: what a token left in the cache is never written again,
// so its bits do not depend on the tokens that come later, nor on how a prompt is cut into chunks. No number is further
// from what it was than 1/16 of itself, or 1/1024 of its scale where it is small. NaN and Inf come back as NaN.
// Read in place by paged_attention.h.
// Depends on: base.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trireme::kernels {

struct KvCodes {
  at::Tensor codes;   ///< uint8 [.., size]
  at::Tensor scales;  ///< float [.., size / part]: a number is its code's times its part's scale
};
/// Of x [.., size], any floating type; `part` divides the size.
KvCodes to_kv_codes(const at::Tensor& x, std::int64_t part);
/// [.., size] of this type.
at::Tensor from_kv_codes(const KvCodes& from, at::ScalarType type);

}  // namespace trireme::kernels
