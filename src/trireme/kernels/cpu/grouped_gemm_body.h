// kernels/cpu/grouped_gemm_body.h -- the loops behind grouped_gemm.h, included once per instruction set.
//
// Blocks as in Goto and van de Geijn 2008: rows of a are packed once for a part of the result, columns of b a panel of
// 32 at a time, which stays near while all rows pass. A tile of 12 rows by 32 columns of the result is in registers: 24
// sums, two vectors of b, a number of a spread over a third. What is packed are units of 32 bits along k: a float, or
// with bfloat16 dot products a pair of bfloat16.
//
// The sum of one element: over k in rising order, in blocks of kUnitsAtOnce units whose borders depend on k alone; then
// what was in `out`. So its bits depend on its row of a and its column of b, and not on how many others there are.
// Written for 512-bit registers; other sets have no such loops, and multiply by ATen.
#include "trireme/kernels/cpu/grouped_gemm_table.h"
#include "trireme/kernels/cpu/vec.h"

namespace trireme::kernels {
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__)
namespace {

constexpr std::int64_t kPanelRows = 12, kPanelColumns = 32, kRegisterLanes = 16;
constexpr std::int64_t kUnitsAtOnce = 256;  // of a panel of b: 32 KiB

TRIREME_INLINE __mmask16 first_lanes(std::int64_t count) {
  return static_cast<__mmask16>(count >= 16 ? 0xffffU : count <= 0 ? 0U : (1U << count) - 1U);
}
TRIREME_INLINE __mmask32 first_halves(std::int64_t count) {
  return count >= 32 ? 0xffffffffU : count <= 0 ? 0U : static_cast<__mmask32>((std::uint64_t{1} << count) - 1U);
}

/// Floats as they are.
struct FloatUnits {
  using Element = float;
  static constexpr std::int64_t kElements = 1;  // of a unit
  /// 16 units along k, of which `elements` elements are there.
  TRIREME_INLINE static __m512i along_k(const float* from, std::int64_t elements) {
    return _mm512_maskz_loadu_epi32(first_lanes(elements), from);
  }
  /// One unit of each of 16 neighbours, of which `count` are there; `elements` along k, `stride` apart.
  TRIREME_INLINE static __m512i across(const float* from, std::int64_t, std::int64_t, std::int64_t count) {
    return _mm512_maskz_loadu_epi32(first_lanes(count), from);
  }
  TRIREME_INLINE static __m512 multiply_add(__m512i a, __m512i b, __m512 sum) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), sum);
  }
};

#if defined(__AVX512BF16__)
/// Pairs of bfloat16, for dot products of two.
struct BfloatUnits {
  using Element = Bf16;
  static constexpr std::int64_t kElements = 2;
  TRIREME_INLINE static __m512i along_k(const Bf16* from, std::int64_t elements) {
    return _mm512_maskz_loadu_epi16(first_halves(elements), from);
  }
  TRIREME_INLINE static __m512i across(const Bf16* from, std::int64_t stride, std::int64_t elements,
                                       std::int64_t count) {
    const __mmask16 mask = first_lanes(count);
    const __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from));
    if (elements < 2) return low;
    const __m512i high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from + stride));
    return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
  }
  TRIREME_INLINE static __m512 multiply_add(__m512i a, __m512i b, __m512 sum) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
};
#else
/// bfloat16 made floats while they are packed.
struct BfloatUnits {
  using Element = Bf16;
  static constexpr std::int64_t kElements = 1;
  TRIREME_INLINE static __m512i widened(const Bf16* from, std::int64_t count) {
    return _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first_lanes(count), from)), 16);
  }
  TRIREME_INLINE static __m512i along_k(const Bf16* from, std::int64_t elements) { return widened(from, elements); }
  TRIREME_INLINE static __m512i across(const Bf16* from, std::int64_t, std::int64_t, std::int64_t count) {
    return widened(from, count);
  }
  TRIREME_INLINE static __m512 multiply_add(__m512i a, __m512i b, __m512 sum) {
    return FloatUnits::multiply_add(a, b, sum);
  }
};
#endif

