// The table of libtrireme_cuda for inference.
#include "trireme/kernels/cuda_plugin/inference_functions.h"

namespace trireme::kernels {
namespace {

constexpr CudaInference kInference = {.header = kCudaInferenceHeader,
                                      .paged_attention = gpu::paged_attention,
                                      .paged_write = gpu::paged_write,
                                      .skinny_gemm = gpu::skinny_gemm,
                                      .argmax = gpu::argmax};

}  // namespace

const CudaInference* trireme_cuda_inference() { return &kInference; }

}  // namespace trireme::kernels
