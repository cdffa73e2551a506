// comm/arithmetic/body.h -- the loops behind arithmetic.h, included once per instruction set with its own compiler
// flags.
//
// Everything sits in an unnamed namespace and nothing of the standard library with code is used: a function compiled
// for AVX-512 must never become the copy that other files link to. TRIREME_ARITHMETIC_TABLE names the table this copy
// exports.
#include <cstddef>
#include <cstdint>
#include <cstring>
#if defined(__AVX2__)
#include <immintrin.h>
#endif
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes the deliberately undefined operands inside its own AVX-512 header for a mistake of ours.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include "trireme/comm/arithmetic/arithmetic.h"
#include "trireme/comm/arithmetic/table.h"

namespace trireme::comm {
namespace {

struct F16 {
  std::uint16_t bits;
};
struct BF16 {
  std::uint16_t bits;
};

inline std::uint32_t bits_of(float x) {
  std::uint32_t u;
  std::memcpy(&u, &x, 4);
  return u;
}
inline float float_of(std::uint32_t u) {
  float x;
  std::memcpy(&x, &u, 4);
  return x;
}

inline float widen(BF16 x) { return float_of(std::uint32_t{x.bits} << 16); }
inline BF16 narrow_bf16(float x) {
  const std::uint32_t u = bits_of(x);
  const std::uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  // A NaN whose payload sits in the low bits would round to infinity: keep it a NaN.
  return {static_cast<std::uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? ((u >> 16) | 0x40u) : rounded)};
}

#if defined(__F16C__)
inline float widen(F16 x) { return _cvtsh_ss(x.bits); }
inline F16 narrow_f16(float x) { return {static_cast<std::uint16_t>(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT))}; }
#else
inline float widen(F16 x) {
  const std::uint32_t sign = std::uint32_t{x.bits & 0x8000u} << 16, rest = x.bits & 0x7fffu;
  if (rest >= 0x7c00u) return float_of(sign | 0x7f800000u | (rest & 0x3ffu ? (rest & 0x3ffu) << 13 | 0x400000u : 0u));
  if (rest >= 0x400u) return float_of(sign | ((rest + (112u << 10)) << 13));
  const float subnormal = static_cast<float>(rest) * 0x1p-24f;
  return float_of(sign | bits_of(subnormal));
}
inline F16 narrow_f16(float x) {
  const std::uint32_t u = bits_of(x), sign = (u >> 16) & 0x8000u, rest = u & 0x7fffffffu;
  std::uint32_t out;
  if (rest > 0x7f800000u) {
    out = 0x7e00u | ((rest >> 13) & 0x3ffu);
  } else if (rest >= 0x477ff000u) {  // 65520 and up round to infinity
    out = 0x7c00u;
  } else if (rest >= 0x38800000u) {  // normal in f16
    out = (rest - (112u << 23) + 0xfffu + ((rest >> 13) & 1u)) >> 13;
  } else {  // adding 0.5 makes the hardware round the subnormal's last bit to even
    out = bits_of(float_of(rest) + 0.5f) - 0x3f000000u;
  }
  return {static_cast<std::uint16_t>(sign | out)};
}
#endif

// How each element type is held while it is combined.
template <typename T>
struct Wide {
  using Type = T;
};
template <>
struct Wide<F16> {
  using Type = float;
};
template <>
struct Wide<BF16> {
  using Type = float;
};

// Sums of signed integers wrap; computing them unsigned keeps that defined.
template <typename T>
struct Wrapping {
  using Type = T;
};
template <>
struct Wrapping<std::int32_t> {
  using Type = std::uint32_t;
};
template <>
struct Wrapping<std::int64_t> {
  using Type = std::uint64_t;
};

struct Sum {
  template <typename T>
  static T apply(T a, T b) {
    using U = typename Wrapping<T>::Type;
    return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
  }
};
struct Prod {
  template <typename T>
  static T apply(T a, T b) {
    using U = typename Wrapping<T>::Type;
    return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
  }
};

template <typename T>
struct BitsOf {
  using Type = T;
};
template <>
struct BitsOf<float> {
  using Type = std::uint32_t;
};
template <>
struct BitsOf<double> {
  using Type = std::uint64_t;
};