TRIREME_INLINE void transpose_units(__m512i (&x)[16]) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    x[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    x[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    x[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    x[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {  // in x[4 j + i]: units i, 4 + i, 8 + i, 12 + i of rows 4 j to 4 j + 3
    const __m512i low = _mm512_shuffle_i32x4(x[i], x[4 + i], 0x88), high = _mm512_shuffle_i32x4(x[i], x[4 + i], 0xdd),
                  low2 = _mm512_shuffle_i32x4(x[8 + i], x[12 + i], 0x88),
                  high2 = _mm512_shuffle_i32x4(x[8 + i], x[12 + i], 0xdd);
    t[i] = _mm512_shuffle_i32x4(low, low2, 0x88);
    t[8 + i] = _mm512_shuffle_i32x4(low, low2, 0xdd);
    t[4 + i] = _mm512_shuffle_i32x4(high, high2, 0x88);
    t[12 + i] = _mm512_shuffle_i32x4(high, high2, 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) x[i] = t[i];
}

/// Elements [begin, begin + length) along k of `count` lanes, of at most kLanes: to[unit * kLanes + lane]. Lanes that
/// are not there, and what a last unit lacks, become 0. Lanes are `lane_stride` apart, elements `k_stride`.
template <typename Units, std::int64_t kLanes>
TRIREME_INLINE void pack_panel(std::int32_t* to, const typename Units::Element* from, std::int64_t lane_stride,
                               std::int64_t k_stride, std::int64_t count, std::int64_t length) {
  const std::int64_t units = (length + Units::kElements - 1) / Units::kElements;
  for (std::int64_t lane = 0; lane < kLanes; lane += kRegisterLanes) {
    const std::int64_t lanes = count - lane < kRegisterLanes ? count - lane : kRegisterLanes;
    const __mmask16 kept = first_lanes(kLanes - lane);
    if (lane_stride == 1) {
      for (std::int64_t unit = 0; unit < units; ++unit) {
        const std::int64_t at = unit * Units::kElements;
        _mm512_mask_storeu_epi32(to + unit * kLanes + lane, kept,
                                 Units::across(from + at * k_stride + lane, k_stride, length - at, lanes));
      }
      continue;
    }
    for (std::int64_t unit = 0; unit < units; unit += kRegisterLanes) {
      const std::int64_t at = unit * Units::kElements;
      __m512i block[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) {
        block[i] =
            i < lanes ? Units::along_k(from + (lane + i) * lane_stride + at, length - at) : _mm512_setzero_si512();
      }
      transpose_units(block);
      const std::int64_t whole = units - unit < kRegisterLanes ? units - unit : kRegisterLanes;
      std::int32_t* row = to + unit * kLanes + lane;
      for (std::int64_t i = 0; i < whole; ++i) _mm512_mask_storeu_epi32(row + i * kLanes, kept, block[i]);
    }
  }
}

/// Where a tile's sums go: to be continued, or out.
template <typename Out>
struct TileOut {
  float* sums = nullptr;  // [rows, 32] of the panel; null: everything is summed at once
  bool first = true, last = true;
  Out* out = nullptr;
  std::int64_t stride = 0, columns = 0;  // of the panel that are there
  bool accumulate = false;
};

template <typename Out>
TRIREME_INLINE void write_tile(const TileOut<Out>& to, std::int64_t row, int half, __m512 sum) {
  const std::int64_t column = half * kRegisterLanes;
  if (!to.last) return _mm512_storeu_ps(to.sums + row * kPanelColumns + column, sum);
  if (to.columns <= column) return;
  const std::int64_t there = to.columns - column;
  Out* out = to.out + row * to.stride + column;
  if (there >= kRegisterLanes) {
    const Floats total = to.accumulate ? Floats{sum} + Floats::load(out, All{}) : Floats{sum};
    return total.store(out, All{});
  }
  const First some{static_cast<int>(there)};
  const Floats total = to.accumulate ? Floats{sum} + Floats::load(out, some) : Floats{sum};
  total.store(out, some);
}

/// kRows rows of a packed panel of a, whose first is row `row` of `to`.
template <typename Units, int kRows, typename Out>
[[gnu::noinline]] void multiply_tile(const std::int32_t* a, const std::int32_t* b, std::int64_t units, std::int64_t row,
                                     const TileOut<Out>& to) {
  __m512 sums[kRows][2];
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i) {
    sums[i][0] = to.first ? _mm512_setzero_ps() : _mm512_loadu_ps(to.sums + (row + i) * kPanelColumns);
    sums[i][1] = to.first ? _mm512_setzero_ps() : _mm512_loadu_ps(to.sums + (row + i) * kPanelColumns + kRegisterLanes);
  }
  for (std::int64_t unit = 0; unit < units; ++unit) {
    const __m512i low = _mm512_loadu_si512(b + unit * kPanelColumns),
                  high = _mm512_loadu_si512(b + unit * kPanelColumns + kRegisterLanes);
#pragma GCC unroll 12
    for (int i = 0; i < kRows; ++i) {
      const __m512i one = _mm512_set1_epi32(a[unit * kPanelRows + i]);
      sums[i][0] = Units::multiply_add(one, low, sums[i][0]);
      sums[i][1] = Units::multiply_add(one, high, sums[i][1]);
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i) {
    write_tile(to, row + i, 0, sums[i][0]);
    write_tile(to, row + i, 1, sums[i][1]);
  }
}

template <typename Units, typename Out>
TRIREME_INLINE void multiply_rows(const std::int32_t* a, const std::int32_t* b, std::int64_t units, std::int64_t row,
                                  std::int64_t rows, const TileOut<Out>& to) {
  if (rows >= kPanelRows) return multiply_tile<Units, kPanelRows>(a, b, units, row, to);
  if (rows >= 8) {
    multiply_tile<Units, 8>(a, b, units, row, to);
    a += 8, row += 8, rows -= 8;
  }
  if (rows >= 4) {
    multiply_tile<Units, 4>(a, b, units, row, to);
    a += 4, row += 4, rows -= 4;
  }
  if (rows >= 2) {
    multiply_tile<Units, 2>(a, b, units, row, to);
    a += 2, row += 2, rows -= 2;
  }
  if (rows == 1) multiply_tile<Units, 1>(a, b, units, row, to);
}

template <typename Units, typename Out>
void multiply_part(const GroupedGemmLoop& c, const GroupedGemmPart& part) {
  using Element = typename Units::Element;
  const std::int64_t rows = part.row_end - part.row_begin, panels = (rows + kPanelRows - 1) / kPanelRows;
  const std::int64_t units = (c.k + Units::kElements - 1) / Units::kElements;
  const std::int64_t blocks = units <= kUnitsAtOnce ? 1 : (units + kUnitsAtOnce - 1) / kUnitsAtOnce;
  const std::int64_t most = ((units + blocks - 1) / blocks + 1) / 2 * 2;  // units of a block
  const std::int64_t a_bytes = (panels * kPanelRows * units * 4 + 63) / 64 * 64, b_bytes = most * kPanelColumns * 4;
  char* room = static_cast<char*>(c.scratch(a_bytes + b_bytes + (blocks > 1 ? rows * kPanelColumns * 4 : 0)));
  auto* packed_a = reinterpret_cast<std::int32_t*>(room);
  auto* packed_b = reinterpret_cast<std::int32_t*>(room + a_bytes);
  auto* sums = reinterpret_cast<float*>(room + a_bytes + b_bytes);
  const auto* a = static_cast<const Element*>(c.a);
  const auto* b = static_cast<const Element*>(c.b);
  for (std::int64_t panel = 0; panel < panels; ++panel) {
    const std::int64_t row = part.row_begin + panel * kPanelRows;
    const std::int64_t count = part.row_end - row < kPanelRows ? part.row_end - row : kPanelRows;
    pack_panel<Units, kPanelRows>(packed_a + panel * kPanelRows * units, a + row * c.a_row, c.a_row, c.a_k, count, c.k);
  }
  for (std::int64_t column = part.column_begin; column < part.column_end; column += kPanelColumns) {
    const std::int64_t left = part.column_end - column;
    const std::int64_t columns = left < kPanelColumns ? left : kPanelColumns;
    for (std::int64_t block = 0; block < blocks; ++block) {
      const std::int64_t begin = block * most < units ? block * most : units;
      const std::int64_t end = block + 1 == blocks || begin + most > units ? units : begin + most;
      const std::int64_t first = begin * Units::kElements;
      const std::int64_t length = end * Units::kElements < c.k ? (end - begin) * Units::kElements : c.k - first;
      pack_panel<Units, kPanelColumns>(packed_b, b + first * c.b_k + column * c.b_column, c.b_column, c.b_k, columns,
                                       length);
      const TileOut<Out> to{.sums = sums,
                            .first = block == 0,
                            .last = block + 1 == blocks,
                            .out = static_cast<Out*>(c.out) + part.row_begin * c.out_stride + column,
                            .stride = c.out_stride,
                            .columns = columns,
                            .accumulate = c.accumulate};
      for (std::int64_t panel = 0; panel < panels; ++panel) {
        const std::int64_t row = panel * kPanelRows;
        multiply_rows<Units>(packed_a + row * units + begin * kPanelRows, packed_b, end - begin, row,
                             rows - row < kPanelRows ? rows - row : kPanelRows, to);
      }
    }
  }
}

#if defined(__AVX512BF16__)
constexpr bool kBfloatDots = true;
#else
constexpr bool kBfloatDots = false;
#endif

}  // namespace

extern const GroupedGemmTable TRIREME_GROUPED_GEMM_TABLE = {.floats = multiply_part<FloatUnits, float>,
                                                            .bfloats = multiply_part<BfloatUnits, Bf16>,
                                                            .bfloats_to_float = multiply_part<BfloatUnits, float>,
                                                            .bfloat_dots = kBfloatDots};
#else
extern const GroupedGemmTable TRIREME_GROUPED_GEMM_TABLE = {};
#endif

}  // namespace trireme::kernels
