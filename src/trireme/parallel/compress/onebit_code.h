// parallel/compress/onebit_code.h -- one bit an element: signs, and the few numbers that they stand for.
//
// Two codes. Rows (Seide et al. 2014): of every row two values, the means of its entries >= 0 and of those < 0. Scale
// (1-bit Adam): one value for the whole, |x|_2 / sqrt(n), with sign(0) = +1. Each encoder reads the gradient and the
// residual and writes the new residual in the same go: 12 bytes an element in fp32. Bit i of byte i / 8 is set where
// element i is >= 0 (and for NaN it is not).
// Depends on: exchange, kernels.
#pragma once

#include <cstdint>
#include <span>

#include "trireme/parallel/compress/exchange.h"

namespace trireme::parallel {

constexpr std::int64_t sign_bytes(std::int64_t count) { return (count + 7) / 8; }
/// Of a code of rows: two values and the signs of each.
constexpr std::int64_t row_code_bytes(std::int64_t rows, std::int64_t columns, std::int64_t element_size) {
  return rows * (2 * element_size + sign_bytes(columns));
}

/// Appends the code of c = gradient + kept, row by row, and leaves c - decoded in `next`. `next` may be `kept`. Gives
/// |c - decoded|^2 and |c|^2.
struct CodeError {
  double left = 0, whole = 0;
};
template <typename T>
CodeError encode_rows(const T* gradient, const T* kept, T* next, std::int64_t rows, std::int64_t columns,
                      Message& message);
/// sum += what the code says.
template <typename T>
void add_rows(MessageReader& code, std::int64_t rows, std::int64_t columns, T* sum);

/// Elements whose variance is 0 stand still (unused embedding rows, padding): they are neither counted nor moved.
template <typename T>
CodeError encode_scaled(const T* values, const T* kept, T* next, const T* variance, std::int64_t count,
                        Message& message);
/// sum += factor * what the code says, 0 where the variance is.
template <typename T>
void add_scaled(MessageReader& code, const T* variance, std::int64_t count, T factor, T* sum);

}  // namespace trireme::parallel
