// kernels/cpu/vec.h -- a handful of floats at a time: what the operators' bodies are written with.
//
// `Floats` holds as many floats as one register of the instruction set this file is compiled for (16, 8 or 4),
// `Doubles` one double: a body is a template over the two. Elements of any type become Floats when loaded and are
// rounded, to nearest even, when stored. A row's end is handled by the same code with First{n} lanes instead of All{},
// so a number's bits do not depend on where in a vector it sits.
//
// Everything is in an unnamed namespace and nothing of the standard library with code is used: a function compiled for
// AVX-512 must never become the copy that other files link to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes the deliberately undefined operands inside its own AVX-512 header for a mistake of ours.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
// Helpers that this body does not happen to use.
#pragma GCC diagnostic ignored "-Wunused-function"
#endif

#include "trireme/kernels/cpu/element.h"

#define TRIREME_INLINE [[gnu::always_inline]] inline
#define TRIREME_LAMBDA __attribute__((always_inline))

namespace trireme::kernels {
namespace {

struct Bf16 {
  std::uint16_t bits;
};
struct F16 {
  std::uint16_t bits;
};

/// How many lanes a load or store touches: all of them, or the first few.
struct All {};
struct First {
  int count;
};

template <typename To, typename From>
TRIREME_INLINE To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// One element to float and back. Vectors do the same in lanes; these serve the plain set and the ends of rows.
TRIREME_INLINE float widen(float x) { return x; }
TRIREME_INLINE float widen(std::int8_t x) { return x; }
TRIREME_INLINE float widen(Bf16 x) { return bits_as<float>(std::uint32_t{x.bits} << 16); }
TRIREME_INLINE void narrow(float& to, float x) { to = x; }
TRIREME_INLINE void narrow(Bf16& to, float x) {
  const auto u = bits_as<std::uint32_t>(x);
  const std::uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  // A NaN whose payload sits in the low bits would round to infinity: keep it a NaN.
  to.bits = static_cast<std::uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? ((u >> 16) | 0x40u) : rounded);
}
#if defined(__F16C__)
TRIREME_INLINE float widen(F16 x) { return _cvtsh_ss(x.bits); }
TRIREME_INLINE void narrow(F16& to, float x) {
  to.bits = static_cast<std::uint16_t>(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT));
}
#else
TRIREME_INLINE float widen(F16 x) {
  const std::uint32_t sign = std::uint32_t{x.bits & 0x8000u} << 16, rest = x.bits & 0x7fffu;
  if (rest >= 0x7c00u) {
    return bits_as<float>(sign | 0x7f800000u | (rest & 0x3ffu ? (rest & 0x3ffu) << 13 | 0x400000u : 0u));
  }
  if (rest >= 0x400u) return bits_as<float>(sign | ((rest + (112u << 10)) << 13));
  return bits_as<float>(sign | bits_as<std::uint32_t>(static_cast<float>(rest) * 0x1p-24f));
}
TRIREME_INLINE void narrow(F16& to, float x) {
  const auto u = bits_as<std::uint32_t>(x);
  const std::uint32_t sign = (u >> 16) & 0x8000u, rest = u & 0x7fffffffu;
  std::uint32_t out;
  if (rest > 0x7f800000u) {
    out = 0x7e00u | ((rest >> 13) & 0x3ffu);
  } else if (rest >= 0x477ff000u) {  // 65520 and up round to infinity
    out = 0x7c00u;
  } else if (rest >= 0x38800000u) {  // normal as a half
    out = (rest - (112u << 23) + 0xfffu + ((rest >> 13) & 1u)) >> 13;
  } else {  // adding 0.5 makes the hardware round the subnormal's last bit to even
    out = bits_as<std::uint32_t>(bits_as<float>(rest) + 0.5f) - 0x3f000000u;
  }
  to.bits = static_cast<std::uint16_t>(sign | out);
}
#endif

/// One double: this path exists for tests and small models, so mathematics is the C library's.
struct Doubles {
  using Scalar = double;
  using Mask = bool;
  static constexpr std::int64_t kLanes = 1;
  double v;

