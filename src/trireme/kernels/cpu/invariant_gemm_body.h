// kernels/cpu/invariant_gemm_body.h -- the loops behind invariant_gemm.h, included once per instruction set.
//
// The sum of one element of the result: lanes over k in rising order, the end of the row with fewer lanes, then the
// lanes. Every tile does that for each of its elements, so which tile an element falls into changes nothing.
//
// Of few rows the weight is all the work: it is made floats in registers and read once; of one row eight rows of it at
// a time, which keep as many lines on their way as the core has room for, without asking for any ahead. Of many rows a
// tile of the weight is made floats once and stays in the first-level cache.
#include "trireme/kernels/cpu/invariant_gemm_table.h"
#include "trireme/kernels/cpu/vec.h"

namespace trireme::kernels {
namespace {

constexpr std::int64_t kTileColumns = 4;                              // of the result: rows of the weight
constexpr std::int64_t kOneRowColumns = 8;                            // of a result of one row, read where they lie
constexpr std::int64_t kRowsInCacheBytes = 384 * std::int64_t{1024};  // of x, for all columns
constexpr std::int64_t kFewRows = 3;

/// One element of the result.
template <typename T, typename A>
TRIREME_INLINE void put(const InvariantGemmLoop& c, T* out, std::int64_t column, A sum) {
  const T* bias = static_cast<const T*>(c.bias);
  if constexpr (sizeof(T) == 8) {
    *out = bias ? sum + bias[column] : sum;
  } else {
    narrow(*out, bias ? sum + widen(bias[column]) : sum);
  }
}

template <int kRows, int kColumns, typename W, typename A, typename T>
TRIREME_INLINE void tile(const InvariantGemmLoop& c, std::int64_t row, std::int64_t column, const W* weight,
                         std::int64_t weight_stride, const float* row_scales) {
  using V = typename LanesOf<T>::Type;
  const A* x = static_cast<const A*>(c.x) + row * c.x_stride;
  V sums[kRows][kColumns];
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kColumns; ++j) sums[i][j] = V::all(0);
  }
  each<V>(c.k, [&](std::int64_t at, auto some) TRIREME_LAMBDA {
    V rows[kRows];
    for (int i = 0; i < kRows; ++i) rows[i] = V::load(x + i * c.x_stride + at, some);
    for (int j = 0; j < kColumns; ++j) {
      const V w = V::load(weight + j * weight_stride + at, some);
      for (int i = 0; i < kRows; ++i) sums[i][j] = multiply_add(rows[i], w, sums[i][j]);
    }
  });
  T* out = static_cast<T*>(c.out) + row * c.out_stride + column;
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kColumns; ++j) {
      A sum = sum_of(sums[i][j]);
      if (row_scales) sum *= static_cast<A>(row_scales[j]);
      put(c, out + i * c.out_stride + j, column + j, sum);
    }
  }
}

/// Rows [begin, end) of the result, as many at once as registers hold: f(Rows<n>, first of them).
template <int kCount>
struct Rows {
  static constexpr int count = kCount;
};
template <bool kManyRegisters, typename F>
TRIREME_INLINE void by_rows(std::int64_t begin, std::int64_t end, F&& f) {
  std::int64_t row = begin;
  if constexpr (kManyRegisters) {
    for (; row + 6 <= end; row += 6) f(Rows<6>{}, row);
  }
  for (; row + 3 <= end; row += 3) f(Rows<3>{}, row);
  if (row + 2 == end) {
    f(Rows<2>{}, row);
  } else if (row < end) {
    f(Rows<1>{}, row);
  }
}

/// f(Columns<n>, first row, end of rows, first column): rows of x in stretches that stay in the cache, and for each of
/// them all columns. `kInPlace`: columns are not staged, so that one row may have more of them at once.
template <int kCount>
struct Columns {
  static constexpr int count = kCount;
};
template <bool kInPlace, typename F>
TRIREME_INLINE void by_columns(const InvariantGemmLoop& c, std::int64_t begin, std::int64_t end,
                               std::int64_t bytes_of_x, F&& f) {
  const std::int64_t fit = kRowsInCacheBytes / bytes_of_x / (c.k > 0 ? c.k : 1);
  const std::int64_t block = fit < 6 ? 6 : fit / 6 * 6;
  for (std::int64_t first = 0; first < c.m; first += block) {
    const std::int64_t last = first + block < c.m ? first + block : c.m;
    std::int64_t column = begin;
    if constexpr (kInPlace) {
      for (; c.m == 1 && column + kOneRowColumns <= end; column += kOneRowColumns)
        f(Columns<kOneRowColumns>{}, first, last, column);
    }
    for (; column + kTileColumns <= end; column += kTileColumns) f(Columns<kTileColumns>{}, first, last, column);
    for (; column < end; ++column) f(Columns<1>{}, first, last, column);
  }
}

