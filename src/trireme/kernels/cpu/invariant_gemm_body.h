// kernels/cpu/invariant_gemm_body.h -- the loops behind invariant_gemm.h, included once per instruction set.
//
// The sum of one element of the result: lanes over k in rising order, the end of the row with fewer lanes, then the
// lanes. Every tile does that for each of its elements, so which tile an element falls into changes nothing.
#include "trireme/kernels/cpu/invariant_gemm_table.h"
#include "trireme/kernels/cpu/vec.h"

namespace trireme::kernels {
namespace {

constexpr std::int64_t kTileColumns = 4;                              // of the result: rows of the weight
constexpr std::int64_t kRowsInCacheBytes = 192 * std::int64_t{1024};  // of x, for all columns

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
  const T* bias = static_cast<const T*>(c.bias);
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kColumns; ++j) {
      A sum = sum_of(sums[i][j]);
      if (row_scales) sum *= static_cast<A>(row_scales[j]);
      if constexpr (sizeof(T) == 8) {
        out[i * c.out_stride + j] = bias ? sum + bias[column + j] : sum;
      } else {
        narrow(out[i * c.out_stride + j], bias ? sum + widen(bias[column + j]) : sum);
      }
    }
  }
}

/// Rows [begin, end) of the result, as many at once as registers hold.
template <int kColumns, typename W, typename A, typename T>
TRIREME_INLINE void rows_of(const InvariantGemmLoop& c, std::int64_t begin, std::int64_t end, std::int64_t column,
                            const W* weight, std::int64_t weight_stride, const float* row_scales) {
  constexpr bool kManyRegisters = LanesOf<T>::Type::kLanes == 16;
  std::int64_t row = begin;
  if constexpr (kManyRegisters) {
    for (; row + 6 <= end; row += 6) tile<6, kColumns, W, A, T>(c, row, column, weight, weight_stride, row_scales);
  }
  for (; row + 3 <= end; row += 3) tile<3, kColumns, W, A, T>(c, row, column, weight, weight_stride, row_scales);
  if (row + 2 == end) {
    tile<2, kColumns, W, A, T>(c, row, column, weight, weight_stride, row_scales);
  } else if (row < end) {
    tile<1, kColumns, W, A, T>(c, row, column, weight, weight_stride, row_scales);
  }
}

/// `stage(column, count)` gives float rows of the weight, `row_scale(column)` their scales or null.
template <typename W, typename A, typename T, typename Stage>
TRIREME_INLINE void multiply_columns(const InvariantGemmLoop& c, std::int64_t begin, std::int64_t end,
                                     std::int64_t weight_stride, const float* row_scales, Stage&& stage) {
  const std::int64_t fit = kRowsInCacheBytes / static_cast<std::int64_t>(sizeof(A)) / (c.k > 0 ? c.k : 1);
  const std::int64_t block = fit < 6 ? 6 : fit / 6 * 6;
  for (std::int64_t first = 0; first < c.m; first += block) {
    const std::int64_t last = first + block < c.m ? first + block : c.m;
    std::int64_t column = begin;
    for (; column + kTileColumns <= end; column += kTileColumns) {
      const W* weight = stage(column, kTileColumns);
      rows_of<kTileColumns, W, A, T>(c, first, last, column, weight, weight_stride,
                                     row_scales ? row_scales + column : nullptr);
    }
    for (; column < end; ++column) {
      const W* weight = stage(column, std::int64_t{1});
      rows_of<1, W, A, T>(c, first, last, column, weight, weight_stride, row_scales ? row_scales + column : nullptr);
    }
  }
}

template <typename T>
void multiply_plain(const InvariantGemmLoop& c, std::int64_t begin, std::int64_t end) {
  using V = typename LanesOf<T>::Type;
  using A = typename V::Scalar;
  const T* weight = static_cast<const T*>(c.weight);
  const auto in_place = [&](std::int64_t column, std::int64_t) { return weight + column * c.weight_stride; };
  // 16-bit weights are made floats once for many rows, and on the way for few.
  if constexpr (sizeof(T) == sizeof(A)) {
    multiply_columns<T, A, T>(c, begin, end, c.weight_stride, nullptr, in_place);
  } else if (c.m <= 3) {
    multiply_columns<T, A, T>(c, begin, end, c.weight_stride, nullptr, in_place);
  } else {
    A* const staged = static_cast<A*>(c.scratch(kTileColumns * c.k * static_cast<std::int64_t>(sizeof(A))));
    multiply_columns<A, A, T>(c, begin, end, c.k, nullptr, [&](std::int64_t column, std::int64_t count) {
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
  using A = typename LanesOf<T>::Type::Scalar;
  const auto* weight = static_cast<const std::int8_t*>(c.weight);
  A* const staged = static_cast<A*>(c.scratch(kTileColumns * c.k * static_cast<std::int64_t>(sizeof(A))));
  // The row's scale is taken after the sum, in one rounding.
  multiply_columns<A, A, T>(c, begin, end, c.k, c.scales, [&](std::int64_t column, std::int64_t count) {
    for (std::int64_t j = 0; j < count; ++j) {
      const std::int8_t* from = weight + (column + j) * c.weight_stride;
      A* to = staged + j * c.k;
      for (std::int64_t at = 0; at < c.k; ++at) to[at] = static_cast<A>(from[at]);
    }
    return static_cast<const A*>(staged);
  });
}

template <typename T>
void multiply_int4(const InvariantGemmLoop& c, std::int64_t begin, std::int64_t end) {
  using A = typename LanesOf<T>::Type::Scalar;
  const auto* weight = static_cast<const std::uint8_t*>(c.weight);
  const std::int64_t groups = c.k / c.group;
  A* const staged = static_cast<A*>(c.scratch(kTileColumns * c.k * static_cast<std::int64_t>(sizeof(A))));
  multiply_columns<A, A, T>(c, begin, end, c.k, nullptr, [&](std::int64_t column, std::int64_t count) {
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
    {multiply_plain<float>, multiply_plain<double>, multiply_plain<Bf16>, multiply_plain<F16>},
    {multiply_int8<float>, multiply_int8<double>, multiply_int8<Bf16>, multiply_int8<F16>},
    {multiply_int4<float>, multiply_int4<double>, multiply_int4<Bf16>, multiply_int4<F16>}};

}  // namespace trireme::kernels