  TRIREME_INLINE static Doubles all(double x) { return {x}; }
  TRIREME_INLINE double first() const { return v; }
  TRIREME_INLINE static Doubles load(const double* p, All) { return {*p}; }
  TRIREME_INLINE static Doubles load(const std::int8_t* p, All) { return {static_cast<double>(*p)}; }
  TRIREME_INLINE void store(double* p, All) const { *p = v; }
  TRIREME_INLINE friend Doubles operator+(Doubles a, Doubles b) { return {a.v + b.v}; }
  TRIREME_INLINE friend Doubles operator-(Doubles a, Doubles b) { return {a.v - b.v}; }
  TRIREME_INLINE friend Doubles operator*(Doubles a, Doubles b) { return {a.v * b.v}; }
  TRIREME_INLINE friend Doubles operator/(Doubles a, Doubles b) { return {a.v / b.v}; }
};
TRIREME_INLINE Doubles multiply_add(Doubles a, Doubles b, Doubles c) { return {a.v * b.v + c.v}; }
TRIREME_INLINE Doubles at_most(Doubles bound, Doubles x) { return {bound.v < x.v ? bound.v : x.v}; }
TRIREME_INLINE Doubles at_least(Doubles bound, Doubles x) { return {bound.v > x.v ? bound.v : x.v}; }
TRIREME_INLINE Doubles absolute(Doubles x) { return {__builtin_fabs(x.v)}; }
TRIREME_INLINE Doubles square_root(Doubles x) { return {__builtin_sqrt(x.v)}; }
TRIREME_INLINE bool above(Doubles a, Doubles b) { return a.v > b.v; }
TRIREME_INLINE bool not_above(Doubles a, Doubles b) { return a.v <= b.v; }
TRIREME_INLINE Doubles choose(bool condition, Doubles a, Doubles b) { return condition ? a : b; }
TRIREME_INLINE Doubles fill_rest(Doubles x, All, double) { return x; }
TRIREME_INLINE double sum_of(Doubles x) { return x.v; }
TRIREME_INLINE double largest_of(Doubles x) { return x.v; }

}  // namespace
}  // namespace trireme::kernels

// Each defines Floats and, for it, the functions that stand above for Doubles, and:
//   at_most(bound, x), at_least(bound, x): a NaN in x passes.
//   above(a, b), not_above(a, b): a > b and a <= b, both false for a NaN.
//   nearest(x): to the nearest whole number; times_two_to(x, n): x * 2^n for whole n, as if exact, then rounded.
//   square_error(x, x * x): what the GEMM lost by rounding.
//   swap_neighbours(x): lanes 1 0 3 2 ...
//   NibbleWords: 8 kLanes codes of four bits, eight a lane, and what they stand for.
//   e4m3_floats(p, lanes): FP8 codes as floats, times 2^-8.
//   Squares: a sum of squares, exact in each GEMM and kept in double.
#if defined(__AVX512F__) && defined(__AVX512BW__)
#include "trireme/kernels/cpu/vec_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__)
#include "trireme/kernels/cpu/vec_avx2.h"
#else
#include "trireme/kernels/cpu/vec_plain.h"
#endif

namespace trireme::kernels {
namespace {

/// Whose lanes elements of type T are computed in.
template <typename T>
struct LanesOf {
  using Type = Floats;
};
template <>
struct LanesOf<double> {
  using Type = Doubles;
};

/// A choice made while compiling, passed to a lambda.
template <bool kValue>
struct Constant {
  static constexpr bool value = kValue;
};

/// x in the lanes that count, zero in the others.
template <typename V, typename Lanes>
TRIREME_INLINE V only(V x, Lanes lanes) {
  return fill_rest(x, lanes, 0);
}

template <typename T>
TRIREME_INLINE T* row_of(T* data, std::int64_t row, std::int64_t stride) {
  return data + row * stride;
}

/// f(i, lanes) for i = 0, lanes, 2 lanes ... until `count` elements are covered.
template <typename V, typename F>
TRIREME_INLINE void each(std::int64_t count, F&& f) {
  std::int64_t i = 0;
  for (; i + V::kLanes <= count; i += V::kLanes) f(i, All{});
  if constexpr (V::kLanes > 1) {
    if (i < count) f(i, First{static_cast<int>(count - i)});
  }
}

/// The same with N running totals that start at `start`: f(totals, i, lanes) adds to them. Four sets of totals take
/// turns, since one alone would wait for its own last addition; they are joined by `join` at the end.
template <int N, typename V, typename F, typename Join>
TRIREME_INLINE void fold(V (&totals)[N], std::int64_t count, V start, F&& f, Join&& join) {
  V a[N], b[N], c[N], d[N];
  for (int n = 0; n < N; ++n) a[n] = b[n] = c[n] = d[n] = start;
  constexpr std::int64_t kStep = V::kLanes;
  std::int64_t i = 0;
  for (; i + 4 * kStep <= count; i += 4 * kStep) {
    f(a, i, All{});
    f(b, i + kStep, All{});
    f(c, i + 2 * kStep, All{});
    f(d, i + 3 * kStep, All{});
  }
  for (; i + kStep <= count; i += kStep) f(a, i, All{});
  if constexpr (kStep > 1) {
    if (i < count) f(b, i, First{static_cast<int>(count - i)});
  }
  for (int n = 0; n < N; ++n) totals[n] = join(join(a[n], b[n]), join(c[n], d[n]));
}

template <int N, typename V, typename F>
TRIREME_INLINE void fold_sums(V (&totals)[N], std::int64_t count, F&& f) {
  fold(totals, count, V::all(0), f, [](V x, V y) TRIREME_LAMBDA { return x + y; });
}

}  // namespace
}  // namespace trireme::kernels
