#include "trireme/parallel/compress/onebit_code.h"

#include <cmath>
#include <type_traits>
#include <vector>

#include "trireme/kernels/gradient_codes.h"

// Floats have loops of their own in kernels, once for each instruction set; those here are of doubles, which tests and
// serial twins compute in.

namespace trireme::parallel {
namespace {

/// Sums in several lanes, in one order on every machine.
constexpr std::int64_t kSignLanes = 8;

double lane_sum(const double (&lanes)[kSignLanes]) {
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

bool sign_at(const std::uint8_t* bits, std::int64_t i) { return ((bits[i / 8] >> (i % 8)) & 1) != 0; }

/// Bit i of byte i / 8 is set where values[i] >= 0 (and for NaN it is not).
void pack_signs(const double* values, std::int64_t count, std::uint8_t* bits) {
  for (std::int64_t at = 0; at < count; at += 8) {
    unsigned byte = 0;
    for (std::int64_t i = 0; i < std::min<std::int64_t>(8, count - at); ++i)
      byte |= (values[at + i] >= 0 ? 1U : 0U) << i;
    bits[at / 8] = static_cast<std::uint8_t>(byte);
  }
}

CodeError encode_double_rows(const double* gradient, const double* kept, double* next, std::int64_t rows,
                             std::int64_t columns, std::uint8_t* out) {
  CodeError error;
  for (std::int64_t row = 0; row < rows; ++row) {
    const double *g = gradient + row * columns, *e = kept + row * columns;
    double* c = next + row * columns;
    double above[kSignLanes] = {}, below[kSignLanes] = {};
    std::int64_t ups = 0;
    for (std::int64_t i = 0; i < columns; ++i) {
      const double value = g[i] + e[i];
      c[i] = value;
      (value >= 0 ? above : below)[i % kSignLanes] += value;
      ups += value >= 0 ? 1 : 0;
    }
    const std::int64_t downs = columns - ups;
    const double means[2] = {downs > 0 ? lane_sum(below) / static_cast<double>(downs) : 0,
                             ups > 0 ? lane_sum(above) / static_cast<double>(ups) : 0};
    std::memcpy(out, means, sizeof(means));
    out += sizeof(means);
    pack_signs(c, columns, out);
    out += sign_bytes(columns);
    double left[kSignLanes] = {}, whole[kSignLanes] = {};
    for (std::int64_t i = 0; i < columns; ++i) {
      const double value = c[i], rest = value - means[value >= 0 ? 1 : 0];
      whole[i % kSignLanes] += value * value;
      left[i % kSignLanes] += rest * rest;
      c[i] = rest;
    }
    error.left += lane_sum(left);
    error.whole += lane_sum(whole);
  }
  return error;
}

/// Of a scale: c, where elements move at all. Gives |c|^2.
double begin_doubles(const double* values, const double* kept, const double* variance, double* next, std::int64_t count,
                     std::int64_t& moving) {
  double squares[kSignLanes] = {};
  moving = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const bool moves = variance[i] != 0;
    next[i] = moves ? values[i] + kept[i] : 0;
    squares[i % kSignLanes] += next[i] * next[i];
    moving += moves ? 1 : 0;
  }
  return lane_sum(squares);
}
double leave_doubles(const double* variance, double scale, double* next, std::int64_t count) {
  double squares[kSignLanes] = {};
  for (std::int64_t i = 0; i < count; ++i) {
    const double rest = variance[i] != 0 ? next[i] - (next[i] >= 0 ? scale : -scale) : 0;
    squares[i % kSignLanes] += rest * rest;
    next[i] = rest;
  }
  return lane_sum(squares);
}

}  // namespace

template <typename T>
CodeError encode_rows(const T* gradient, const T* kept, T* next, std::int64_t rows, std::int64_t columns,
                      Message& message) {
  const std::size_t begin = message.size();
  message.resize(begin + static_cast<std::size_t>(row_code_bytes(rows, columns, sizeof(T))));
  std::uint8_t* code = message.data() + begin;
  if constexpr (std::is_same_v<T, float>) {
    const kernels::SignSquares squares = kernels::sign_codes().encode_rows(
        {.gradient = gradient, .kept = kept, .next = next, .rows = rows, .columns = columns, .code = code});
    return {.left = squares.left, .whole = squares.whole};
  } else {
    return encode_double_rows(gradient, kept, next, rows, columns, code);
  }
}

template <typename T>
void add_rows(MessageReader& code, std::int64_t rows, std::int64_t columns, T* sum) {
  if constexpr (std::is_same_v<T, float>) {
    const std::uint8_t* bytes = code.take_bytes(static_cast<std::size_t>(row_code_bytes(rows, columns, sizeof(T))));
    kernels::sign_codes().add_rows(bytes, rows, columns, sum);
  } else {
    for (std::int64_t row = 0; row < rows; ++row) {
      T means[2];
      code.take(means, 2);
      const std::uint8_t* bits = code.take_bytes(static_cast<std::size_t>(sign_bytes(columns)));
      T* to = sum + row * columns;
      for (std::int64_t i = 0; i < columns; ++i) to[i] += means[sign_at(bits, i) ? 1 : 0];
    }
  }
}

template <typename T>
CodeError encode_scaled(const T* values, const T* kept, T* next, const T* variance, std::int64_t count,
                        Message& message) {
  // Before the code is known to end here the scale is not: the bits lie behind it already.
  const std::size_t begin = message.size(), bits = static_cast<std::size_t>(sign_bytes(count));
  message.resize(begin + sizeof(T) + bits);
  std::uint8_t* signs = message.data() + begin + sizeof(T);
  std::int64_t moving = 0;
  const auto scale_of = [&](double squares) {
    const T scale = static_cast<T>(moving > 0 ? std::sqrt(squares / static_cast<double>(moving)) : 0);
    std::memcpy(message.data() + begin, &scale, sizeof(T));
    return scale;
  };
  CodeError error;
  if constexpr (std::is_same_v<T, float>) {
    std::vector<std::uint8_t> moves(bits);  // an eighth of a byte an element in place of reading the variance again
    const kernels::ScaledSignsLoop loop{.values = values,
                                        .kept = kept,
                                        .variance = variance,
                                        .next = next,
                                        .count = count,
                                        .signs = signs,
                                        .moves = moves.data()};
    const kernels::SignCodesTable& table = kernels::sign_codes();
    error.whole = table.begin_scaled(loop, moving);
    error.left = table.leave_scaled(loop, scale_of(error.whole));
  } else {
    error.whole = begin_doubles(values, kept, variance, next, count, moving);
    pack_signs(next, count, signs);
    error.left = leave_doubles(variance, scale_of(error.whole), next, count);
  }
  return error;
}

template <typename T>
void add_scaled(MessageReader& code, const T* variance, std::int64_t count, T factor, T* sum) {
  T scale;
  code.take(&scale, 1);
  const std::uint8_t* bits = code.take_bytes(static_cast<std::size_t>(sign_bytes(count)));
  if constexpr (std::is_same_v<T, float>) {
    kernels::sign_codes().add_scaled(bits, variance, count, factor * scale, factor * -scale, sum);
  } else {
    for (std::int64_t i = 0; i < count; ++i) {
      if (variance[i] != 0) sum[i] += factor * (sign_at(bits, i) ? scale : -scale);
    }
  }
}

template CodeError encode_rows(const float*, const float*, float*, std::int64_t, std::int64_t, Message&);
template CodeError encode_rows(const double*, const double*, double*, std::int64_t, std::int64_t, Message&);
template void add_rows(MessageReader&, std::int64_t, std::int64_t, float*);
template void add_rows(MessageReader&, std::int64_t, std::int64_t, double*);
template CodeError encode_scaled(const float*, const float*, float*, const float*, std::int64_t, Message&);
template CodeError encode_scaled(const double*, const double*, double*, const double*, std::int64_t, Message&);
template void add_scaled(MessageReader&, const float*, std::int64_t, float, float*);
template void add_scaled(MessageReader&, const double*, std::int64_t, double, double*);

}  // namespace trireme::parallel
