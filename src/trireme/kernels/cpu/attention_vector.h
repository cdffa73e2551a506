// kernels/cpu/attention_vector.h -- vectors as wide as the instruction set that this file is compiled for has them.
//
// GCC's vector types, so that one text serves every width; in an unnamed namespace, because each instruction set
// compiles its own copy. Depends on: std.
#pragma once

#include <cstdint>
#include <cstring>
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes the deliberately undefined operands inside its own AVX-512 header for a mistake of ours.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#define TRIREME_INLINE [[gnu::always_inline]] inline

namespace trireme::kernels::cpu {
namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

typedef float FloatVector __attribute__((vector_size(kVectorBytes), may_alias));
typedef double DoubleVector __attribute__((vector_size(kVectorBytes), may_alias));
typedef std::int32_t Int32Vector __attribute__((vector_size(kVectorBytes), may_alias));
typedef std::uint32_t Uint32Vector __attribute__((vector_size(kVectorBytes), may_alias));
typedef std::int64_t Int64Vector __attribute__((vector_size(kVectorBytes), may_alias));
typedef std::uint64_t Uint64Vector __attribute__((vector_size(kVectorBytes), may_alias));

template <typename Real>
struct Lanes;

template <>
struct Lanes<float> {
  using Vector = FloatVector;
  using Integers = Int32Vector;
  using Unsigned = Uint32Vector;
  using Integer = std::int32_t;
};
template <>
struct Lanes<double> {
  using Vector = DoubleVector;
  using Integers = Int64Vector;
  using Unsigned = Uint64Vector;
  using Integer = std::int64_t;
};
template <>
struct Lanes<std::uint32_t> {
  using Vector = Uint32Vector;
};

template <typename Element>
constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(Element));

/// Aligned memory only: all scratch is.
template <typename Element>
TRIREME_INLINE auto load(const Element* from) {
  return *reinterpret_cast<const typename Lanes<Element>::Vector*>(from);
}
template <typename Element, typename Vector>
TRIREME_INLINE void store(Element* to, Vector value) {
  *reinterpret_cast<typename Lanes<Element>::Vector*>(to) = value;
}

/// All lanes the same. Written so that the compiler makes it one broadcast.
template <typename Real>
TRIREME_INLINE typename Lanes<Real>::Vector spread(Real value) {
  return typename Lanes<Real>::Vector{} + value;
}
#if defined(__AVX512F__)
template <>
TRIREME_INLINE FloatVector spread(float value) {
  return reinterpret_cast<FloatVector>(_mm512_set1_ps(value));
}
#endif

/// Larger of two, lane by lane; where one is not a number, the second.
TRIREME_INLINE FloatVector larger(FloatVector a, FloatVector b) {
#if defined(__AVX512F__)
  return reinterpret_cast<FloatVector>(_mm512_max_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b)));
#elif defined(__AVX2__)
  return reinterpret_cast<FloatVector>(_mm256_max_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b)));
#else
  return a > b ? a : b;
#endif
}
TRIREME_INLINE DoubleVector larger(DoubleVector a, DoubleVector b) { return a > b ? a : b; }

template <int... kIndex>
struct Indices {};
template <int kCount, int... kIndex>
struct MakeIndices : MakeIndices<kCount - 1, kCount - 1, kIndex...> {};
template <int... kIndex>
struct MakeIndices<0, kIndex...> {
  using Type = Indices<kIndex...>;
};

// One step of a transposition: lanes whose number lacks the bit kStep from a, the others from b, kStep further down;
// and the other way round.
template <int kStep, typename Vector, int... kIndex>
TRIREME_INLINE Vector lower_halves(Vector a, Vector b, Indices<kIndex...>) {
  return __builtin_shufflevector(a, b, ((kIndex & kStep) ? int{sizeof...(kIndex)} + kIndex - kStep : kIndex)...);
}
template <int kStep, typename Vector, int... kIndex>
TRIREME_INLINE Vector upper_halves(Vector a, Vector b, Indices<kIndex...>) {
  return __builtin_shufflevector(a, b, ((kIndex & kStep) ? int{sizeof...(kIndex)} + kIndex : kIndex + kStep)...);
}

template <int kStep, int kCount, typename Vector>
TRIREME_INLINE void transpose_steps(Vector (&rows)[kCount]) {
  using All = typename MakeIndices<kCount>::Type;
#pragma GCC unroll 16
  for (int i = 0; i < kCount; ++i) {
    if (i & kStep) continue;
    const Vector a = rows[i], b = rows[i + kStep];
    rows[i] = lower_halves<kStep>(a, b, All{});
    rows[i + kStep] = upper_halves<kStep>(a, b, All{});
  }
  if constexpr (kStep > 1) transpose_steps<kStep / 2>(rows);
}

