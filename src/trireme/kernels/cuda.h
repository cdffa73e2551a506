// kernels/cuda.h -- how the operators reach their bodies for GPUs: their table of libtrireme_cuda, loaded at the first
// call. They launch on the current stream of device/stream.h.
//
// Depends on: base, device, cuda_table.h.
#pragma once

#include <cstdint>

#include "trireme/device/stream.h"
#include "trireme/kernels/cuda_table.h"

namespace at {
class Tensor;
}

namespace trireme::kernels {

/// ConfigError where the library is missing, is another version's, or has no code for the GPU in use.
const CudaKernels& cuda();
using device::check_cuda;
using device::cuda_capturing;
using device::cuda_stream;

/// Room for the partial sums of `sums` rows of `width` numbers, on the device of `like`.
at::Tensor cuda_sum_workspace(const at::Tensor& like, Element element, std::int64_t width, int sums);

}  // namespace trireme::kernels
