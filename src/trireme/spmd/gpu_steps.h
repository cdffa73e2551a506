// spmd/gpu_steps.h -- steps of a graph on one GPU: tensors there, images channels last, the step a CUDA graph.
//
// The first steps run operator by operator, so that the tensor library chooses its algorithms; then one is captured,
// and all others replay it. What a replay could not repeat is not captured: dropout, whose masks the host draws anew.
// Depends on: executor, device.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "trireme/spmd/executor.h"

namespace trireme::spmd {

/// Parameters and inputs on a device, images and their kernels channels last.
Values on_device(const Values& values, c10::Device device);

class GpuSteps {
 public:
  /// `start`: as on_device() gives it; stays.
  GpuSteps(const pg::Graph& both, Executor& executor, const Values& start, c10::Device device, bool cuda_graph);
  ~GpuSteps();
  GpuSteps(const GpuSteps&) = delete;
  GpuSteps& operator=(const GpuSteps&) = delete;

  /// Waits for the GPU. Gradients are those of this step until the next; the loss is read.
  StepResult step();
  bool is_captured() const { return graph_ != nullptr; }

 private:
  Executor& executor_;
  const Values& start_;
  const c10::Device device_;
  const bool captures_;
  int eager_ = 0;  // steps so far
  void* graph_ = nullptr;
  StepResult captured_;
};

}  // namespace trireme::spmd