/// to[column][row] = from[row][column]; both counts are multiples of the lanes.
template <typename Element>
TRIREME_INLINE void transpose(Element* to, std::int64_t to_stride, const Element* from, std::int64_t from_stride,
                              std::int64_t rows, std::int64_t columns) {
  constexpr int kCount = kLanes<Element>;
  for (std::int64_t row = 0; row < rows; row += kCount) {
    for (std::int64_t column = 0; column < columns; column += kCount) {
      typename Lanes<Element>::Vector block[kCount];
#pragma GCC unroll 16
      for (int i = 0; i < kCount; ++i) block[i] = load(from + (row + i) * from_stride + column);
      transpose_steps<kCount / 2>(block);
#pragma GCC unroll 16
      for (int i = 0; i < kCount; ++i) store(to + (column + i) * to_stride + row, block[i]);
    }
  }
}

/// Lane i gets lane i ^ kStep.
template <int kStep, typename Vector, int... kIndex>
TRIREME_INLINE Vector across_lanes(Vector v, Indices<kIndex...>) {
  return __builtin_shufflevector(v, v, (kIndex ^ kStep)...);
}
/// All lanes joined two by two, in an order that the width alone decides.
template <int kStep, typename Vector, typename Join>
TRIREME_INLINE auto fold_lanes(Vector v, const Join& join) {
  constexpr int kCount = static_cast<int>(sizeof(v) / sizeof(v[0]));
  v = join(v, across_lanes<kStep>(v, typename MakeIndices<kCount>::Type{}));
  if constexpr (kStep > 1) {
    return fold_lanes<kStep / 2>(v, join);
  } else {
    return v[0];
  }
}
template <typename Vector>
TRIREME_INLINE auto horizontal_sum(Vector v) {
  return fold_lanes<static_cast<int>(sizeof(v) / sizeof(v[0])) / 2>(v, [](Vector a, Vector b) { return a + b; });
}
template <typename Vector>
TRIREME_INLINE auto horizontal_max(Vector v) {
  return fold_lanes<static_cast<int>(sizeof(v) / sizeof(v[0])) / 2>(v, [](Vector a, Vector b) { return larger(a, b); });
}

/// 2^x for x <= 127 (1023), never below the smallest normal number; not-a-number stays so. Minimax polynomials on
/// [-1/2, 1/2], of relative error 2^-29 and 2^-58: rounding decides the last bit.
TRIREME_INLINE FloatVector exp2(FloatVector x) {
  constexpr float kRound = 0x1.8p23f;  // adding it rounds to a whole number in the low bits
  x = larger(spread(-126.0f), x);
  const FloatVector shifted = x + kRound, f = x - (shifted - kRound);
  FloatVector p = f * 0.000153458121587f + 0.00133999312095f;
  p = p * f + 0.00961848895652f;
  p = p * f + 0.05550328777f;
  p = p * f + 0.240226468906f;
  p = p * f + 0.693147205737f;
  p = p * f + 1.0f;
  return reinterpret_cast<FloatVector>(reinterpret_cast<Uint32Vector>(p) +
                                       (reinterpret_cast<Uint32Vector>(shifted) << 23));
}
TRIREME_INLINE DoubleVector exp2(DoubleVector x) {
  constexpr double kRound = 0x1.8p52;
  x = larger(spread(-1022.0), x);
  const DoubleVector shifted = x + kRound, f = x - (shifted - kRound);
  DoubleVector p = f * 4.4352809446103361611e-10 + 7.0741056262456593708e-9;
  p = p * f + 1.0178198033328527662e-7;
  p = p * f + 1.3215433089594629037e-6;
  p = p * f + 0.0000152527334899608046;
  p = p * f + 0.00015403530462514613026;
  p = p * f + 0.0013333558146789950323;
  p = p * f + 0.0096181291075883350833;
  p = p * f + 0.055504108664819921483;
  p = p * f + 0.24022650695910156205;
  p = p * f + 0.69314718055994533046;
  p = p * f + 1.0;
  return reinterpret_cast<DoubleVector>(reinterpret_cast<Uint64Vector>(p) +
                                        (reinterpret_cast<Uint64Vector>(shifted) << 52));
}

}  // namespace
}  // namespace trireme::kernels::cpu
