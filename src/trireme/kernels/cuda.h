// kernels/cuda.h -- how the operators reach their bodies for GPUs: the table of libtrireme_cuda, loaded at the first
// call.
//
// Depends on: base, cuda_table.h.
#pragma once

#include <cstdint>
#include <string_view>

#include "trireme/kernels/cuda_table.h"

namespace at {
class Tensor;
}

namespace trireme::kernels {

/// ConfigError where the library is missing, is another version's, or has no code for the GPU in use.
const CudaKernels& cuda();
/// Where the tensor library's work of this thread is going.
inline CudaStream cuda_stream() { return cuda().current_stream(); }
/// Whether what this thread starts is being recorded.
inline bool cuda_capturing() { return cuda().capturing(cuda_stream()); }
/// Throws what a launch complained of.
void check_cuda(CudaError error, std::string_view operation);

/// Room for the partial sums of `sums` rows of `width` numbers, on the device of `like`.
at::Tensor cuda_sum_room(const at::Tensor& like, Element element, std::int64_t width, int sums);

}  // namespace trireme::kernels
