// kernels/cpu/few_rows_gemm_body.h -- the loops behind few_rows_gemm.h, included once per instruction set.
//
// The weight's rows are read as they lie, and the next block of them is fetched while one is multiplied; sums wait in
// the cache between blocks. Columns are taken in panels, so that a call that begins where the last one ended finds that
// panel's weights in the cache.
#include "trireme/kernels/cpu/few_rows_gemm_table.h"
#include "trireme/kernels/cpu/vec.h"

namespace trireme::kernels {
namespace {

constexpr std::int64_t kDepth = 16;   // rows of the weight at once
constexpr int kVectors = 2;           // of a row
constexpr std::int64_t kPanel = 512;  // columns

template <int kRows, int kWide, bool kFetch, typename Lanes>
TRIREME_INLINE void add_tile(const FewRowsGemmLoop& c, std::int64_t row, std::int64_t from, std::int64_t depth,
                             std::int64_t column, Lanes lanes) {
  const float* x = c.x + row * c.x_stride + from;
  const float* weight = c.weight + from * c.weight_stride + column;
  float* out = c.out + row * c.out_stride + column;
  Floats sums[kRows][kWide];
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kWide; ++j) sums[i][j] = Floats::load(out + i * c.out_stride + j * Floats::kLanes, lanes);
  }
  for (std::int64_t k = 0; k < depth; ++k) {
    if constexpr (kFetch) {
      for (int j = 0; j < kWide; ++j) __builtin_prefetch(weight + (k + kDepth) * c.weight_stride + j * Floats::kLanes);
    }
    Floats w[kWide];
    for (int j = 0; j < kWide; ++j) w[j] = Floats::load(weight + k * c.weight_stride + j * Floats::kLanes, lanes);
    for (int i = 0; i < kRows; ++i) {
      const Floats factor = Floats::all(x[i * c.x_stride + k]);
      for (int j = 0; j < kWide; ++j) sums[i][j] = multiply_add(factor, w[j], sums[i][j]);
    }
  }
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kWide; ++j) sums[i][j].store(out + i * c.out_stride + j * Floats::kLanes, lanes);
  }
}

template <int kWide, typename Lanes>
TRIREME_INLINE void add_columns(const FewRowsGemmLoop& c, std::int64_t from, std::int64_t depth, std::int64_t column,
                                Lanes lanes) {
  std::int64_t row = 0;
  if constexpr (Floats::kLanes == 16) {
    if (c.m >= 8) {  // the first rows fetch ahead for all; beyond the last row of the weight nothing is read
      add_tile<8, kWide, true>(c, 0, from, depth, column, lanes);
      row = 8;
    }
    for (; row + 8 <= c.m; row += 8) add_tile<8, kWide, false>(c, row, from, depth, column, lanes);
  }
  for (; row + 4 <= c.m; row += 4) add_tile<4, kWide, false>(c, row, from, depth, column, lanes);
  for (; row < c.m; ++row) add_tile<1, kWide, false>(c, row, from, depth, column, lanes);
}

void add_panel(const FewRowsGemmLoop& c, std::int64_t begin, std::int64_t end) {
  for (std::int64_t from = 0; from < c.k; from += kDepth) {
    const std::int64_t depth = c.k - from < kDepth ? c.k - from : kDepth;
    std::int64_t column = begin;
    for (; column + kVectors * Floats::kLanes <= end; column += kVectors * Floats::kLanes)
      add_columns<kVectors>(c, from, depth, column, All{});
    each<Floats>(end - column,
                 [&](std::int64_t at, auto some) TRIREME_LAMBDA { add_columns<1>(c, from, depth, column + at, some); });
  }
}

void add_few_rows(const FewRowsGemmLoop& c, std::int64_t begin, std::int64_t end) {
  const std::int64_t panels = (end - begin + kPanel - 1) / kPanel;
  for (std::int64_t i = 0; i < panels; ++i) {
    const std::int64_t first = begin + (c.reversed ? panels - 1 - i : i) * kPanel;
    add_panel(c, first, first + kPanel < end ? first + kPanel : end);
  }
}

}  // namespace

extern const FewRowsGemmTable TRIREME_FEW_ROWS_GEMM_TABLE = {add_few_rows};

}  // namespace trireme::kernels
