// kernels/cuda_plugin/inference_functions.h -- the functions behind the table of cuda_inference_table.h.
#pragma once

#include "trireme/kernels/cuda_inference_table.h"

namespace trireme::kernels::gpu {

CudaError paged_attention(const CudaPagedAttention&, Element, CudaStream);
CudaError paged_write(const CudaPagedWrite&, Element, CudaStream);
CudaError skinny_gemm(const CudaSkinnyGemm&, CudaStream);
CudaError stream_gemm(const CudaSkinnyGemm&, CudaStream);
CudaError stream_gemm_fits(const CudaSkinnyGemm&);
CudaError argmax(const CudaArgmax&, CudaStream);
CudaError quantise_rows(const CudaQuantiseRows&, Element, CudaStream);

}  // namespace trireme::kernels::gpu