// Equal floats have equal bits except the two zeros: "or" then gives -0 (the smaller), "and" +0. A sum of the two
// operands is a NaN exactly when one of them is (for unordered operands), whichever side it stands on.
template <bool kIsMin, typename T>
inline T extreme(T a, T b) {
  if constexpr (sizeof(typename BitsOf<T>::Type) == sizeof(T) && T(0.5) != T(0)) {
    using U = typename BitsOf<T>::Type;
    U ua, ub;
    std::memcpy(&ua, &a, sizeof a);
    std::memcpy(&ub, &b, sizeof b);
    const U u = kIsMin ? (ua | ub) : (ua & ub);
    T equal;
    std::memcpy(&equal, &u, sizeof u);
    const T smaller = a < b ? a : b, larger = a < b ? b : a;
    const T ordered = a == b ? equal : (kIsMin ? smaller : larger);
    return a != a || b != b ? a + b : ordered;
  } else {
    return kIsMin ? (a < b ? a : b) : (a < b ? b : a);
  }
}
struct Min {
  template <typename T>
  static T apply(T a, T b) {
    return extreme<true>(a, b);
  }
};
struct Max {
  template <typename T>
  static T apply(T a, T b) {
    return extreme<false>(a, b);
  }
};

// Elements combined at a time: small enough that the wide copy stays in the first-level cache.
constexpr std::size_t kBlock = 1024;

template <typename T>
inline void load(typename Wide<T>::Type* to, const T* from, std::size_t count) {
  std::size_t i = 0;
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 2 && sizeof(typename Wide<T>::Type) == 4) {
    for (; i + 16 <= count; i += 16) {
      const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
      if constexpr (__is_same(T, F16)) {
        _mm512_storeu_ps(to + i, _mm512_cvtph_ps(half));
      } else {
        _mm512_storeu_ps(to + i, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16)));
      }
    }
  }
#elif defined(__F16C__)
  if constexpr (__is_same(T, F16)) {
    for (; i + 8 <= count; i += 8) {
      _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
    }
  }
#endif
  for (; i < count; ++i) {
    if constexpr (__is_same(T, F16) || __is_same(T, BF16)) {
      to[i] = widen(from[i]);
    } else {
      to[i] = from[i];
    }
  }
}

template <typename T>
inline void store(T* to, const typename Wide<T>::Type* from, std::size_t count) {
  std::size_t i = 0;
#if defined(__AVX512F__)
  if constexpr (__is_same(T, F16)) {
    for (; i + 16 <= count; i += 16) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i),
                          _mm512_cvtps_ph(_mm512_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
    }
  }
#elif defined(__F16C__)
  if constexpr (__is_same(T, F16)) {
    for (; i + 8 <= count; i += 8) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                       _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
    }
  }
#endif
  for (; i < count; ++i) {
    if constexpr (__is_same(T, F16)) {
      to[i] = narrow_f16(from[i]);
    } else if constexpr (__is_same(T, BF16)) {
      to[i] = narrow_bf16(from[i]);
    } else {
      to[i] = from[i];
    }
  }
}

inline void stream_bytes(void* to, const void* from, std::size_t bytes) {
#if defined(__AVX2__)
  auto* t = static_cast<std::uint8_t*>(to);
  auto* f = static_cast<const std::uint8_t*>(from);
  // Streaming stores need aligned destinations; the few bytes before and after go the ordinary way.
  const std::size_t head = (64 - (reinterpret_cast<std::uintptr_t>(t) & 63)) & 63;
  if (bytes < head + 64) {
    std::memcpy(to, from, bytes);
    return;
  }
  std::memcpy(t, f, head);
  std::size_t i = head;
  for (; i + 64 <= bytes; i += 64) {
#if defined(__AVX512F__)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(t + i), _mm512_loadu_si512(f + i));
#else
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(f + i));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(f + i + 32));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(t + i), a);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(t + i + 32), b);
#endif
  }
  std::memcpy(t + i, f + i, bytes - i);
  _mm_sfence();  // the flag that announces these bytes must not overtake them
#else
  std::memcpy(to, from, bytes);
#endif
}

