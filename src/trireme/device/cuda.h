// device/cuda.h -- GPUs: loading what they need, choosing one, waiting for it.
//
// Nothing here is linked with CUDA. The tensor library's CUDA part (libtorch_cuda) is loaded from beside the part that
// is in use when a GPU is first asked for, our own (libtrireme_cuda) when its table is; without a GPU the process never
// touches them.
// Depends on: base, cuda_runtime.h.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "trireme/device/cuda_runtime.h"

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

/// The CUDA runtime, for all that is not the tensor library's. ConfigError where libtrireme_cuda is missing, is another
/// version's, or has no code for the GPU in use.
const CudaRuntime& cuda_runtime();
/// Throws what CUDA complained of.
void check_cuda(CudaError error, std::string_view operation);
/// ConfigError where a table of libtrireme_cuda is not the one that this library was compiled with.
void check_cuda_table(std::string_view name, const CudaTableHeader& found, const CudaTableHeader& expected);

}  // namespace trireme::device
