#include "trireme/optim/newton_schulz.h"

#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

namespace trireme::optim {
namespace {

// Jordan's coefficients: the steepest slope at 0 that still keeps the values near 1.
constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
// Of a batch: beyond it a GPU is busy anyway, and copies cost memory.
constexpr std::int64_t kBatchElements = std::int64_t{1} << 28;

/// [batch, m, n] with m <= n, overwritten.
at::Tensor iterate(at::Tensor x, int steps) {
  constexpr double kTiny = 1e-7;  // of a matrix of zeros
  x.div_(at::linalg_vector_norm(x, 2, at::IntArrayRef{-2, -1}, /*keepdim=*/true).add_(kTiny));
  for (int step = 0; step < steps; ++step) {
    const at::Tensor a = at::bmm(x, x.transpose(1, 2));
    x = at::baddbmm(x, at::baddbmm(a, a, a, kB, kC), x, kA, 1);
  }
  return x;
}

}  // namespace

at::Tensor newton_schulz(const at::Tensor& matrices, int steps) {
  at::Tensor out = matrices.clone();
  orthogonalise({&out, 1}, steps, matrices.scalar_type());
  return out;
}

void orthogonalise(std::span<at::Tensor> matrices, int steps, at::ScalarType type) {
  // Views [count, m, n] with m <= n, by their sizes.
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<at::Tensor>> batches;
  for (const at::Tensor& whole : matrices) {
    if (!whole.defined() || whole.numel() == 0) continue;
    at::Tensor stack = whole.view({-1, whole.size(-2), whole.size(-1)});
    if (stack.size(1) > stack.size(2)) stack = stack.transpose(1, 2);
    batches[{stack.size(1), stack.size(2)}].push_back(stack);
  }
  for (const auto& [shape, members] : batches) {
    const std::int64_t most = std::max<std::int64_t>(1, kBatchElements / (shape.first * shape.second));
    for (std::size_t begin = 0; begin < members.size();) {
      std::size_t end = begin;
      std::int64_t count = 0;
      while (end < members.size() && (end == begin || count + members[end].size(0) <= most))
        count += members[end++].size(0);
      at::Tensor batch = at::empty({count, shape.first, shape.second}, members[begin].options().dtype(type));
      const auto each = [&](const auto& visit) {
        std::int64_t at = 0;
        for (std::size_t i = begin; i < end; ++i) {
          visit(members[i], batch.narrow(0, at, members[i].size(0)));
          at += members[i].size(0);
        }
      };
      each([](const at::Tensor& member, const at::Tensor& place) { place.copy_(member); });
      batch = iterate(std::move(batch), steps);
      each([](const at::Tensor& member, const at::Tensor& place) { member.copy_(place); });
      begin = end;
    }
  }
}

}  // namespace trireme::optim
