// kernels/cpu/sign_codes_table.h -- what the loops of gradient_codes.h for signs take: pointers and sizes, in elements.
#pragma once

#include <cstdint>

#include "trireme/kernels/cpu/element.h"

namespace trireme::kernels {

struct SignRowsLoop {
  const float *gradient, *kept;
  float* next;
  std::int64_t rows, columns;
  std::uint8_t* code;
};

struct ScaledSignsLoop {
  const float *values, *kept, *variance;
  float* next;
  std::int64_t count;
  std::uint8_t *signs, *moves;  ///< a bit an element
};

/// |c - said|^2 and |c|^2.
struct SignSquares {
  double left = 0, whole = 0;
};

struct SignCodesTable {
  SignSquares (*encode_rows)(const SignRowsLoop& call);
  void (*add_rows)(const std::uint8_t* code, std::int64_t rows, std::int64_t columns, float* sum);
  /// next = values + kept, 0 where the variance is; signs and moves. Gives |next|^2, and how many elements move.
  double (*begin_scaled)(const ScaledSignsLoop& call, std::int64_t& moving);
  /// next -= what the signs say with this scale. Gives |next|^2.
  double (*leave_scaled)(const ScaledSignsLoop& call, float scale);
  /// sum += a number where a sign says so and another elsewhere, where the variance is not 0.
  void (*add_scaled)(const std::uint8_t* signs, const float* variance, std::int64_t count, float up, float down,
                     float* sum);
  /// The sum of squares, in double.
  double (*squares)(const float* values, std::int64_t count);
};
extern const SignCodesTable kSignCodesPlain, kSignCodesV3, kSignCodesV4;

}  // namespace trireme::kernels
