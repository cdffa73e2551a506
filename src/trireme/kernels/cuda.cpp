#include "trireme/kernels/cuda.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "trireme/base/plugin.h"
#include "trireme/kernels/cuda_compress_table.h"
#include "trireme/kernels/cuda_image_table.h"
#include "trireme/kernels/cuda_inference_table.h"
#include "trireme/kernels/cuda_moe_table.h"
#include "trireme/kernels/sparse/cuda_blocks.h"

namespace trireme::kernels {
namespace {

template <typename Entry>
auto load_table(const char* entry, std::string_view whose, const device::CudaTableHeader& expected) {
  device::cuda_runtime();  // whether the library runs here at all
  const auto* table = Plugin::load("cuda").function<Entry>(entry)();
  device::check_cuda_table(whose, table->header, expected);
  return table;
}

}  // namespace

const CudaKernels& cuda() {
  static const auto* const table = load_table<CudaKernelsEntry>(kCudaKernelsEntry, "operators'", kCudaKernelsHeader);
  return *table;
}

const CudaBlockKernels& cuda_block_kernels() {
  static const auto* const table =
      load_table<CudaBlocksEntry>(kCudaBlocksEntry, "block-sparse attention's", kCudaBlockHeader);
  return *table;
}

const CudaCompressKernels& cuda_compress() {
  static const auto* const table =
      load_table<CudaCompressEntry>(kCudaCompressEntry, "compression's", kCudaCompressHeader);
  return *table;
}

const CudaImageKernels& cuda_images() {
  static const auto* const table = load_table<CudaImagesEntry>(kCudaImagesEntry, "images'", kCudaImageHeader);
  return *table;
}

const CudaInference& cuda_inference() {
  static const auto* const table =
      load_table<CudaInferenceEntry>(kCudaInferenceEntry, "inference's", kCudaInferenceHeader);
  return *table;
}

const CudaMoeKernels& cuda_moe() {
  static const auto* const table = load_table<CudaMoeEntry>(kCudaMoeEntry, "experts'", kCudaMoeHeader);
  return *table;
}

at::Tensor cuda_sum_workspace(const at::Tensor& like, Element element, std::int64_t width, int sums) {
  const auto type = element == Element::kDouble ? at::kDouble : at::kFloat;
  return at::empty({sums * kCudaSumBlocks * width}, like.options().dtype(type));
}

}  // namespace trireme::kernels