/// f(Rows<n>, first of them): as by_rows(), of a tile of so many columns.
template <bool kManyRegisters, int kColumns, typename F>
TRIREME_INLINE void by_rows_of(std::int64_t begin, std::int64_t end, F&& f) {
  if constexpr (kColumns == kOneRowColumns) {
    f(Rows<1>{}, begin);
  } else {
    by_rows<kManyRegisters>(begin, end, f);
  }
}

/// `stage(column, count)` gives rows of the weight that are loaded as floats, `row_scales` their scales or null.
template <typename W, typename A, typename T, bool kInPlace, typename Stage>
TRIREME_INLINE void multiply_columns(const InvariantGemmLoop& c, std::int64_t begin, std::int64_t end,
                                     std::int64_t weight_stride, const float* row_scales, Stage&& stage) {
  constexpr bool kManyRegisters = LanesOf<T>::Type::kLanes == 16;
  by_columns<kInPlace>(
      c, begin, end, static_cast<std::int64_t>(sizeof(A)),
      [&](auto columns, std::int64_t first, std::int64_t last, std::int64_t column) TRIREME_LAMBDA {
        constexpr int kColumns = decltype(columns)::count;
        const W* weight = stage(column, std::int64_t{kColumns});
        const float* scales = row_scales ? row_scales + column : nullptr;
        by_rows_of<kManyRegisters, kColumns>(first, last, [&](auto rows, std::int64_t row) TRIREME_LAMBDA {
          tile<decltype(rows)::count, kColumns, W, A, T>(c, row, column, weight, weight_stride, scales);
        });
      });
}

constexpr std::int64_t kLanes = Floats::kLanes, kChunk = 8 * kLanes;

/// Of a chunk that has several groups: lane by lane what is one of theirs.
TRIREME_INLINE Floats by_lane(const float* of_groups, std::int64_t groups) {
  float lanes[kLanes];
  const std::int64_t each = kLanes / groups;
  for (std::int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] = of_groups[lane / each];
  return Floats::load(lanes, All{});
}

#if defined(__AVX512BF16__)
// ---- x in bfloat16: two products at a time, summed in float; neither x nor a weight is ever made floats

struct SomePairs {
  __mmask32 lanes;
};
TRIREME_INLINE __m512bh pairs(const Bf16* p, All) { return reinterpret_cast<__m512bh>(_mm512_loadu_si512(p)); }
TRIREME_INLINE __m512bh pairs(const Bf16* p, SomePairs some) {
  return reinterpret_cast<__m512bh>(_mm512_maskz_loadu_epi16(some.lanes, p));
}
/// Codes of int8 are numbers of bfloat16.
TRIREME_INLINE __m512bh pairs_of(__m256i codes) {
  const __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(codes)));
  const __m512 high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(codes, 1)));
  return _mm512_cvtne2ps_pbh(high, low);
}
TRIREME_INLINE __m512bh pairs(const std::int8_t* p, All) {
  return pairs_of(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
TRIREME_INLINE __m512bh pairs(const std::int8_t* p, SomePairs some) {
  return pairs_of(_mm256_maskz_loadu_epi8(some.lanes, p));
}
/// f(i, lanes) for i = 0, 32, 64 ...
template <typename F>
TRIREME_INLINE void each_pairs(std::int64_t count, F&& f) {
  std::int64_t i = 0;
  for (; i + 32 <= count; i += 32) f(i, All{});
  if (i < count) f(i, SomePairs{static_cast<__mmask32>((std::uint32_t{1} << (count - i)) - 1u)});
}

template <int kRows, int kColumns, typename W>
TRIREME_INLINE void pairs_tile(const InvariantGemmLoop& c, std::int64_t row, std::int64_t column, const W* weight,
                               std::int64_t weight_stride, const float* row_scales) {
  const Bf16* x = static_cast<const Bf16*>(c.x) + row * c.x_stride;
  __m512 sums[kRows][kColumns];
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kColumns; ++j) sums[i][j] = _mm512_setzero_ps();
  }
  each_pairs(c.k, [&](std::int64_t at, auto some) TRIREME_LAMBDA {
    __m512bh rows[kRows];
    for (int i = 0; i < kRows; ++i) rows[i] = pairs(x + i * c.x_stride + at, some);
    for (int j = 0; j < kColumns; ++j) {
      const __m512bh w = pairs(weight + j * weight_stride + at, some);
      for (int i = 0; i < kRows; ++i) sums[i][j] = _mm512_dpbf16_ps(sums[i][j], rows[i], w);
    }
  });
  Bf16* out = static_cast<Bf16*>(c.out) + row * c.out_stride + column;
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kColumns; ++j) {
      const float sum = sum_of(Floats{sums[i][j]});
      put(c, out + i * c.out_stride + j, column + j, row_scales ? sum * row_scales[j] : sum);
    }
  }
}

