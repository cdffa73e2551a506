// tests/kernels/fp8_reference.h -- the numbers of FP8 as a table, and quantised matrices as plain ones; for the CPU and
// GPUs.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "trireme/kernels/fp8.h"

namespace trireme::kernels {

inline constexpr double kInf = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();

// Codes 0x00 to 0x7F, eight a line; 0x80 to 0xFF are their negatives (Micikevicius et al. 2022, table 1).
// clang-format off
inline constexpr std::array<double, 128> kE4m3Numbers = {
    0, 0.001953125, 0.00390625, 0.005859375, 0.0078125, 0.009765625, 0.01171875, 0.013671875,
    0.015625, 0.017578125, 0.01953125, 0.021484375, 0.0234375, 0.025390625, 0.02734375, 0.029296875,
    0.03125, 0.03515625, 0.0390625, 0.04296875, 0.046875, 0.05078125, 0.0546875, 0.05859375,
    0.0625, 0.0703125, 0.078125, 0.0859375, 0.09375, 0.1015625, 0.109375, 0.1171875,
    0.125, 0.140625, 0.15625, 0.171875, 0.1875, 0.203125, 0.21875, 0.234375,
    0.25, 0.28125, 0.3125, 0.34375, 0.375, 0.40625, 0.4375, 0.46875,
    0.5, 0.5625, 0.625, 0.6875, 0.75, 0.8125, 0.875, 0.9375,
    1, 1.125, 1.25, 1.375, 1.5, 1.625, 1.75, 1.875,
    2, 2.25, 2.5, 2.75, 3, 3.25, 3.5, 3.75,
    4, 4.5, 5, 5.5, 6, 6.5, 7, 7.5,
    8, 9, 10, 11, 12, 13, 14, 15,
    16, 18, 20, 22, 24, 26, 28, 30,
    32, 36, 40, 44, 48, 52, 56, 60,
    64, 72, 80, 88, 96, 104, 112, 120,
    128, 144, 160, 176, 192, 208, 224, 240,
    256, 288, 320, 352, 384, 416, 448, kNan,
};
inline constexpr std::array<double, 128> kE5m2Numbers = {
    0, 1.52587890625e-05, 3.0517578125e-05, 4.57763671875e-05, 6.103515625e-05, 7.62939453125e-05, 9.1552734375e-05, 0.0001068115234375,
    0.0001220703125, 0.000152587890625, 0.00018310546875, 0.000213623046875, 0.000244140625, 0.00030517578125, 0.0003662109375, 0.00042724609375,
    0.00048828125, 0.0006103515625, 0.000732421875, 0.0008544921875, 0.0009765625, 0.001220703125, 0.00146484375, 0.001708984375,
    0.001953125, 0.00244140625, 0.0029296875, 0.00341796875, 0.00390625, 0.0048828125, 0.005859375, 0.0068359375,
    0.0078125, 0.009765625, 0.01171875, 0.013671875, 0.015625, 0.01953125, 0.0234375, 0.02734375,
    0.03125, 0.0390625, 0.046875, 0.0546875, 0.0625, 0.078125, 0.09375, 0.109375,
    0.125, 0.15625, 0.1875, 0.21875, 0.25, 0.3125, 0.375, 0.4375,
    0.5, 0.625, 0.75, 0.875, 1, 1.25, 1.5, 1.75,
    2, 2.5, 3, 3.5, 4, 5, 6, 7,
    8, 10, 12, 14, 16, 20, 24, 28,
    32, 40, 48, 56, 64, 80, 96, 112,
    128, 160, 192, 224, 256, 320, 384, 448,
    512, 640, 768, 896, 1024, 1280, 1536, 1792,
    2048, 2560, 3072, 3584, 4096, 5120, 6144, 7168,
    8192, 10240, 12288, 14336, 16384, 20480, 24576, 28672,
    32768, 40960, 49152, 57344, kInf, kNan, kNan, kNan,
};
// clang-format on

inline double fp8_number(int code, Fp8Format format) {
  const auto& table = format == Fp8Format::kE4m3 ? kE4m3Numbers : kE5m2Numbers;
  const double value = table[static_cast<std::size_t>(code & 0x7F)];
  return (code & 0x80) != 0 ? -value : value;
}

/// The nearest code by looking at all of them, the even one of two; beyond the largest number, that.
inline int nearest_code(double value, Fp8Format format) {
  if (std::isnan(value)) return 0x7F;
  const int last = format == Fp8Format::kE4m3 ? 0x7E : 0x7B, sign = std::signbit(value) ? 0x80 : 0;
  const double size = std::min(std::abs(value), fp8_number(last, format));  // beyond, doubles lose the difference
  int best = 0;
  for (int code = 1; code <= last; ++code) {
    const double away = std::abs(fp8_number(code, format) - size), least = std::abs(fp8_number(best, format) - size);
    if (away < least || (away == least && code % 2 == 0)) best = code;
  }
  return best | sign;
}

/// Scales as [n, k], one for each number.
inline at::Tensor spread_scales(const Fp8Matrix& matrix) {
  const std::int64_t n = matrix.values.size(0), k = matrix.values.size(1);
  const at::Tensor scales = matrix.scales.cpu().to(at::kDouble);
  if (matrix.scaling == Fp8Scaling::kTensor) return scales.expand({n, k});
  if (matrix.scaling == Fp8Scaling::kBlocks1x128) return scales.t().repeat_interleave(128, 1).narrow(1, 0, k);
  return scales.narrow(1, 0, (k + 127) / 128).repeat_interleave(128, 0).repeat_interleave(128, 1);
}
/// What a quantised matrix stands for, in double.
inline at::Tensor numbers_of(const Fp8Matrix& matrix) {
  return matrix.values.to(at::kFloat).cpu().to(at::kDouble) * spread_scales(matrix);
}

/// The largest number of what each scale covers, as [n, k].
inline at::Tensor largest_in_block(const at::Tensor& x, Fp8Scaling scaling) {
  if (scaling == Fp8Scaling::kTensor) return x.abs().max().expand(x.sizes());
  const std::int64_t n = x.size(0), k = x.size(1);
  const at::Tensor lines = x.abs().view({n, k / 128, 128}).amax(2);
  if (scaling == Fp8Scaling::kBlocks1x128) return lines.repeat_interleave(128, 1);
  return lines.view({n / 128, 128, k / 128}).amax(1).repeat_interleave(128, 0).repeat_interleave(128, 1);
}

}  // namespace trireme::kernels
