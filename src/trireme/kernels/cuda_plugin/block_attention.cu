// Block-sparse attention: sparse/cuda_blocks.h says which kernel takes what.
#include "trireme/kernels/cuda_plugin/attention_plain.cuh"
#include "trireme/kernels/cuda_plugin/block_attention_mma.cuh"
#include "trireme/kernels/cuda_plugin/block_attention_wgmma_backward.cuh"
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

/// Gathered keys at a time in the forward pass: what was fastest on an H200 (docs/performance.md).
constexpr int kForwardKeys64 = 64, kForwardKeys128 = 128;

bool takes_chunks() {
  cudaFuncAttributes code{};
  return cudaFuncGetAttributes(&code, wgmma_forward<Bf16, 64, kForwardKeys64>) == cudaSuccess &&
         code.binaryVersion == 90 && code.ptxVersion == 90;
}

/// bfloat16, heads of 64 and 128 without dropout. Scores are compared before they are scaled: the scale must be
/// positive.
bool takes_wgmma(const CudaAttention& c, const CudaBlocks& blocks, Element element) {
  return blocks.query_tiles.entries != nullptr && element == Element::kBfloat16 && is_mma_call(c, element) &&
         c.scale > 0;
}

/// call(head size) of those that are compiled.
template <typename Call>
CudaError by_head_size(const CudaAttention& c, const Call& call) {
  return c.head_dim == 64 ? call(std::integral_constant<int, 64>{}) : call(std::integral_constant<int, 128>{});
}

CudaError block_forward(const CudaAttention& c, const CudaBlocks& blocks, Element element, CudaStream stream) {
  if (takes_wgmma(c, blocks, element) && c.batch * c.queries > 0)
    return by_head_size(c, [&](auto size) {
      constexpr int kKeys = decltype(size)::value == 64 ? kForwardKeys64 : kForwardKeys128;
      return wgmma_forward_call<Bf16, decltype(size)::value, kKeys>(c, blocks.query_tiles, stream);
    });
  if (takes_mma(c, blocks, element) && c.batch * c.queries > 0)
    return by_mma_type(c, element, [&](auto type, auto size) {
      return mma_forward_call<decltype(type), decltype(size)::value>(c, blocks, stream);
    });
  return launch_forward(c, ListedBlocks{blocks}, element, stream);
}

CudaError block_backward(const CudaAttention& c, const CudaBlocks& blocks, Element element, CudaStream stream) {
  if (takes_wgmma(c, blocks, element) && c.batch * c.queries > 0)
    return by_head_size(c, [&](auto size) {
      // Two blocks of threads on a multiprocessor hide each other's waits, where registers allow it.
      constexpr int kBlocks = decltype(size)::value == 64 ? 2 : 1;
      return wgmma_backward_call<Bf16, decltype(size)::value, 64, kBlocks>(c, blocks.query_tiles, blocks.key_tiles,
                                                                           stream);
    });
  if (takes_mma(c, blocks, element) && c.batch * c.queries > 0)
    return by_mma_type(c, element, [&](auto type, auto size) {
      return mma_backward_call<decltype(type), decltype(size)::value>(c, blocks, stream);
    });
  return launch_backward(c, ListedBlocks{blocks}, element, stream);
}

constexpr CudaBlockKernels kBlockKernels{
    .header = kCudaBlockHeader, .takes_chunks = takes_chunks, .forward = block_forward, .backward = block_backward};

}  // namespace
}  // namespace gpu

const CudaBlockKernels* trireme_cuda_blocks() { return &gpu::kBlockKernels; }

}  // namespace trireme::kernels