/// As multiply_columns().
template <typename W, bool kInPlace, typename Stage>
TRIREME_INLINE void multiply_pairs(const InvariantGemmLoop& c, std::int64_t begin, std::int64_t end,
                                   std::int64_t weight_stride, const float* row_scales, Stage&& stage) {
  by_columns<kInPlace>(c, begin, end, static_cast<std::int64_t>(sizeof(Bf16)),
                       [&](auto columns, std::int64_t first, std::int64_t last, std::int64_t column) TRIREME_LAMBDA {
                         constexpr int kColumns = decltype(columns)::count;
                         const W* weight = stage(column, std::int64_t{kColumns});
                         const float* scales = row_scales ? row_scales + column : nullptr;
                         by_rows_of<true, kColumns>(first, last, [&](auto rows, std::int64_t row) TRIREME_LAMBDA {
                           pairs_tile<decltype(rows)::count, kColumns>(c, row, column, weight, weight_stride, scales);
                         });
                       });
}

void multiply_plain_pairs(const InvariantGemmLoop& c, std::int64_t begin, std::int64_t end) {
  const Bf16* weight = static_cast<const Bf16*>(c.weight);
  multiply_pairs<Bf16, true>(c, begin, end, c.weight_stride, nullptr,
                             [&](std::int64_t column, std::int64_t) { return weight + column * c.weight_stride; });
}

void multiply_int8_pairs(const InvariantGemmLoop& c, std::int64_t begin, std::int64_t end) {
  const auto* weight = static_cast<const std::int8_t*>(c.weight);
  if (c.m <= 4 * kFewRows) {
    multiply_pairs<std::int8_t, true>(c, begin, end, c.weight_stride, c.scales, [&](std::int64_t column, std::int64_t) {
      return weight + column * c.weight_stride;
    });
    return;
  }
  Bf16* const staged = static_cast<Bf16*>(c.scratch(kTileColumns * c.k * static_cast<std::int64_t>(sizeof(Bf16))));
  multiply_pairs<Bf16, false>(c, begin, end, c.k, c.scales, [&](std::int64_t column, std::int64_t count) {
    for (std::int64_t j = 0; j < count; ++j) {
      const std::int8_t* from = weight + (column + j) * c.weight_stride;
      each_pairs(c.k, [&](std::int64_t at, auto some) TRIREME_LAMBDA {
        const auto numbers = reinterpret_cast<__m512i>(pairs(from + at, some));
        if constexpr (sizeof(some) == sizeof(SomePairs)) {
          _mm512_mask_storeu_epi16(staged + j * c.k + at, some.lanes, numbers);
        } else {
          _mm512_storeu_si512(staged + j * c.k + at, numbers);
        }
      });
    }
    return static_cast<const Bf16*>(staged);
  });
}

// int4: a register has 128 codes, four in each of its 16-bit lanes. Of each chunk the products of codes and x are
// summed in float, then zero times the sum of x is taken away, and the rest times the scale is added to the sum.
constexpr std::int64_t kPairChunk = 128;

/// Codes 0 to 15 as bfloat16, twice: a permutation looks at five bits of an index.
TRIREME_INLINE __m512i code_numbers() {
  const __m256i words = _mm256_setr_epi16(0, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0x4100, 0x4110,
                                          0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170);
  return _mm512_broadcast_i64x4(words);
}
TRIREME_INLINE __m512bh codes_at(__m512i words, int place) {
  return reinterpret_cast<__m512bh>(
      _mm512_permutexvar_epi16(_mm512_srl_epi16(words, _mm_cvtsi32_si128(4 * place)), code_numbers()));
}

