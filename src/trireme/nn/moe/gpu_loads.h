// nn/moe/gpu_loads.h -- loads and biases of a layer whose routing stays on a GPU: counts are added up there and read
// once a step, and the bias has a copy there, at one address for good, since CUDA graphs read it.
//
// A layer owns one and lists it under its ExpertLoads; Balance looks it up when it advances, and forgets those whose
// layers are gone.
// Depends on: balance.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "trireme/nn/moe/balance.h"

namespace trireme::nn::moe {

class GpuLoads {
 public:
  /// Listed under `loads`, which is borrowed, until nobody has it any more.
  static std::shared_ptr<GpuLoads> make(ExpertLoads& loads, at::Device device);
  /// Null where the loads have none.
  static std::shared_ptr<GpuLoads> find(const ExpertLoads& loads);
  /// Of all that there are: before a CUDA graph is replayed, whose layers do not ask.
  static void refresh_all();

  /// Choices of a micro-batch, int32 [groups, experts]: waits for nothing.
  void add(const at::Tensor& of_groups);
  /// int64 [experts]: of this step so far.
  at::Tensor& counts() { return counts_; }
  /// The router's bias as it is now; undefined where it has none.
  const at::Tensor& bias();
  /// Sends the bias where it has changed.
  void refresh();

 private:
  GpuLoads(ExpertLoads& loads, at::Device device);

  ExpertLoads& loads_;
  at::Tensor counts_, bias_;
  std::vector<float> sent_;
};

}  // namespace trireme::nn::moe
