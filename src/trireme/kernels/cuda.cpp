#include "trireme/kernels/cuda.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "trireme/base/plugin.h"
#include "trireme/kernels/cuda_compress.h"

namespace trireme::kernels {
namespace {

const CudaKernels* load() {
  device::cuda_runtime();  // whether the library runs here at all
  const CudaKernels* table = Plugin::load("cuda").function<CudaKernelsEntry>(kCudaKernelsEntry)();
  device::check_cuda_table("operators'", table->header, kCudaKernelsHeader);
  return table;
}

const CudaCompressKernels* load_compress() {
  device::cuda_runtime();
  const CudaCompressKernels* table = Plugin::load("cuda").function<CudaCompressEntry>(kCudaCompressEntry)();
  device::check_cuda_table("compression's", table->header, kCudaCompressHeader);
  return table;
}

}  // namespace

const CudaKernels& cuda() {
  static const CudaKernels* const table = load();
  return *table;
}

const CudaCompressKernels& cuda_compress() {
  static const CudaCompressKernels* const table = load_compress();
  return *table;
}

at::Tensor cuda_sum_workspace(const at::Tensor& like, Element element, std::int64_t width, int sums) {
  const auto type = element == Element::kDouble ? at::kDouble : at::kFloat;
  return at::empty({sums * kCudaSumBlocks * width}, like.options().dtype(type));
}

}  // namespace trireme::kernels