/// What the lanes of a chunk's sums have as scale or zero point: all the same, or a few groups one after the other.
struct GroupLanes {
  std::int64_t of_chunk, chunks;  // groups of a chunk, chunks of a group; one of them is 1
  __m512i number;
  __mmask16 loaded;
  TRIREME_INLINE explicit GroupLanes(std::int64_t group)
      : of_chunk(group < kPairChunk ? kPairChunk / group : 1),
        chunks(group > kPairChunk ? group / kPairChunk : 1),
        loaded(static_cast<__mmask16>((1u << of_chunk) - 1u)) {
    alignas(64) std::int32_t lanes[16];
    for (int lane = 0; lane < 16; ++lane) lanes[lane] = static_cast<std::int32_t>(lane * of_chunk / 16);
    number = _mm512_load_si512(lanes);
  }
  TRIREME_INLINE __m512 load(const float* of_groups) const {
    return _mm512_permutexvar_ps(number, _mm512_maskz_loadu_ps(loaded, of_groups));
  }
};

/// `codes(chunk)(j, place)`: of the tile's column j.
template <int kRows, int kColumns, typename Codes>
TRIREME_INLINE void code_pairs_tile(const InvariantGemmLoop& c, const GroupLanes& lanes, std::int64_t row,
                                    std::int64_t column, Codes&& codes) {
  const Bf16* x = static_cast<const Bf16*>(c.x) + row * c.x_stride;
  const std::int64_t groups = c.k / c.group, chunks = c.k / kPairChunk;
  const float *scales = c.scales + column * groups, *zeros = c.zeros + column * groups;
  const auto ones = reinterpret_cast<__m512bh>(_mm512_set1_epi16(0x3f80));
  __m512 sums[kRows][kColumns];
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kColumns; ++j) sums[i][j] = _mm512_setzero_ps();
  }
  std::int64_t left = lanes.chunks;
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    __m512 parts[kRows][kColumns], of_x[kRows];
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i) {
      of_x[i] = _mm512_setzero_ps();
#pragma GCC unroll 4
      for (int j = 0; j < kColumns; ++j) parts[i][j] = _mm512_setzero_ps();
    }
    const auto at = codes(chunk);
#pragma GCC unroll 4
    for (int place = 0; place < 4; ++place) {
      __m512bh rows[kRows];
#pragma GCC unroll 6
      for (int i = 0; i < kRows; ++i) {
        rows[i] = pairs(x + i * c.x_stride + chunk * kPairChunk + place * 32, All{});
        of_x[i] = _mm512_dpbf16_ps(of_x[i], rows[i], ones);
      }
#pragma GCC unroll 4
      for (int j = 0; j < kColumns; ++j) {
        const __m512bh w = at(j, place);
#pragma GCC unroll 6
        for (int i = 0; i < kRows; ++i) parts[i][j] = _mm512_dpbf16_ps(parts[i][j], rows[i], w);
      }
    }
#pragma GCC unroll 4
    for (int j = 0; j < kColumns; ++j) {
      const __m512 scale = lanes.load(scales + j * groups), zero = lanes.load(zeros + j * groups);
#pragma GCC unroll 6
      for (int i = 0; i < kRows; ++i)
        sums[i][j] = _mm512_fmadd_ps(scale, _mm512_fnmadd_ps(zero, of_x[i], parts[i][j]), sums[i][j]);
    }
    if (--left == 0) {
      left = lanes.chunks;
      scales += lanes.of_chunk, zeros += lanes.of_chunk;
    }
  }
  Bf16* out = static_cast<Bf16*>(c.out) + row * c.out_stride + column;
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kColumns; ++j) put(c, out + i * c.out_stride + j, column + j, sum_of(Floats{sums[i][j]}));
  }
}