template <typename T, typename Op>
void combine_loop(void* to, const void* a, const void* b, std::size_t count) {
  auto* out = static_cast<T*>(to);
  const auto* x = static_cast<const T*>(a);
  const auto* y = static_cast<const T*>(b);
  if constexpr (__is_same(T, F16) || __is_same(T, BF16)) {
    alignas(64) float wide_x[kBlock], wide_y[kBlock];
    for (std::size_t begin = 0; begin < count; begin += kBlock) {
      const std::size_t n = count - begin < kBlock ? count - begin : kBlock;
      load(wide_x, x + begin, n);
      load(wide_y, y + begin, n);
      for (std::size_t i = 0; i < n; ++i) wide_x[i] = Op::apply(wide_x[i], wide_y[i]);
      store(out + begin, wide_x, n);
    }
  } else {
    for (std::size_t i = 0; i < count; ++i) out[i] = Op::template apply<T>(x[i], y[i]);
  }
}

template <typename T>
inline void divide_wide(T* to, std::size_t count, int divisor) {
  const T by = static_cast<T>(divisor);
  for (std::size_t i = 0; i < count; ++i) to[i] = static_cast<T>(to[i] / by);
}

template <typename T, typename Op>
void fold_loop(void* const* to, std::size_t tos, const void* const* from, std::size_t froms, std::size_t count,
               int divisor, bool stream) {
  using W = typename Wide<T>::Type;
  alignas(64) W sum[kBlock];
  alignas(64) W next[sizeof(T) == sizeof(W) ? 1 : kBlock];
  alignas(64) T narrow[sizeof(T) == sizeof(W) ? 1 : kBlock];
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t n = count - begin < kBlock ? count - begin : kBlock;
    std::size_t source = 1;
    if constexpr (sizeof(T) == sizeof(W)) {
      // The first two at once: the commonest case then touches the block only once.
      const T* x = static_cast<const T*>(from[0]) + begin;
      if (froms > 1) {
        const T* y = static_cast<const T*>(from[1]) + begin;
        for (std::size_t i = 0; i < n; ++i) sum[i] = Op::template apply<W>(x[i], y[i]);
        source = 2;
      } else {
        std::memcpy(sum, x, n * sizeof(T));
      }
    } else {
      load(sum, static_cast<const T*>(from[0]) + begin, n);
    }
    for (; source < froms; ++source) {
      const T* x = static_cast<const T*>(from[source]) + begin;
      if constexpr (sizeof(T) == sizeof(W)) {
        for (std::size_t i = 0; i < n; ++i) sum[i] = Op::template apply<W>(sum[i], x[i]);
      } else {
        load(next, x, n);
        for (std::size_t i = 0; i < n; ++i) sum[i] = Op::template apply<W>(sum[i], next[i]);
      }
    }
    if (divisor != 1) divide_wide(sum, n, divisor);
    const void* block = sum;
    if constexpr (sizeof(T) != sizeof(W)) {
      store(narrow, sum, n);
      block = narrow;
    }
    for (std::size_t k = 0; k < tos; ++k) {
      T* out = static_cast<T*>(to[k]) + begin;
      if (stream) {
        stream_bytes(out, block, n * sizeof(T));
      } else {
        std::memcpy(out, block, n * sizeof(T));
      }
    }
  }
}

template <typename T>
void divide_loop(void* to, std::size_t count, int divisor) {
  auto* out = static_cast<T*>(to);
  if constexpr (sizeof(T) == sizeof(typename Wide<T>::Type)) {
    divide_wide(out, count, divisor);
  } else {
    alignas(64) float wide[kBlock];
    for (std::size_t begin = 0; begin < count; begin += kBlock) {
      const std::size_t n = count - begin < kBlock ? count - begin : kBlock;
      load(wide, out + begin, n);
      divide_wide(wide, n, divisor);
      store(out + begin, wide, n);
    }
  }
}

template <typename T, typename Op>
constexpr Arithmetic make() {
  return {&combine_loop<T, Op>, &fold_loop<T, Op>, &divide_loop<T>};
}
template <typename Op>
constexpr ArithmeticRow make_row() {
  return {{make<float, Op>(), make<double, Op>(), make<F16, Op>(), make<BF16, Op>(), make<std::int32_t, Op>(),
           make<std::int64_t, Op>(), make<std::uint8_t, Op>()}};
}

}  // namespace

// In the order of Reduce and DType.
const ArithmeticTable TRIREME_ARITHMETIC_TABLE = {
    {make_row<Sum>(), make_row<Sum>(), make_row<Min>(), make_row<Max>(), make_row<Prod>()}, &stream_bytes};

}  // namespace trireme::comm
