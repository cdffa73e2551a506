// kernels/cpu/level_codes_table.h -- what the loops of gradient_codes.h for levels take: pointers and sizes, in
// elements.
#pragma once

#include <cstdint>

#include "trireme/kernels/cpu/element.h"

namespace trireme::kernels {

struct LevelCodesTable {
  /// Two numbers in [0, 1) of each Philox block from `first_block` on.
  void (*draws)(const std::uint32_t (&words)[4], std::uint64_t first_block, std::int64_t blocks, double* out);
  /// The bits of the largest |value|; above those of infinity where there is a NaN.
  std::uint32_t (*largest)(const float* values, std::int64_t count);
  void (*quantise)(const float* values, const double* uniform, std::int64_t count, double scale, std::int32_t most,
                   std::int32_t* levels);
  void (*put_nibbles)(const std::int32_t* levels, std::int64_t count, std::int32_t most, std::uint8_t* code);
  void (*add_nibbles)(const std::uint8_t* code, std::int64_t count, const float (&said)[16], float* sum);
  /// A block's levels of `scale` (0: all zeros) as int8; `values` become what they say.
  void (*encode_bytes)(float* values, std::int64_t count, float scale, std::int8_t* code);
  void (*add_bytes)(const std::int8_t* code, std::int64_t count, float scale, float* sum);
  void (*encode_halves)(float* values, std::int64_t count, std::uint16_t* code);
  void (*add_halves)(const std::uint16_t* code, std::int64_t count, float* sum);
};
extern const LevelCodesTable kLevelCodesPlain, kLevelCodesV3, kLevelCodesV4;

}  // namespace trireme::kernels
