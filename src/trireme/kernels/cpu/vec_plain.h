// kernels/cpu/vec_plain.h -- Floats as four floats in the compiler's own vector type, for any machine; see vec.h.
#pragma once

namespace trireme::kernels {
namespace {

typedef float FourFloats __attribute__((vector_size(16)));
typedef std::int32_t FourInts __attribute__((vector_size(16)));

struct Floats {
  using Scalar = float;
  using Mask = FourInts;
  static constexpr std::int64_t kLanes = 4;
  FourFloats v;

  TRIREME_INLINE static Floats all(float x) { return {FourFloats{x, x, x, x}}; }
  TRIREME_INLINE float first() const { return v[0]; }
  template <typename T>
  TRIREME_INLINE static Floats load(const T* p, All) {
    return {FourFloats{widen(p[0]), widen(p[1]), widen(p[2]), widen(p[3])}};
  }
  template <typename T>
  TRIREME_INLINE static Floats load(const T* p, First n) {
    FourFloats x = {0, 0, 0, 0};
    for (int i = 0; i < n.count; ++i) x[i] = widen(p[i]);
    return {x};
  }
  template <typename T>
  TRIREME_INLINE void store(T* p, All) const {
    for (int i = 0; i < 4; ++i) narrow(p[i], v[i]);
  }
  template <typename T>
  TRIREME_INLINE void store(T* p, First n) const {
    for (int i = 0; i < n.count; ++i) narrow(p[i], v[i]);
  }
  TRIREME_INLINE friend Floats operator+(Floats a, Floats b) { return {a.v + b.v}; }
  TRIREME_INLINE friend Floats operator-(Floats a, Floats b) { return {a.v - b.v}; }
  TRIREME_INLINE friend Floats operator*(Floats a, Floats b) { return {a.v * b.v}; }
  TRIREME_INLINE friend Floats operator/(Floats a, Floats b) { return {a.v / b.v}; }
};

TRIREME_INLINE Floats choose(FourInts condition, Floats a, Floats b) {
  return {bits_as<FourFloats>((condition & bits_as<FourInts>(a.v)) | (~condition & bits_as<FourInts>(b.v)))};
}
TRIREME_INLINE FourInts above(Floats a, Floats b) { return a.v > b.v; }
TRIREME_INLINE FourInts not_above(Floats a, Floats b) { return a.v <= b.v; }
TRIREME_INLINE Floats multiply_add(Floats a, Floats b, Floats c) { return {a.v * b.v + c.v}; }
TRIREME_INLINE Floats at_most(Floats bound, Floats x) { return choose(bound.v < x.v, bound, x); }
TRIREME_INLINE Floats at_least(Floats bound, Floats x) { return choose(bound.v > x.v, bound, x); }
TRIREME_INLINE Floats absolute(Floats x) {
  return {bits_as<FourFloats>(bits_as<FourInts>(x.v) & FourInts{0x7fffffff, 0x7fffffff, 0x7fffffff, 0x7fffffff})};
}
TRIREME_INLINE Floats square_root(Floats x) {
  return {
      FourFloats{__builtin_sqrtf(x.v[0]), __builtin_sqrtf(x.v[1]), __builtin_sqrtf(x.v[2]), __builtin_sqrtf(x.v[3])}};
}
TRIREME_INLINE Floats fill_rest(Floats x, All, float) { return x; }
TRIREME_INLINE Floats fill_rest(Floats x, First n, float fill) {
  for (int i = n.count; i < 4; ++i) x.v[i] = fill;
  return x;
}
TRIREME_INLINE float sum_of(Floats x) { return (x.v[0] + x.v[2]) + (x.v[1] + x.v[3]); }
TRIREME_INLINE float largest_of(Floats x) {
  const float a = x.v[0] > x.v[2] ? x.v[0] : x.v[2], b = x.v[1] > x.v[3] ? x.v[1] : x.v[3];
  return a > b ? a : b;
}
TRIREME_INLINE Floats nearest(Floats x) {
  const Floats shift = Floats::all(0x1.8p23f);  // floats of this size are whole numbers; callers stay below 2^22
  return (x + shift) - shift;
}
TRIREME_INLINE Floats times_two_to(Floats x, Floats n) {
  // In two factors, each a normal number, for results beyond the normal range. A NaN in n may become any whole number:
  // x is a NaN then, too.
  FourInts whole;
  for (int i = 0; i < 4; ++i) whole[i] = n.v[i] == n.v[i] ? static_cast<std::int32_t>(n.v[i]) : 0;
  const FourInts half = whole >> 1;
  const auto first = bits_as<FourFloats>((half + 127) << 23);
  const auto second = bits_as<FourFloats>((whole - half + 127) << 23);
  return {x.v * first * second};
}
TRIREME_INLINE Floats square_error(Floats x, Floats square) {
  // Without a fused multiply-add: Dekker's GEMM of halves of 12 bits each.
  const Floats high = {bits_as<FourFloats>(bits_as<FourInts>(x.v) & FourInts{~0xfff, ~0xfff, ~0xfff, ~0xfff})};
  const Floats low = x - high;
  return (high * high - square) + Floats::all(2) * high * low + low * low;
}
TRIREME_INLINE Floats swap_neighbours(Floats x) { return {FourFloats{x.v[1], x.v[0], x.v[3], x.v[2]}}; }

/// A lane has the 32 bits of eight neighbouring codes, the first of them lowest.
struct NibbleWords {
  const std::uint8_t* p;
  struct Meaning {
    Floats scale, zero;
  };
  TRIREME_INLINE static NibbleWords load(const std::uint8_t* p) { return {p}; }
  TRIREME_INLINE static Meaning meaning(float scale, float zero) { return {Floats::all(scale), Floats::all(zero)}; }
  template <int kAt>
  TRIREME_INLINE Floats at(Floats scale, Floats zero) const {
    FourFloats codes;
    for (int i = 0; i < 4; ++i) codes[i] = static_cast<float>(p[4 * i + kAt / 2] >> (kAt % 2 * 4) & 15);
    return (Floats{codes} - zero) * scale;
  }
  template <int kAt>
  TRIREME_INLINE Floats at(const Meaning& meaning) const {
    return at<kAt>(meaning.scale, meaning.zero);
  }
};

/// By way of float16, whose exponent has the bias 15 and not 7.
template <typename Lanes>
TRIREME_INLINE Floats e4m3_floats(const std::uint8_t* p, Lanes some) {
  F16 halves[Floats::kLanes] = {};
  int count = Floats::kLanes;
  if constexpr (requires { some.count; }) count = some.count;
  for (int i = 0; i < count; ++i)
    halves[i].bits = static_cast<std::uint16_t>((p[i] & 0x80u) << 8 | (p[i] & 0x7fu) << 7);
  return Floats::load(halves, All{});
}

/// A sum kept in double, four lanes.
struct Squares {
  double v[4] = {0, 0, 0, 0};
  TRIREME_INLINE void add(Floats x) {
    for (int i = 0; i < 4; ++i) v[i] += static_cast<double>(x.v[i]) * static_cast<double>(x.v[i]);
  }
  TRIREME_INLINE double total() const { return (v[0] + v[2]) + (v[1] + v[3]); }
};

}  // namespace
}  // namespace trireme::kernels
