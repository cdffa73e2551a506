#include "trireme/models/fp8_blocks.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/max.h>

#include <algorithm>
#include <cmath>

#include "trireme/formats/format_error.h"

namespace trireme::models {

Fp8Matrix to_fp8_blocks(const at::Tensor& matrix) {
  constexpr float kLargest = 448;
  const std::int64_t rows = matrix.size(0), columns = matrix.size(1);
  const at::Tensor values = matrix.to(at::kFloat);
  Fp8Matrix out{.codes = at::empty({rows, columns}, at::kFloat8_e4m3fn),
                .scales = at::empty({fp8_blocks(rows), fp8_blocks(columns)}, at::kFloat)};
  auto* scale = out.scales.mutable_data_ptr<float>();
  for (std::int64_t row = 0; row < rows; row += kFp8Block) {
    for (std::int64_t column = 0; column < columns; column += kFp8Block) {
      const auto block = [&](const at::Tensor& of) {
        return of.narrow(0, row, std::min(kFp8Block, rows - row))
            .narrow(1, column, std::min(kFp8Block, columns - column));
      };
      const float largest = at::max(at::abs(block(values))).item<float>();
      if (!std::isfinite(largest)) throw formats::FormatError("a matrix with NaN or Inf has no FP8 form");
      *scale = largest > 0 ? largest / kLargest : 1;
      block(out.codes).copy_((block(values) / *scale).clamp(-kLargest, kLargest).to(at::kFloat8_e4m3fn));
      ++scale;
    }
  }
  return out;
}

}  // namespace trireme::models
