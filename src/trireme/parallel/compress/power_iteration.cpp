#include "trireme/parallel/compress/power_iteration.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "trireme/base/random.h"
#include "trireme/kernels/few_rows_gemm.h"
#include "trireme/parallel/compress/gpu_codes.h"
#include "trireme/parallel/compress/term_types.h"

namespace trireme::parallel {
namespace {

template <typename T>
void gram_schmidt(T* values, std::int64_t rows, std::int64_t rank) {
  // Below this part of its length a column is the rounding of others.
  const double dependent = sizeof(T) == 8 ? 1e-12 : 1e-5;
  const auto dot = [&](std::int64_t a, std::int64_t b) {
    double sum = 0;
    for (std::int64_t i = 0; i < rows; ++i)
      sum += static_cast<double>(values[i * rank + a]) * static_cast<double>(values[i * rank + b]);
    return sum;
  };
  for (std::int64_t column = 0; column < rank; ++column) {
    const double length = std::sqrt(dot(column, column));
    for (int pass = 0; pass < 2; ++pass) {
      for (std::int64_t other = 0; other < column; ++other) {
        const double along = dot(column, other);
        for (std::int64_t i = 0; i < rows; ++i)
          values[i * rank + column] -= static_cast<T>(along * static_cast<double>(values[i * rank + other]));
      }
    }
    const double left = std::sqrt(dot(column, column));
    const double factor = left <= dependent * length ? 0 : 1 / left;  // NaN stays NaN
    for (std::int64_t i = 0; i < rows; ++i)
      values[i * rank + column] =
          factor == 0 ? T(0) : static_cast<T>(factor * static_cast<double>(values[i * rank + column]));
  }
}

// This room is compiled without vectors otherwise.
#pragma GCC push_options
#pragma GCC optimize("O3")

template <typename T>
double add_and_square(T* to, const T* other, std::int64_t count) {
  constexpr std::int64_t kLanes = 8;
  double lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      const T value = to[i + lane] + other[i + lane];
      to[i + lane] = value;
      lanes[lane] += static_cast<double>(value) * static_cast<double>(value);
    }
  }
  for (; i < count; ++i) {
    to[i] += other[i];
    lanes[0] += static_cast<double>(to[i]) * static_cast<double>(to[i]);
  }
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

#pragma GCC pop_options

}  // namespace

void multiply_factor(at::Tensor& out, const at::Tensor& matrix, const at::Tensor& factor, bool transposed) {
  // Libraries take a transposed matrix of floats times two to eight columns ten times as long as reading it.
  if (transposed && factor.size(1) > 1) {
    const at::Tensor rows = factor.t().contiguous();
    if (kernels::fits_few_rows_gemm(rows, matrix)) {
      at::Tensor sum = at::zeros({factor.size(1), matrix.size(1)}, out.options());
      kernels::add_few_rows_gemm(sum, rows, matrix);
      out.copy_(sum.t());
      return;
    }
  }
  at::mm_out(out, transposed ? matrix.t() : matrix, factor);
}

at::Tensor add_squared(at::Tensor& to, const at::Tensor& other) {
  if (to.is_cuda()) {
    to.add_(other);
    return at::linalg_vector_norm(to, 2, {}, false, at::kDouble).square_();
  }
  return with_element_type(to, [&](auto type) {
    using T = decltype(type);
    return at::scalar_tensor(add_and_square(data_of<T>(to), data_of<T>(other), to.numel()), at::kDouble);
  });
}

void orthogonalise(at::Tensor& columns) {
  with_element_type(
      columns, [&](auto type) { gram_schmidt(data_of<decltype(type)>(columns), columns.size(0), columns.size(1)); });
}

void orthogonalise(std::span<at::Tensor> matrices) {
  if (!matrices.empty() && matrices.front().is_cuda()) return orthogonalise_on_gpu(matrices);
  for (at::Tensor& matrix : matrices) orthogonalise(matrix);
}

at::Tensor random_factor(std::uint64_t seed, const std::string& name, int shard, std::int64_t step, std::int64_t size,
                         std::int64_t rank, at::ScalarType type) {
  at::Tensor factor = at::empty({size, rank}, type);
  const Random random(seed, fmt::format("powersgd/{}/{}/{}", name, shard, step));
  with_element_type(factor, [&](auto element) {
    using T = decltype(element);
    random.fill_normal(0, std::span<T>(data_of<T>(factor), static_cast<std::size_t>(factor.numel())));
  });
  return factor;
}

std::vector<bool> have_zero_columns(std::span<const at::Tensor> factors) {
  std::vector<at::Tensor> found;
  for (const at::Tensor& factor : factors) found.push_back(factor.eq(0).all(0).any());
  if (found.empty()) return {};
  const at::Tensor here = at::stack(found).cpu();
  const bool* begin = here.const_data_ptr<bool>();
  return std::vector<bool>(begin, begin + here.numel());
}

void renew_zero_columns(at::Tensor& factor, const at::Tensor& fresh) {
  factor.copy_(at::where(factor.eq(0).all(0, /*keepdim=*/true), fresh.to(factor.device()), factor));
}

std::int64_t useful_rank(std::int64_t rank, std::int64_t rows, std::int64_t columns) {
  const std::int64_t most = std::min({rank, rows, columns});
  return 2 * most * (rows + columns) >= rows * columns ? 0 : most;
}

}  // namespace trireme::parallel
