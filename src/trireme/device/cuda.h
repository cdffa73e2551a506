// device/cuda.h -- GPUs: loading what they need, choosing one, waiting for it.
//
// Nothing here is linked with CUDA. The tensor library's CUDA part (libtorch_cuda) is loaded from beside the part that
// is in use when a GPU is first asked for; without one the process never touches it.
// Depends on: base.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

namespace trireme::device {

/// Loads the CUDA part of the tensor library, once, and makes GPU `index` the calling thread's. ConfigError where there
/// is no such library, no driver or no such GPU, each in its own words.
c10::Device use_cuda(int index);

/// How many GPUs this process sees; the same errors but for the number. No GPU is touched.
int count_gpus();

/// Whether use_cuda(0) would succeed; `why` receives the reason where it would not.
bool has_cuda(std::string* why = nullptr);

/// Waits until the GPU has done all that it was given.
void synchronise(c10::Device device);

}  // namespace trireme::device
