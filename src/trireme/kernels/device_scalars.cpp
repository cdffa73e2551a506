#include "trireme/kernels/device_scalars.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include "trireme/base/error.h"
#include "trireme/kernels/cuda.h"
#include "trireme/kernels/update.h"

namespace trireme::kernels {

DeviceScalars::DeviceScalars(std::span<const Slot> slots, double clip, at::Device device)
    : slots_(slots.size()), clip_(clip) {
  TRIREME_CHECK(device.is_cuda(), "numbers in a GPU's memory need a GPU");
  std::vector<double> factors;
  for (const Slot& slot : slots) factors.push_back(slot.rate);
  for (const Slot& slot : slots) factors.push_back(slot.decay);
  const auto count = static_cast<std::int64_t>(factors.size());
  factors_ = at::from_blob(factors.data(), {count}, at::kDouble).to(device);  // waits: the copy is there
  numbers_ = at::zeros({4}, factors_.options());
  result_ = at::zeros({4}, factors_.options());
  scalars_ =
      at::zeros({static_cast<std::int64_t>(slots_ * sizeof(CudaStepScalars))}, factors_.options().dtype(at::kByte));
}

void DeviceScalars::set(const Step& step) {
  check_cuda(cuda().set_step_scalars(numbers_.mutable_data_ptr<double>(), step.learning_rate, step.gradient_scale,
                                     step.correction1, step.root2, cuda_stream()),
             "a step's numbers");
}

void DeviceScalars::clip_grad_norm(std::span<const at::Tensor* const> gradients, const at::Tensor& loss) {
  TRIREME_CHECK(gradients.size() == slots_, "{} gradients for {} tensors", gradients.size(), slots_);
  const at::Tensor squares = sums_of_squares_on_device(gradients);
  const CudaClipGradNorm call{.squares = squares.const_data_ptr<double>(),
                              .tensors = static_cast<std::int64_t>(slots_),
                              .factors = factors_.const_data_ptr<double>(),
                              .numbers = numbers_.const_data_ptr<double>(),
                              .clip = clip_,
                              .device_scalars = static_cast<CudaStepScalars*>(scalars_.mutable_data_ptr()),
                              .loss = loss.defined() ? loss.const_data_ptr<double>() : nullptr,
                              .result = result_.mutable_data_ptr<double>()};
  check_cuda(cuda().clip_grad_norm(call, cuda_stream()), "a step's norm");
}

const void* DeviceScalars::of(std::size_t slot) const {
  return static_cast<const CudaStepScalars*>(scalars_.const_data_ptr()) + slot;
}

void DeviceScalars::reset() { result_.zero_(); }

}  // namespace trireme::kernels
