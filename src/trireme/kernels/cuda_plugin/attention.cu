// Attention without lists of blocks: attention_plain.cuh.
#include "trireme/kernels/cuda_plugin/attention_plain.cuh"

namespace trireme::kernels::gpu {

CudaError attention_forward(const CudaAttention& c, Element element, CudaStream stream) {
  return launch_forward(c, NoLists{}, element, stream);
}

CudaError attention_backward(const CudaAttention& c, Element element, CudaStream stream) {
  return launch_backward(c, NoLists{}, element, stream);
}

}  // namespace trireme::kernels::gpu
