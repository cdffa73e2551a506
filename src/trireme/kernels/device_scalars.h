// kernels/device_scalars.h -- the numbers of an update that change from step to step, in a GPU's memory.
//
// A captured update reads them there, so that one CUDA graph serves all steps and the host waits for none: before each
// step it sets the learning rate and Adam's corrections; the GPU finds the gradients' norm, from it the clipping, and
// whether there is an update at all. A norm or loss that is NaN or Inf means none, for this step and all that follow,
// until reset(): the weights stay those before that step.
// Depends on: base.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

namespace trireme::kernels {

class DeviceScalars {
 public:
  struct Slot {
    double rate = 1;   ///< the learning rate is multiplied by it
    double decay = 0;  ///< times the rate: how much the weight itself shrinks
  };
  /// One slot for each tensor that is updated.
  DeviceScalars(std::span<const Slot> slots, double clip, at::Device device);

  struct Step {
    double learning_rate = 0, gradient_scale = 1;
    double correction1 = 1;  ///< Adam's 1 - beta1^step; 1 for others
    double root2 = 1;        ///< Adam's 1 / sqrt(1 - beta2^step)
  };
  /// For what is launched from now on; not to be captured.
  void set(const Step& step);
  /// Norm, clipping and the tensors' numbers; may be captured. `loss`: double [1] on the GPU.
  void clip_grad_norm(std::span<const at::Tensor* const> gradients, const at::Tensor& loss);
  /// For UpdateTensors::device_scalars.
  const void* of(std::size_t slot) const;

  /// Double [4]: the norm before clipping, the clipping's factor, whether the step is taken, whether one was not.
  const at::Tensor& result() const { return result_; }
  void reset();

 private:
  std::size_t slots_;
  double clip_;
  at::Tensor factors_, numbers_, scalars_, result_;
};

}  // namespace trireme::kernels
