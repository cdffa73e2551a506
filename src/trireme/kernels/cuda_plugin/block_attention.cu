// Block-sparse attention: sparse/cuda_blocks.h says which kernel takes what.
#include "trireme/kernels/cuda_plugin/attention_plain.cuh"
#include "trireme/kernels/cuda_plugin/block_attention_mma.cuh"
#include "trireme/kernels/sparse/cuda_blocks.h"

namespace trireme::kernels {
namespace gpu {
namespace {

struct ListedBlocks {
  CudaBlocks b;
  __device__ Parts of_query(std::int64_t head, std::int64_t token) const {
    const std::int32_t* at = b.row_begin + head * b.block_rows + token / b.block;
    return {b.columns + at[0], at[1] - at[0], b.block};
  }
  __device__ Parts of_key(std::int64_t head, std::int64_t token) const {
    const std::int32_t* at = b.column_begin + head * b.block_rows + token / b.block;
    return {b.rows + at[0], at[1] - at[0], b.block};
  }
};

CudaError block_forward(const CudaAttention& c, const CudaBlocks& blocks, Element element, CudaStream stream) {
  if (takes_mma(c, blocks, element) && c.batch * c.queries > 0)
    return by_mma_type(c, element, [&](auto type, auto size) {
      return mma_forward_call<decltype(type), decltype(size)::value>(c, blocks, stream);
    });
  return launch_forward(c, ListedBlocks{blocks}, element, stream);
}

CudaError block_backward(const CudaAttention& c, const CudaBlocks& blocks, Element element, CudaStream stream) {
  if (takes_mma(c, blocks, element) && c.batch * c.queries > 0)
    return by_mma_type(c, element, [&](auto type, auto size) {
      return mma_backward_call<decltype(type), decltype(size)::value>(c, blocks, stream);
    });
  return launch_backward(c, ListedBlocks{blocks}, element, stream);
}

constexpr CudaBlockKernels kBlockKernels{
    .header = kCudaBlockHeader, .forward = block_forward, .backward = block_backward};

}  // namespace
}  // namespace gpu

const CudaBlockKernels* trireme_cuda_blocks() { return &gpu::kBlockKernels; }

}  // namespace trireme::kernels
