// kernels/quantised_weight.h -- a weight matrix in int8, int4 or FP8 with scales, for inference.
//
// kInt8: one scale a row, w = scale * q, q in [-127, 127]. kInt4: one scale and one zero point for each group of
// neighbouring inputs of a row, w = scale * (q - zero), q in [0, 15]; symmetric ones have zero = 8. Round to nearest:
// no weight is further than scale / 2 from what it was. kE4m3: one scale a row, w = scale * q, q an FP8 number of at
// most 448; no weight is further from what it was than 1/16 of itself (or scale / 1024, where it is small). FP8 is a
// GPU's.
// Depends on: base.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trireme::kernels {

enum class WeightFormat : std::uint8_t { kInt8, kInt4, kE4m3 };

struct QuantisedWeight {
  WeightFormat format = WeightFormat::kInt8;
  std::int64_t rows = 0, columns = 0;
  std::int64_t group = 0;  ///< inputs that share a scale; all of a row but for kInt4
  at::Tensor
      values;  ///< int8 or float8_e4m3fn [rows, columns]; kInt4: uint8 [rows, columns / 2], the even column's low
  at::Tensor scales;      ///< float [rows, columns / group]
  at::Tensor zeros = {};  ///< kInt4: float [rows, columns / group], whole numbers

  bool defined() const { return values.defined(); }
  std::int64_t bytes() const { return values.nbytes() + scales.nbytes() + (zeros.defined() ? zeros.nbytes() : 0); }
};

struct QuantiseWeight {
  WeightFormat format = WeightFormat::kInt8;
  std::int64_t group = 128;  ///< kInt4
  bool symmetric = false;    ///< kInt4: zero points are 8
};
/// Of weight [rows, columns], of any floating type. ConfigError where the group does not divide the columns.
QuantisedWeight quantise_weight(const at::Tensor& weight, const QuantiseWeight& how);
/// Float [rows, columns].
at::Tensor dequantise_weight(const QuantisedWeight& weight);

}  // namespace trireme::kernels
