// bench/gpu_measure.h -- seconds of a call on the GPU, and what a plain copy moves in one.
#pragma once

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/randn.h>

#include <functional>
#include <optional>
#include <string>

#include "bench/arguments.h"
#include "bench/times.h"
#include "trireme/device/cuda.h"
#include "trireme/device/stream.h"
#include "trireme/kernels/autotune.h"

namespace trireme::bench {

/// The exit status where there is no GPU.
inline std::optional<int> lacks_gpu() {
  std::string why;
  if (device::has_cuda(&why)) return std::nullopt;
  return cannot_run(why);
}

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

/// Seconds of one call as it is in a captured step: several in a row, replayed as one, so that what the host takes to
/// launch a kernel is not counted. `call` must not wait for the GPU.
inline Times graph_times(const std::function<void()>& call, int turns = 9, int calls = 10) {
  for (int i = 0; i < 3; ++i) call();
  device::CudaGraph graph([&] {
    for (int i = 0; i < calls; ++i) call();
  });
  const auto replay = [&] { graph.replay(); };
  kernels::Stopwatch watch;
  watch.us(2, replay);
  Times times;
  for (int turn = 0; turn < turns; ++turn) times.seconds.push_back(watch.us(1, replay) * 1e-6 / calls);
  return times;
}

/// The same of a copy that reads half of so many bytes and writes the other half.
inline double copy_seconds(double bytes) {
  const at::Tensor from = at::empty({static_cast<std::int64_t>(bytes / 4)}, bf16()).zero_();
  at::Tensor to = at::empty_like(from);
  return graph_times([&] { to.copy_(from); }).median();
}

/// Read and written, a second: the best of several turns, since whoever else uses the GPU only makes it slower, and of
/// the ways there are: the copy by itself, in a CUDA graph, and by a kernel that changes signs.
inline double copy_rate() {
  const at::Tensor from = at::randn({std::int64_t{1} << 29}, bf16());
  at::Tensor to = at::empty_like(from);
  const auto copy = [&] { to.copy_(from); };
  double seconds = std::min(graph_times(copy, 9, 3).least(), graph_times([&] { at::neg_out(to, from); }, 9, 3).least());
  for (int turn = 0; turn < 5; ++turn) seconds = std::min(seconds, gpu_seconds(copy, 1, 5));
  return 2.0 * static_cast<double>(from.nbytes()) / seconds;
}

}  // namespace trireme::bench
