// nn/moe/gpu_loads.h -- loads and biases of a layer whose routing stays on a GPU: counts are added up there and read
// once a step, and the bias has a copy there, at one address for good, since CUDA graphs read it.
//
// The layer's ExpertLoads (balance.h) owns it, from the layer's first forward there.
// Depends on: base.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace trireme::nn::moe {

class GpuLoads {
 public:
  /// `bias` float [experts] on the host; undefined: the router has none.
  GpuLoads(std::size_t experts, const at::Tensor& bias, at::Device device);

  /// Choices of a micro-batch, int32 [groups, experts]: waits for nothing.
  void add(const at::Tensor& of_groups);
  /// int64 [experts]: of this step so far.
  at::Tensor& counts() { return counts_; }
  /// Sends the bias where it has changed; the copy here.
  const at::Tensor& refresh(const at::Tensor& bias);

 private:
  at::Tensor counts_, bias_;
  std::vector<float> sent_;
};

}  // namespace trireme::nn::moe
