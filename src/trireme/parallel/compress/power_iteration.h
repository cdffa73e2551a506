// parallel/compress/power_iteration.h -- the small linear algebra of PowerSGD.
//
// Depends on: base, kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace trireme::parallel {

/// Columns become orthonormal, from the first to the last (Gram-Schmidt, twice, which is enough for rounding). One that
/// depends on those before it, or is zero, becomes zero: what is left of it would be rounding, blown up. In place;
/// [rows, rank], float or double.
void orthogonalise(at::Tensor& columns);
/// The same of many; on a GPU, in one go.
void orthogonalise(std::span<at::Tensor> matrices);

/// out = matrix x factor, or matrix^T x factor, in one read of the matrix: [rows, columns] contiguous, factors of few
/// columns, `out` contiguous.
void multiply_factor(at::Tensor& out, const at::Tensor& matrix, const at::Tensor& factor, bool transposed);

/// to += other; the sum of squares of what `to` then has, a double where it lies. On a CPU in one pass.
at::Tensor add_squared(at::Tensor& to, const at::Tensor& other);

/// A factor to begin with: [size, rank] normal draws, a function of all arguments.
at::Tensor random_factor(std::uint64_t seed, const std::string& name, int shard, std::int64_t step, std::int64_t size,
                         std::int64_t rank, at::ScalarType type);
/// Which of these have columns of zeros: a power iteration would never leave them. renew_zero_columns() replaces those
/// by `fresh` ones.
std::vector<bool> have_zero_columns(std::span<const at::Tensor> factors);
void renew_zero_columns(at::Tensor& factor, const at::Tensor& fresh);

/// Rank of the approximation of a rows x columns matrix; 0: two factors would be no smaller than half of it.
std::int64_t useful_rank(std::int64_t rank, std::int64_t rows, std::int64_t columns);

}  // namespace trireme::parallel
