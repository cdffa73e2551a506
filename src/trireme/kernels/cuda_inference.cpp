#include "trireme/kernels/cuda_inference.h"

#include "trireme/base/plugin.h"

namespace trireme::kernels {

const CudaInference& cuda_inference() {
  static const CudaInference* const table = [] {
    device::cuda_runtime();  // whether the library runs here at all
    const CudaInference* found = Plugin::load("cuda").function<CudaInferenceEntry>(kCudaInferenceEntry)();
    device::check_cuda_table("inference's", found->header, kCudaInferenceHeader);
    return found;
  }();
  return *table;
}

}  // namespace trireme::kernels
