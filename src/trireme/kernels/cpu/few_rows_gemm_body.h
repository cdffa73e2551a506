// kernels/cpu/few_rows_gemm_body.h -- the loops behind few_rows_gemm.h, included once per instruction set.
//
// The weight's rows are read as they lie, so many at once that the processor fetches each ahead, and sums wait in the
// cache between blocks of them.
#include "trireme/kernels/cpu/few_rows_gemm_table.h"
#include "trireme/kernels/cpu/vec.h"

namespace trireme::kernels {
namespace {

constexpr std::int64_t kDepth = 16;  // rows of the weight at once
constexpr int kVectors = 2;          // of a row

template <int kRows, int kWide, typename Lanes>
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
    for (; row + 8 <= c.m; row += 8) add_tile<8, kWide>(c, row, from, depth, column, lanes);
  }
  for (; row + 4 <= c.m; row += 4) add_tile<4, kWide>(c, row, from, depth, column, lanes);
  for (; row < c.m; ++row) add_tile<1, kWide>(c, row, from, depth, column, lanes);
}

void add_few_rows(const FewRowsGemmLoop& c, std::int64_t begin, std::int64_t end) {
  for (std::int64_t from = 0; from < c.k; from += kDepth) {
    const std::int64_t depth = c.k - from < kDepth ? c.k - from : kDepth;
    std::int64_t column = begin;
    for (; column + kVectors * Floats::kLanes <= end; column += kVectors * Floats::kLanes)
      add_columns<kVectors>(c, from, depth, column, All{});
    each<Floats>(end - column,
                 [&](std::int64_t at, auto some) TRIREME_LAMBDA { add_columns<1>(c, from, depth, column + at, some); });
  }
}

}  // namespace

extern const FewRowsGemmTable TRIREME_FEW_ROWS_GEMM_TABLE = {add_few_rows};

}  // namespace trireme::kernels
