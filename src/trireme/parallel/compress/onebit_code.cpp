#include "trireme/parallel/compress/onebit_code.h"

#include <cmath>
#include <type_traits>
#include <vector>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

// Loops over elements: this room is compiled without vectors otherwise.
#pragma GCC push_options
#pragma GCC optimize("O3")

namespace trireme::parallel {
namespace {

template <typename T>
std::uint8_t sign_byte(const T* values, std::int64_t count) {
  unsigned byte = 0;
  for (std::int64_t i = 0; i < count; ++i) byte |= (values[i] >= 0 ? 1U : 0U) << i;
  return static_cast<std::uint8_t>(byte);
}

bool sign_at(const std::uint8_t* bits, std::int64_t i) { return ((bits[i / 8] >> (i % 8)) & 1) != 0; }

/// Sums in several lanes: fast, and in one order on every machine.
constexpr std::int64_t kSignLanes = 8;

template <typename T>
double lane_sum(const T (&lanes)[kSignLanes]) {
  double sum = 0;
  for (const T lane : lanes) sum += static_cast<double>(lane);
  return sum;
}

#if defined(__SSE2__)
/// What a row adds up in its eight lanes, four to a vector. The compiler makes branches of choices by sign, and signs
/// of gradients cannot be predicted: these are masks.
struct RowLanes {
  __m128 above[2] = {}, below[2] = {}, count[2] = {};
};
inline std::int64_t add_to_lanes(const float* g, const float* e, float* c, std::int64_t columns, RowLanes& lanes) {
  const __m128 zero = _mm_setzero_ps(), one = _mm_set1_ps(1);
  std::int64_t i = 0;
  for (; i + kSignLanes <= columns; i += kSignLanes) {
    for (int half = 0; half < 2; ++half) {
      const __m128 value = _mm_add_ps(_mm_loadu_ps(g + i + 4 * half), _mm_loadu_ps(e + i + 4 * half));
      const __m128 up = _mm_cmpge_ps(value, zero);
      _mm_storeu_ps(c + i + 4 * half, value);
      lanes.above[half] = _mm_add_ps(lanes.above[half], _mm_and_ps(up, value));
      lanes.below[half] = _mm_add_ps(lanes.below[half], _mm_andnot_ps(up, value));
      lanes.count[half] = _mm_add_ps(lanes.count[half], _mm_and_ps(up, one));
    }
  }
  return i;
}
inline std::int64_t leave_in_lanes(float* c, std::int64_t columns, float down, float up, float (&left)[kSignLanes],
                                   float (&whole)[kSignLanes]) {
  const __m128 zero = _mm_setzero_ps(), low = _mm_set1_ps(down), high = _mm_set1_ps(up);
  __m128 lefts[2] = {}, wholes[2] = {};
  std::int64_t i = 0;
  for (; i + kSignLanes <= columns; i += kSignLanes) {
    for (int half = 0; half < 2; ++half) {
      const __m128 value = _mm_loadu_ps(c + i + 4 * half), sign = _mm_cmpge_ps(value, zero);
      const __m128 rest = _mm_sub_ps(value, _mm_or_ps(_mm_and_ps(sign, high), _mm_andnot_ps(sign, low)));
      wholes[half] = _mm_add_ps(wholes[half], _mm_mul_ps(value, value));
      lefts[half] = _mm_add_ps(lefts[half], _mm_mul_ps(rest, rest));
      _mm_storeu_ps(c + i + 4 * half, rest);
    }
  }
  for (int half = 0; half < 2; ++half)
    _mm_storeu_ps(left + 4 * half, lefts[half]), _mm_storeu_ps(whole + 4 * half, wholes[half]);
  return i;
}
#endif

}  // namespace

template <>
void pack_signs<float>(const float* values, std::int64_t count, std::uint8_t* bits) {
  std::int64_t i = 0;
#if defined(__SSE2__)
  const __m128 zero = _mm_setzero_ps();
  for (; i + 8 <= count; i += 8) {
    const int low = _mm_movemask_ps(_mm_cmpge_ps(_mm_loadu_ps(values + i), zero));
    const int high = _mm_movemask_ps(_mm_cmpge_ps(_mm_loadu_ps(values + i + 4), zero));
    bits[i / 8] = static_cast<std::uint8_t>(low | (high << 4));
  }
#endif
  for (; i < count; i += 8) bits[i / 8] = sign_byte(values + i, std::min<std::int64_t>(8, count - i));
}
template <>
void pack_signs<double>(const double* values, std::int64_t count, std::uint8_t* bits) {
  for (std::int64_t i = 0; i < count; i += 8) bits[i / 8] = sign_byte(values + i, std::min<std::int64_t>(8, count - i));
}

template <typename T>
CodeError encode_rows(const T* gradient, const T* kept, T* next, std::int64_t rows, std::int64_t columns,
                      Message& message) {
  CodeError error;
  const std::size_t begin = message.size();
  message.resize(begin + static_cast<std::size_t>(row_code_bytes(rows, columns, sizeof(T))));
  std::uint8_t* out = message.data() + begin;
  for (std::int64_t row = 0; row < rows; ++row) {
    const T *g = gradient + row * columns, *e = kept + row * columns;
    T* c = next + row * columns;  // a row stays in the cache for the second pass
    T above[kSignLanes] = {}, below[kSignLanes] = {}, count[kSignLanes] = {};
    std::int64_t i = 0;
#if defined(__SSE2__)
    if constexpr (std::is_same_v<T, float>) {
      RowLanes lanes;
      i = add_to_lanes(g, e, c, columns, lanes);
      for (int half = 0; half < 2; ++half) {
        _mm_storeu_ps(above + 4 * half, lanes.above[half]);
        _mm_storeu_ps(below + 4 * half, lanes.below[half]);
        _mm_storeu_ps(count + 4 * half, lanes.count[half]);
      }
    }
#endif
    for (; i + kSignLanes <= columns; i += kSignLanes) {
      for (std::int64_t lane = 0; lane < kSignLanes; ++lane) {
        const T value = g[i + lane] + e[i + lane];
        c[i + lane] = value;
        const bool up = value >= 0;
        above[lane] += up ? value : T(0);
        below[lane] += up ? T(0) : value;
        count[lane] += up ? T(1) : T(0);
      }
    }
    for (; i < columns; ++i) {
      const T value = g[i] + e[i];
      c[i] = value;
      (value >= 0 ? above[0] : below[0]) += value;
      if (value >= 0) count[0] += 1;
    }
    const double ups = lane_sum(count), downs = static_cast<double>(columns) - ups;
    const T means[2] = {static_cast<T>(downs > 0 ? lane_sum(below) / downs : 0),
                        static_cast<T>(ups > 0 ? lane_sum(above) / ups : 0)};
    std::memcpy(out, means, sizeof(means));
    out += sizeof(means);
    pack_signs(c, columns, out);
    out += sign_bytes(columns);
    T left[kSignLanes] = {}, whole[kSignLanes] = {};
    const T down = means[0], up = means[1];
    i = 0;
#if defined(__SSE2__)
    if constexpr (std::is_same_v<T, float>) i = leave_in_lanes(c, columns, down, up, left, whole);
#endif
    for (; i + kSignLanes <= columns; i += kSignLanes) {
      for (std::int64_t lane = 0; lane < kSignLanes; ++lane) {
        const T value = c[i + lane], rest = value - (value >= 0 ? up : down);
        whole[lane] += value * value;
        left[lane] += rest * rest;
        c[i + lane] = rest;
      }
    }
    for (; i < columns; ++i) {
      const T value = c[i], rest = value - (value >= 0 ? up : down);
      whole[0] += value * value;
      left[0] += rest * rest;
      c[i] = rest;
    }
    error.left += lane_sum(left);
    error.whole += lane_sum(whole);
  }
  return error;
}

template <typename T>
void add_rows(MessageReader& code, std::int64_t rows, std::int64_t columns, T* sum) {
  for (std::int64_t row = 0; row < rows; ++row) {
    T means[2];
    code.take(means, 2);
    const std::uint8_t* bits = code.take_bytes(static_cast<std::size_t>(sign_bytes(columns)));
    T* to = sum + row * columns;
    for (std::int64_t i = 0; i < columns; ++i) to[i] += means[sign_at(bits, i) ? 1 : 0];
  }
}

template <typename T>
CodeError encode_scaled(const T* values, const T* kept, T* next, const T* variance, std::int64_t count,
                        Message& message) {
  CodeError error;
  double square_lanes[kSignLanes] = {}, moving_lanes[kSignLanes] = {};
  const auto take = [&](std::int64_t i, std::int64_t lane) {
    const bool moves = variance[i] != 0;
    const T c = moves ? values[i] + kept[i] : T(0);
    next[i] = c;
    square_lanes[lane] += static_cast<double>(c) * static_cast<double>(c);
    moving_lanes[lane] += moves ? 1 : 0;
  };
  std::int64_t i = 0;
  for (; i + kSignLanes <= count; i += kSignLanes) {
    for (std::int64_t lane = 0; lane < kSignLanes; ++lane) take(i + lane, lane);
  }
  for (; i < count; ++i) take(i, 0);
  const double squares = lane_sum(square_lanes), moving = lane_sum(moving_lanes);
  const T scale = static_cast<T>(moving > 0 ? std::sqrt(squares / moving) : 0);
  put(message, &scale, 1);
  const std::size_t at = message.size();
  message.resize(at + static_cast<std::size_t>(sign_bytes(count)));
  pack_signs(next, count, message.data() + at);
  double left_lanes[kSignLanes] = {};
  const auto leave = [&](std::int64_t at_element, std::int64_t lane) {
    const T c = next[at_element], rest = variance[at_element] != 0 ? c - (c >= 0 ? scale : -scale) : T(0);
    left_lanes[lane] += static_cast<double>(rest) * static_cast<double>(rest);
    next[at_element] = rest;
  };
  for (i = 0; i + kSignLanes <= count; i += kSignLanes) {
    for (std::int64_t lane = 0; lane < kSignLanes; ++lane) leave(i + lane, lane);
  }
  for (; i < count; ++i) leave(i, 0);
  error.left = lane_sum(left_lanes);
  error.whole = squares;
  return error;
}

template <typename T>
void add_scaled(MessageReader& code, const T* variance, std::int64_t count, T factor, T* sum) {
  T scale;
  code.take(&scale, 1);
  const std::uint8_t* bits = code.take_bytes(static_cast<std::size_t>(sign_bytes(count)));
  for (std::int64_t i = 0; i < count; ++i) {
    if (variance[i] != 0) sum[i] += factor * (sign_at(bits, i) ? scale : -scale);
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

#pragma GCC pop_options

}  // namespace trireme::parallel
