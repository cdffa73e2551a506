// bench/gpu_measure.h -- seconds of a call on the GPU, and what a plain copy moves in one.
#pragma once

#include <ATen/ops/empty_like.h>
#include <ATen/ops/randn.h>

#include <functional>

#include "bench/times.h"
#include "trireme/device/cuda.h"

namespace trireme::bench {

inline at::Device gpu() { return device::use_cuda(0); }
inline at::TensorOptions bf16() { return at::TensorOptions(at::kBFloat16).device(gpu()); }
inline at::TensorOptions f32() { return at::TensorOptions(at::kFloat).device(gpu()); }

/// Seconds of one call: the median of turns of several calls each, waited for at their end.
inline double gpu_seconds(const std::function<void()>& call, int turns = 7, int calls = 10) {
  for (int i = 0; i < 3; ++i) call();
  Times times;
  for (int turn = 0; turn < turns; ++turn) {
    device::synchronise(gpu());
    const auto begin = Clock::now();
    for (int i = 0; i < calls; ++i) call();
    device::synchronise(gpu());
    times.seconds.push_back(seconds_since(begin) / calls);
  }
  return times.median();
}

/// Read and written, a second.
inline double copy_rate() {
  const at::Tensor from = at::randn({std::int64_t{1} << 29}, bf16());
  at::Tensor to = at::empty_like(from);
  return 2.0 * static_cast<double>(from.nbytes()) / gpu_seconds([&] { to.copy_(from); });
}

}  // namespace trireme::bench
