// nn/moe/fp8_rows.h -- rows of tokens in eight bits on their way to experts (DeepSeek-V3, 2412.19437, section 3.3).
//
// A row becomes codes (e4m3) and a float scale for each 128 of its values, the largest magnitude over 448, in one row
// of bytes. What experts compute with are the values that the bytes say, wherever the row comes from: a row that stays
// on its rank is rounded as well, so that no layout changes the function. Gradients pass as if nothing had been
// rounded.
// Depends on: base.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trireme::nn::moe {

/// Values that share a scale.
inline constexpr std::int64_t kFp8RowBlock = 128;

/// [rows, width] to uint8 [rows, width + 4 width / 128]; kFp8RowBlock divides the width.
at::Tensor to_fp8_rows(const at::Tensor& rows);
at::Tensor from_fp8_rows(const at::Tensor& bytes, at::ScalarType type);
/// Bytes of a row of `width` values.
constexpr std::int64_t fp8_row_bytes(std::int64_t width) { return width + 4 * (width / kFp8RowBlock); }

}  // namespace trireme::nn::moe
