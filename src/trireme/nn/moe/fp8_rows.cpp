#include "trireme/nn/moe/fp8_rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>

#include "trireme/base/error.h"

namespace trireme::nn::moe {

at::Tensor to_fp8_rows(const at::Tensor& rows) {
  constexpr double kLargest = 448;
  const std::int64_t count = rows.size(0), width = rows.size(1);
  TRIREME_CHECK(width % kFp8RowBlock == 0, "rows of {} values in blocks of {}", width, kFp8RowBlock);
  const at::Tensor blocks = rows.to(at::kFloat).reshape({count, width / kFp8RowBlock, kFp8RowBlock});
  // Times the reciprocal: a GPU divides by a number that way, and its codes are to be those of a CPU.
  at::Tensor scales = at::amax(at::abs(blocks), {2}, /*keepdim=*/true) * (1 / kLargest);
  scales = at::where(scales > 0, scales, at::ones_like(scales));
  const at::Tensor codes = (blocks / scales).clamp_(-kLargest, kLargest).to(at::kFloat8_e4m3fn);
  return at::cat({codes.view(at::kByte).view({count, width}),
                  scales.view({count, width / kFp8RowBlock}).contiguous().view(at::kByte)},
                 1);
}

at::Tensor from_fp8_rows(const at::Tensor& bytes, at::ScalarType type) {
  const std::int64_t count = bytes.size(0), blocks = bytes.size(1) / fp8_row_bytes(kFp8RowBlock);
  TRIREME_CHECK(blocks * fp8_row_bytes(kFp8RowBlock) == bytes.size(1), "rows of {} bytes", bytes.size(1));
  const std::int64_t width = blocks * kFp8RowBlock;
  const at::Tensor codes = bytes.narrow(1, 0, width).contiguous().view(at::kFloat8_e4m3fn),
                   scales = bytes.narrow(1, width, 4 * blocks).contiguous().view(at::kFloat);
  return (codes.to(at::kFloat).view({count, blocks, kFp8RowBlock}) * scales.unsqueeze(2)).view({count, width}).to(type);
}

}  // namespace trireme::nn::moe
