#include "trireme/unsupervised/sparse_coding.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/lt.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/max.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/sign.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "trireme/base/random.h"

namespace trireme::unsupervised {
namespace {

/// 2 B^T (B a - x), row by row.
at::Tensor slope_of(const at::Tensor& activations, const at::Tensor& gram, const at::Tensor& products) {
  return (at::matmul(activations, gram) - products) * 2;
}

double residual_of(const at::Tensor& a, const at::Tensor& slope, double beta) {
  const at::Tensor moving = at::abs(slope + at::sign(a) * beta), resting = at::clamp(at::abs(slope) - beta, 0);
  return at::max(at::where(a.ne(0), moving, resting)).item<double>();
}

}  // namespace

SparseCoding make_sparse_coding(std::int64_t bases, std::int64_t values, double beta, std::uint64_t seed,
                                const at::Tensor& like) {
  at::Tensor normal = at::zeros({bases, values}, at::TensorOptions(at::kDouble));
  Random(seed, "sparse coding/bases")
      .fill_normal(0, std::span(normal.mutable_data_ptr<double>(), static_cast<std::size_t>(normal.numel())));
  normal = normal / at::linalg_vector_norm(normal, 2, {1}, /*keepdim=*/true);
  return {.bases = normal.to(like.options()), .beta = beta};
}

double objective(const SparseCoding& coding, const at::Tensor& examples, const at::Tensor& activations) {
  const at::Tensor error = examples - at::matmul(activations, coding.bases);
  return (error * error).sum(at::kDouble).item<double>() +
         coding.beta * at::abs(activations).sum(at::kDouble).item<double>();
}

double kkt_residual(const SparseCoding& coding, const at::Tensor& examples, const at::Tensor& activations) {
  const at::Tensor error = at::matmul(activations, coding.bases) - examples;
  return residual_of(activations, at::matmul(error, coding.bases.t()) * 2, coding.beta);
}

void descend(at::Tensor& a, const at::Tensor& gram, const at::Tensor& products, double beta) {
  const at::Tensor slope = slope_of(a, gram, products);
  const at::Tensor squares = gram.diagonal().clamp_min(1e-12);
  // Each coordinate's minimiser with the others fixed: soft threshold of a_j - slope_j / (2 g_jj).
  const at::Tensor free = a - slope / (squares * 2);
  const at::Tensor best = at::sign(free) * at::clamp(at::abs(free) - beta / 2 / squares, 0);
  const at::Tensor d = best - a;
  // f'(t) = t q + line + beta * sum of sign(a_j + t d_j) d_j rises, with a jump of 2 beta |d_j| where j crosses zero.
  const at::Tensor q = (at::matmul(d, gram) * d).sum(1, /*keepdim=*/true) * 2;
  const at::Tensor line = (slope * d).sum(1, true);
  const at::Tensor begin = at::where(a.ne(0), at::sign(a) * d, at::abs(d)).sum(1, true) * beta;
  const at::Tensor crosses = (a * d).lt(0);
  const double never = std::numeric_limits<double>::infinity();
  const at::Tensor kinks = at::where(crosses, -a / at::where(crosses, d, at::full_like(d, 1)), at::full_like(d, never));
  const auto [t, order] = at::sort(kinks, 1);
  const at::Tensor jumps = at::where(crosses, at::abs(d), at::full_like(d, 0)).gather(1, order) * (2 * beta);
  const at::Tensor behind = at::cumsum(jumps, 1);  // of all kinks up to and with this one
  const at::Tensor finite = t.lt(never);
  const at::Tensor before = at::where(finite, t, at::full_like(t, 0)) * q + line + begin + behind - jumps;
  // Kinks before the lowest point: those at which f' from the left is still below zero.
  const at::Tensor passed = (before.lt(0) * finite).to(at::kLong).sum(1, true);
  const at::Tensor last = (passed - 1).clamp_min(0);
  const at::Tensor jumped = at::where(passed.ne(0), behind.gather(1, last), at::full_like(line, 0));
  const at::Tensor at_least = at::where(passed.ne(0), t.gather(1, last), at::full_like(line, 0));
  const at::Tensor root = -(line + begin + jumped) / q.clamp_min(1e-300);
  const at::Tensor step = at::where(q.gt(0), at::maximum(root, at_least), at_least);
  const at::Tensor next = a + step * d;
  // A coordinate that the step ends at zero is zero, whatever the rounding.
  a = at::where(crosses * kinks.eq(step), at::full_like(next, 0), next);
}

at::Tensor find_activations(const SparseCoding& coding, const at::Tensor& examples, at::Tensor begin,
                            const DescentOptions& options, std::int64_t* iterations) {
  const at::Tensor gram = at::matmul(coding.bases, coding.bases.t());
  const at::Tensor products = at::matmul(examples, coding.bases.t());
  at::Tensor a =
      begin.defined() ? begin.clone() : at::zeros({examples.size(0), coding.bases.size(0)}, examples.options());
  std::int64_t done = 0;
  while (done < options.most) {
    descend(a, gram, products, coding.beta);
    ++done;
    if (done % options.look == 0 && residual_of(a, slope_of(a, gram, products), coding.beta) <= options.tolerance)
      break;
  }
  if (iterations != nullptr) *iterations = done;
  return a;
}

void improve_bases(SparseCoding& coding, const at::Tensor& examples, const at::Tensor& activations, int steps) {
  const at::Tensor moments = at::matmul(activations.t(), activations), target = at::matmul(activations.t(), examples);
  // The largest row sum bounds the largest eigenvalue, and the gradient is 2 (M B - C).
  const at::Tensor bound = at::max(at::abs(moments).sum(1)).clamp_min(1e-12);
  for (int step = 0; step < steps; ++step) {
    coding.bases = coding.bases - (at::matmul(moments, coding.bases) - target) / bound;
    coding.bases = coding.bases / at::linalg_vector_norm(coding.bases, 2, {1}, true).clamp_min(1);
  }
}

}  // namespace trireme::unsupervised
