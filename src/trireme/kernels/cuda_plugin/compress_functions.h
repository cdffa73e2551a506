// kernels/cuda_plugin/compress_functions.h -- the launching functions of cuda_compress_table.h.
#pragma once

#include "trireme/kernels/cuda_compress_table.h"

namespace trireme::kernels::gpu {

using device::CudaError;
using device::CudaStream;

CudaError encode_rows(const CudaRowCode&, Element, CudaStream);
CudaError decode_rows(const CudaRowDecode&, Element, CudaStream);
CudaError encode_scaled(const CudaScaledCode&, Element, CudaStream);
CudaError decode_scaled(const CudaScaledDecode&, Element, CudaStream);
CudaError encode_qsgd(const CudaQsgdCode&, Element, CudaStream);
CudaError decode_qsgd(const CudaQsgdDecode&, Element, CudaStream);
CudaError encode_delta(const CudaDeltaCode&, Element, CudaStream);
CudaError mean_delta(const CudaDeltaMean&, Element, CudaStream);
CudaError decode_delta(const CudaDeltaDecode&, Element, CudaStream);
CudaError top_k(const CudaTopK&, Element, CudaStream);
CudaError scatter_add(const CudaScatter&, Element, CudaStream);
CudaError orthogonalise(const CudaColumns*, std::int64_t count, Element, CudaStream);

}  // namespace trireme::kernels::gpu