void multiply_arranged_pairs(const InvariantGemmLoop& c, std::int64_t begin, std::int64_t end) {
  const auto* weight = static_cast<const std::uint8_t*>(c.weight);
  const auto bytes_of_x = static_cast<std::int64_t>(sizeof(Bf16));
  const GroupLanes lanes(c.group);
  if (c.m <= 2 * kFewRows) {
    by_columns<false>(c, begin, end, bytes_of_x,
                      [&](auto columns, std::int64_t first, std::int64_t last, std::int64_t column) TRIREME_LAMBDA {
                        constexpr int kColumns = decltype(columns)::count;
                        const std::uint8_t* from = weight + column * c.weight_stride;
                        by_rows<false>(first, last, [&](auto rows, std::int64_t row) TRIREME_LAMBDA {
                          code_pairs_tile<decltype(rows)::count, kColumns>(
                              c, lanes, row, column, [&](std::int64_t chunk) TRIREME_LAMBDA {
                                struct Words {
                                  __m512i of[kColumns];
                                  TRIREME_INLINE __m512bh operator()(int j, int place) const {
                                    return codes_at(of[j], place);
                                  }
                                } words;
                                for (int j = 0; j < kColumns; ++j) {
                                  const std::uint8_t* p = from + j * c.weight_stride + chunk * (kPairChunk / 2);
                                  __builtin_prefetch(p + kColumns * c.weight_stride);
                                  words.of[j] = _mm512_loadu_si512(p);
                                }
                                return words;
                              });
                        });
                      });
    return;
  }
  Bf16* const staged = static_cast<Bf16*>(c.scratch(kTileColumns * c.k * static_cast<std::int64_t>(sizeof(Bf16))));
  by_columns<false>(c, begin, end, bytes_of_x,
                    [&](auto columns, std::int64_t first, std::int64_t last, std::int64_t column) TRIREME_LAMBDA {
                      constexpr int kColumns = decltype(columns)::count;
                      for (std::int64_t j = 0; j < kColumns; ++j) {
                        const std::uint8_t* from = weight + (column + j) * c.weight_stride;
                        for (std::int64_t chunk = 0; chunk < c.k / kPairChunk; ++chunk) {
                          const __m512i words = _mm512_loadu_si512(from + chunk * (kPairChunk / 2));
                          Bf16* to = staged + j * c.k + chunk * kPairChunk;
                          for (int place = 0; place < 4; ++place)
                            _mm512_storeu_si512(to + 32 * place, reinterpret_cast<__m512i>(codes_at(words, place)));
                        }
                      }
                      by_rows<false>(first, last, [&](auto rows, std::int64_t row) TRIREME_LAMBDA {
                        code_pairs_tile<decltype(rows)::count, kColumns>(
                            c, lanes, row, column, [&](std::int64_t chunk) TRIREME_LAMBDA {
                              const Bf16* from = staged + chunk * kPairChunk;
                              return [from, stride = c.k](int j, int place)
                                         TRIREME_LAMBDA { return pairs(from + j * stride + 32 * place, All{}); };
                            });
                      });
                    });
}
#endif

template <typename T>
void multiply_plain(const InvariantGemmLoop& c, std::int64_t begin, std::int64_t end) {
  using V = typename LanesOf<T>::Type;
  using A = typename V::Scalar;
  const T* weight = static_cast<const T*>(c.weight);
  const auto in_place = [&](std::int64_t column, std::int64_t) { return weight + column * c.weight_stride; };
  // 16-bit weights are made floats once for many rows, and on the way for few.
  if constexpr (sizeof(T) == sizeof(A)) {
    multiply_columns<T, A, T, true>(c, begin, end, c.weight_stride, nullptr, in_place);
  } else if (c.m <= kFewRows) {
    multiply_columns<T, A, T, true>(c, begin, end, c.weight_stride, nullptr, in_place);
  } else {
    A* const staged = static_cast<A*>(c.scratch(kTileColumns * c.k * static_cast<std::int64_t>(sizeof(A))));
    multiply_columns<A, A, T, false>(c, begin, end, c.k, nullptr, [&](std::int64_t column, std::int64_t count) {
      for (std::int64_t j = 0; j < count; ++j) {
        const T* from = weight + (column + j) * c.weight_stride;
        each<V>(c.k, [&](std::int64_t at, auto some)
                         TRIREME_LAMBDA { V::load(from + at, some).store(staged + j * c.k + at, some); });
      }
      return static_cast<const A*>(staged);
    });
  }
}

