#include "trireme/nn/moe/gpu_loads.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <span>

namespace trireme::nn::moe {

GpuLoads::GpuLoads(std::size_t experts, const at::Tensor& bias, at::Device device)
    : counts_(at::zeros({static_cast<std::int64_t>(experts)}, at::TensorOptions(at::kLong).device(device))) {
  if (!bias.defined()) return;
  bias_ = at::empty(bias.sizes(), bias.options().device(device));
  refresh(bias);
}

void GpuLoads::add(const at::Tensor& of_groups) { counts_.add_(at::sum(of_groups, {0}, /*keepdim=*/false, at::kLong)); }

const at::Tensor& GpuLoads::refresh(const at::Tensor& bias) {
  if (!bias_.defined()) return bias_;
  const std::span<const float> now(bias.const_data_ptr<float>(), static_cast<std::size_t>(bias_.numel()));
  if (std::ranges::equal(now, sent_)) return bias_;
  sent_.assign(now.begin(), now.end());
  bias_.copy_(bias);
  return bias_;
}

}  // namespace trireme::nn::moe
