// kernels/sparse/cuda_blocks.h -- block-sparse attention's bodies for GPUs, a table that libtrireme_cuda offers beside
// its operators' (cuda_table.h), whose rules it follows.
//
// bfloat16 and half with heads of 64 or 128, without dropout, run on tensor cores: bfloat16 on Hopper (compiled for
// sm_90a) over gathered chunks (cuda_plugin/block_attention_wgmma.cuh), the rest over tiles of 64 x 64
// (cuda_plugin/block_attention_mma.cuh); everything else by attention's plain kernel. Depends on: cuda_table.h.
#pragma once

#include "trireme/kernels/cuda_table.h"

namespace trireme::kernels {

/// chunk_tiles.h's lists on the device, from the first head here.
struct CudaChunkTiles {
  const std::int32_t *chunks = nullptr, *begin = nullptr, *entries = nullptr;
  std::int64_t tiles = 0;
};

struct CudaBlocks {
  const std::int32_t *row_begin = nullptr, *columns = nullptr;  // lists by rows of blocks, from the first head here
  const std::int32_t *column_begin = nullptr, *rows = nullptr;  // by columns
  std::int64_t block = 0, block_rows = 0;
  // Gathered chunks of queries and of keys. Null: the device has no wgmma, or some tensor's rows are not in steps of 16
  // bytes.
  CudaChunkTiles query_tiles, key_tiles;
  // Tiles of 64 x 64, (number, bits): bit 4 i + j is the block of queries 16 i and keys 16 j of the tile, as
  // cpu/attention_problem.h has them. Null: some tensor's rows are not in steps of 16 bytes.
  const std::int32_t *row_tile_begin = nullptr, *row_tiles = nullptr, *column_tile_begin = nullptr,
                     *column_tiles = nullptr;
  std::int64_t tile_rows = 0;
};

struct CudaBlockKernels {
  device::CudaTableHeader header;
  bool (*takes_chunks)();  ///< the current device has wgmma, and the library was compiled for it
  CudaError (*forward)(const CudaAttention&, const CudaBlocks&, Element, CudaStream);
  CudaError (*backward)(const CudaAttention&, const CudaBlocks&, Element, CudaStream);
};
inline constexpr device::CudaTableHeader kCudaBlockHeader{2, sizeof(CudaBlockKernels)};

extern "C" {
__attribute__((visibility("default"))) const CudaBlockKernels* trireme_cuda_blocks();
}
using CudaBlocksEntry = decltype(trireme_cuda_blocks);
inline constexpr const char* kCudaBlocksEntry = "trireme_cuda_blocks";

}  // namespace trireme::kernels