template <typename T>
void multiply_int8(const InvariantGemmLoop& c, std::int64_t begin, std::int64_t end) {
  using V = typename LanesOf<T>::Type;
  using A = typename V::Scalar;
  const auto* weight = static_cast<const std::int8_t*>(c.weight);
  // The row's scale is taken after the sum, in one rounding.
  if (c.m <= kFewRows) {
    multiply_columns<std::int8_t, A, T, true>(
        c, begin, end, c.weight_stride, c.scales,
        [&](std::int64_t column, std::int64_t) { return weight + column * c.weight_stride; });
    return;
  }
  A* const staged = static_cast<A*>(c.scratch(kTileColumns * c.k * static_cast<std::int64_t>(sizeof(A))));
  multiply_columns<A, A, T, false>(c, begin, end, c.k, c.scales, [&](std::int64_t column, std::int64_t count) {
    for (std::int64_t j = 0; j < count; ++j) {
      const std::int8_t* from = weight + (column + j) * c.weight_stride;
      each<V>(c.k, [&](std::int64_t at, auto some)
                       TRIREME_LAMBDA { V::load(from + at, some).store(staged + j * c.k + at, some); });
    }
    return static_cast<const A*>(staged);
  });
}

// ---- int4 whose x stands code by code

/// f(Place<n>) for the places of a lane's eight codes.
template <int kAt>
struct Place {
  static constexpr int at = kAt;
};
template <typename F>
TRIREME_INLINE void each_place(F&& f) {
  f(Place<0>{}), f(Place<1>{}), f(Place<2>{}), f(Place<3>{});
  f(Place<4>{}), f(Place<5>{}), f(Place<6>{}), f(Place<7>{});
}

/// f(weight of a place as floats, place, chunk) for a row of the weight, chunk by chunk, in the order of arranged x.
/// What it gives is (code - zero) * scale, rounded twice, as dequantise_weight() has it.
template <int kColumns, typename F>
TRIREME_INLINE void each_code(const InvariantGemmLoop& c, std::int64_t column, F&& f) {
  const auto* weight = static_cast<const std::uint8_t*>(c.weight) + column * c.weight_stride;
  const std::int64_t groups = c.k / c.group;
  const float *scales = c.scales + column * groups, *zeros = c.zeros + column * groups;
  const auto load = [&](NibbleWords(&words)[kColumns], std::int64_t chunk) TRIREME_LAMBDA {
    for (int j = 0; j < kColumns; ++j) {
      const std::uint8_t* from = weight + j * c.weight_stride + chunk * (kChunk / 2);
      __builtin_prefetch(from + kColumns * c.weight_stride);
      words[j] = NibbleWords::load(from);
    }
  };
  if (c.group >= kChunk) {
    const std::int64_t chunks = c.group / kChunk;
    for (std::int64_t group = 0; group < groups; ++group) {
      NibbleWords::Meaning meanings[kColumns];
      for (int j = 0; j < kColumns; ++j)
        meanings[j] = NibbleWords::meaning(scales[j * groups + group], zeros[j * groups + group]);
      for (std::int64_t chunk = group * chunks; chunk < (group + 1) * chunks; ++chunk) {
        NibbleWords words[kColumns];
        load(words, chunk);
        each_place([&](auto place) TRIREME_LAMBDA {
          for (int j = 0; j < kColumns; ++j)
            f(j, words[j].template at<decltype(place)::at>(meanings[j]), chunk * kChunk + place.at * kLanes);
        });
      }
    }
    return;
  }
  const std::int64_t of_chunk = kChunk / c.group;
  for (std::int64_t chunk = 0; chunk < c.k / kChunk; ++chunk) {
    NibbleWords words[kColumns];
    Floats scale[kColumns], zero[kColumns];
    load(words, chunk);
    for (int j = 0; j < kColumns; ++j) {
      scale[j] = by_lane(scales + j * groups + chunk * of_chunk, of_chunk);
      zero[j] = by_lane(zeros + j * groups + chunk * of_chunk, of_chunk);
    }
    each_place([&](auto place) TRIREME_LAMBDA {
      for (int j = 0; j < kColumns; ++j)
        f(j, words[j].template at<decltype(place)::at>(scale[j], zero[j]), chunk * kChunk + place.at * kLanes);
    });
  }
}

template <int kRows, int kColumns, typename T>
TRIREME_INLINE void codes_tile(const InvariantGemmLoop& c, std::int64_t row, std::int64_t column) {
  const float* x = static_cast<const float*>(c.x) + row * c.x_stride;
  Floats sums[kRows][kColumns];
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kColumns; ++j) sums[i][j] = Floats::all(0);
  }
  each_code<kColumns>(c, column, [&](int j, Floats w, std::int64_t at) TRIREME_LAMBDA {
    for (int i = 0; i < kRows; ++i)
      sums[i][j] = multiply_add(Floats::load(x + i * c.x_stride + at, All{}), w, sums[i][j]);
  });
  T* out = static_cast<T*>(c.out) + row * c.out_stride + column;
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kColumns; ++j) put(c, out + i * c.out_stride + j, column + j, sum_of(sums[i][j]));
  }
}

