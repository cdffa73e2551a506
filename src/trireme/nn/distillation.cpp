#include "trireme/nn/distillation.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/sum.h>

#include "trireme/device/tensor_buffer.h"

namespace trireme::nn {
namespace {

/// Of all slices, in the order of ranks: [ranks, ...].
at::Tensor of_all_slices(const at::Tensor& mine, comm::Group* slices) {
  if (slices == nullptr) return mine.unsqueeze(0);
  std::vector<std::int64_t> sizes{slices->size()};
  sizes.insert(sizes.end(), mine.sizes().begin(), mine.sizes().end());
  at::Tensor all = at::empty(sizes, mine.options());
  slices->all_gather(device::to_const_buffer(mine), device::to_buffer(all)).wait();
  return all;
}

}  // namespace

SoftLoss soft_cross_entropy(const at::Tensor& logits, const at::Tensor& teacher, double temperature,
                            comm::Group* slices) {
  const auto type = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor z = logits.to(type) / temperature, t = teacher.to(type) / temperature;
  const at::Tensor both = at::stack({at::logsumexp(z, {1}), at::logsumexp(t, {1})});
  const at::Tensor lse = at::logsumexp(of_all_slices(both, slices), {0});
  const at::Tensor q = at::exp(t - lse.select(0, 1).unsqueeze(1));
  const at::Tensor hits = at::sum(of_all_slices(at::sum(q * z, {1}), slices), {0});
  const at::Tensor p = at::exp(z - lse.select(0, 0).unsqueeze(1));
  // d(T^2 loss) / d logits = T^2 (p - q) / T.
  return {.losses = (lse.select(0, 0) - hits) * (temperature * temperature), .gradients = (p - q) * temperature};
}

}  // namespace trireme::nn
