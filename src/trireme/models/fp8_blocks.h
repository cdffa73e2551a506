// models/fp8_blocks.h -- matrices as DeepSeek-V3 publishes them: codes of 8 bits (e4m3) and a scale for each 128 x 128.
//
// A scale is the block's largest magnitude over the largest code, 448, and 1 for a block of zeros; a value is its code
// times the scale, which is what the file calls weight_scale_inv.
// Depends on: base.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trireme::models {

inline constexpr std::int64_t kFp8Block = 128;
inline constexpr std::int64_t fp8_blocks(std::int64_t size) { return (size + kFp8Block - 1) / kFp8Block; }

struct Fp8Matrix {
  at::Tensor codes;   ///< float8_e4m3fn [rows, columns]
  at::Tensor scales;  ///< float [blocks down, blocks across]
};
/// To the nearest code, ties to even. A NaN or Inf is an error of whoever has it: FormatError.
Fp8Matrix to_fp8_blocks(const at::Tensor& matrix);

}  // namespace trireme::models