template <typename T>
void multiply_arranged(const InvariantGemmLoop& c, std::int64_t begin, std::int64_t end) {
  if (c.m <= kFewRows) {
    by_columns<false>(c, begin, end, static_cast<std::int64_t>(sizeof(float)),
                      [&](auto columns, std::int64_t first, std::int64_t last, std::int64_t column) TRIREME_LAMBDA {
                        by_rows<false>(first, last, [&](auto rows, std::int64_t row) TRIREME_LAMBDA {
                          codes_tile<decltype(rows)::count, decltype(columns)::count, T>(c, row, column);
                        });
                      });
    return;
  }
  float* const staged = static_cast<float*>(c.scratch(kTileColumns * c.k * static_cast<std::int64_t>(sizeof(float))));
  multiply_columns<float, float, T, false>(c, begin, end, c.k, nullptr, [&](std::int64_t column, std::int64_t count) {
    for (std::int64_t j = 0; j < count; ++j) {
      each_code<1>(c, column + j,
                   [&](int, Floats w, std::int64_t at) TRIREME_LAMBDA { w.store(staged + j * c.k + at, All{}); });
    }
    return static_cast<const float*>(staged);
  });
}

template <typename T>
void multiply_int4(const InvariantGemmLoop& c, std::int64_t begin, std::int64_t end) {
  using A = typename LanesOf<T>::Type::Scalar;
#if defined(__AVX512BF16__)
  if constexpr (__is_same(T, Bf16)) {
    if (c.arranged) return multiply_arranged_pairs(c, begin, end);
  }
#endif
  if constexpr (sizeof(A) == sizeof(float)) {
    if (c.arranged) return multiply_arranged<T>(c, begin, end);
  }
  const auto* weight = static_cast<const std::uint8_t*>(c.weight);
  const std::int64_t groups = c.k / c.group;
  A* const staged = static_cast<A*>(c.scratch(kTileColumns * c.k * static_cast<std::int64_t>(sizeof(A))));
  multiply_columns<A, A, T, false>(c, begin, end, c.k, nullptr, [&](std::int64_t column, std::int64_t count) {
    for (std::int64_t j = 0; j < count; ++j) {
      const std::uint8_t* from = weight + (column + j) * c.weight_stride;
      A* to = staged + j * c.k;
      for (std::int64_t group = 0; group < groups; ++group) {
        const A scale = static_cast<A>(c.scales[(column + j) * groups + group]);
        const A zero = static_cast<A>(c.zeros[(column + j) * groups + group]);
        const std::int64_t at = group * c.group;
        for (std::int64_t i = 0; i < c.group / 2; ++i) {
          const std::uint8_t two = from[at / 2 + i];
          to[at + 2 * i] = (static_cast<A>(two & 15) - zero) * scale;
          to[at + 2 * i + 1] = (static_cast<A>(two >> 4) - zero) * scale;
        }
      }
    }
    return static_cast<const A*>(staged);
  });
}

}  // namespace

extern const InvariantGemmTable TRIREME_INVARIANT_GEMM_TABLE = {
#if defined(__AVX512BF16__)
    {multiply_plain<float>, multiply_plain<double>, multiply_plain_pairs, multiply_plain<F16>},
    {multiply_int8<float>, multiply_int8<double>, multiply_int8_pairs, multiply_int8<F16>},
    {multiply_int4<float>, multiply_int4<double>, multiply_int4<Bf16>, multiply_int4<F16>},
    {false, false, true, false},
    {{kChunk, 8, false}, {0, 0, false}, {kPairChunk, 4, true}, {kChunk, 8, false}}};
#else
    {multiply_plain<float>, multiply_plain<double>, multiply_plain<Bf16>, multiply_plain<F16>},
    {multiply_int8<float>, multiply_int8<double>, multiply_int8<Bf16>, multiply_int8<F16>},
    {multiply_int4<float>, multiply_int4<double>, multiply_int4<Bf16>, multiply_int4<F16>},
    {false, false, false, false},
    {{kChunk, 8, false}, {0, 0, false}, {kChunk, 8, false}, {kChunk, 8, false}}};
#endif

}  // namespace trireme::kernels
