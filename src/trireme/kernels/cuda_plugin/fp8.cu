// 8-bit floats with scales: a block takes a tile of 128 x 128 numbers, rounds them, and leaves them as they lie, turned
// round, or both. A scale belongs to the whole tensor, to 128 neighbours along what a product sums over, or to a tile.
#include <cuda_fp8.h>

#include "trireme/kernels/cuda_plugin/common.cuh"
#include "trireme/kernels/cuda_plugin/functions.h"

namespace trireme::kernels::gpu {
namespace {

constexpr int kThreads = 256, kTile = 128, kVec = 8, kAcross = kTile / kVec;  // vectors of a tile's row
constexpr int kTurns = kTile * kAcross / kThreads;                            // vectors of a thread
constexpr int kPitch = kTile + 4;  // bytes of a turned row: neighbours in different banks

__device__ __forceinline__ float largest(const float (&v)[kVec]) {
  float top = 0;
#pragma unroll
  for (int k = 0; k < kVec; ++k) top = fmaxf(top, fabsf(v[k]));
  return top;
}

/// Of non-negative floats the order is that of their bits, so maxima need no order of visits.
__global__ void __launch_bounds__(kThreads) largest_of(const CudaFp8 c, std::int64_t vectors) {
  float top = 0;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < vectors;
       i += static_cast<std::int64_t>(gridDim.x) * kThreads) {
    const std::int64_t row = i * kVec / c.width, column = i * kVec % c.width;
    float v[kVec];
    load_any<kVec>(c.x, c.element, row * c.stride + column, v);
    top = fmaxf(top, largest(v));
  }
  top = warp_max(top);
  if (threadIdx.x % 32 == 0) atomicMax(reinterpret_cast<unsigned*>(c.largest), __float_as_uint(top));
}

__device__ __forceinline__ float most_of(CudaFp8::Format format) {
  return format == CudaFp8::kE4m3 ? 448.0f : 57344.0f;
}
/// What numbers are divided by. All zeros: anything would do.
__device__ __forceinline__ float scale_for(float top, CudaFp8::Format format) {
  return top > 0 ? top / most_of(format) : 1.0f;
}

__device__ __forceinline__ std::uint16_t two_bytes(float a, float b, CudaFp8::Format format) {
  return __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, format == CudaFp8::kE4m3 ? __NV_E4M3 : __NV_E5M2);
}

__global__ void __launch_bounds__(kThreads) round_tiles(const CudaFp8 c) {
  __shared__ unsigned column_top[kTile], tile_top;
  __shared__ __align__(16) std::uint8_t turned[kTile * kPitch];
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.y) * kTile;
  const std::int64_t first_column = static_cast<std::int64_t>(blockIdx.x) * kTile;
  const int lane = threadIdx.x % kAcross, line = threadIdx.x / kAcross;
  const std::int64_t column = first_column + lane * kVec;
  float v[kTurns][kVec], row_top[kTurns];
#pragma unroll
  for (int t = 0; t < kTurns; ++t) {
    const std::int64_t row = first_row + t * (kThreads / kAcross) + line;
    if (row < c.rows && column < c.width) {
      load_any<kVec>(c.x, c.element, row * c.stride + column, v[t]);
    } else {
#pragma unroll
      for (int k = 0; k < kVec; ++k) v[t][k] = 0;
    }
  }
  if (c.scaling != CudaFp8::kWhole) {
    for (int i = threadIdx.x; i < kTile; i += kThreads) column_top[i] = 0;
    if (threadIdx.x == 0) tile_top = 0;
    __syncthreads();
    float own[kVec] = {}, all = 0;
#pragma unroll
    for (int t = 0; t < kTurns; ++t) {
      float top = largest(v[t]);
#pragma unroll
      for (int k = 0; k < kVec; ++k) own[k] = fmaxf(own[k], fabsf(v[t][k]));
#pragma unroll
      for (int step = kAcross / 2; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
      row_top[t] = top;
      all = fmaxf(all, top);
    }
#pragma unroll
    for (int k = 0; k < kVec; ++k) atomicMax(&column_top[lane * kVec + k], __float_as_uint(own[k]));
    atomicMax(&tile_top, __float_as_uint(all));
    __syncthreads();
  }
  const float whole = c.scaling == CudaFp8::kWhole  ? scale_for(*static_cast<const float*>(c.largest), c.format)
                      : c.scaling == CudaFp8::kTile ? scale_for(__uint_as_float(tile_top), c.format)
                                                    : 0.0f;
  if (threadIdx.x == 0 && c.scaling == CudaFp8::kWhole && blockIdx.x == 0 && blockIdx.y == 0) {
    if (c.row_scales != nullptr) *c.row_scales = whole;
    if (c.column_scales != nullptr) *c.column_scales = whole;
  }
  if (threadIdx.x == 0 && c.scaling == CudaFp8::kTile) {
    if (c.row_scales != nullptr) c.row_scales[blockIdx.y * c.row_scale_stride + blockIdx.x] = whole;
    if (c.column_scales != nullptr) c.column_scales[blockIdx.x * c.column_scale_stride + blockIdx.y] = whole;
  }
  if (c.out_rows != nullptr) {
#pragma unroll
    for (int t = 0; t < kTurns; ++t) {
      const std::int64_t row = first_row + t * (kThreads / kAcross) + line;
      const float scale = c.scaling == CudaFp8::kLine ? scale_for(row_top[t], c.format) : whole, share = 1.0f / scale;
      if (row >= c.rows || column >= c.width) continue;
      Pack<std::uint16_t, kVec / 2> pack;
#pragma unroll
      for (int k = 0; k < kVec; k += 2) pack.v[k / 2] = two_bytes(v[t][k] * share, v[t][k + 1] * share, c.format);
      *reinterpret_cast<Pack<std::uint16_t, kVec / 2>*>(c.out_rows + row * c.width + column) = pack;
      if (c.scaling == CudaFp8::kLine && lane == 0) c.row_scales[blockIdx.x * c.row_scale_stride + row] = scale;
    }
  }
  if (c.out_columns == nullptr) return;
#pragma unroll
  for (int k = 0; k < kVec; k += 2) {
    float share[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int at = lane * kVec + k + j;
      const float scale = c.scaling == CudaFp8::kLine ? scale_for(__uint_as_float(column_top[at]), c.format) : whole;
      share[j] = 1.0f / scale;
      if (c.scaling == CudaFp8::kLine && line == 0 && first_column + at < c.width) {
        c.column_scales[blockIdx.y * c.column_scale_stride + first_column + at] = scale;
      }
    }
#pragma unroll
    for (int t = 0; t < kTurns; ++t) {
      const int row = t * (kThreads / kAcross) + line;
      const std::uint16_t two = two_bytes(v[t][k] * share[0], v[t][k + 1] * share[1], c.format);
      turned[(lane * kVec + k) * kPitch + row] = static_cast<std::uint8_t>(two);
      turned[(lane * kVec + k + 1) * kPitch + row] = static_cast<std::uint8_t>(two >> 8);
    }
  }
  __syncthreads();
  // A warp writes a turned row: four bytes a thread.
  const int word = threadIdx.x % 32;
  for (int at = threadIdx.x / 32; at < kTile; at += kThreads / 32) {
    if (first_column + at >= c.width || first_row + word * 4 >= c.rows) continue;
    *reinterpret_cast<std::uint32_t*>(c.out_columns + (first_column + at) * c.rows + first_row + word * 4) =
        *reinterpret_cast<const std::uint32_t*>(turned + at * kPitch + word * 4);
  }
}

}  // namespace

CudaError fp8(const CudaFp8& c, CudaStream stream) {
  if (c.rows == 0 || c.width == 0) return nullptr;
  if (c.width % kVec != 0 || c.rows % 4 != 0 || c.stride % kVec != 0) return "sizes that 8-bit products do not take";
  if (c.scaling == CudaFp8::kWhole) {
    if (cudaMemsetAsync(c.largest, 0, sizeof(float), to_stream(stream)) != cudaSuccess) return launched();
    const std::int64_t vectors = c.rows * c.width / kVec;
    std::int64_t blocks = divided_up(vectors, kThreads * 4);
    if (blocks > 1056) blocks = 1056;
    largest_of<<<static_cast<unsigned>(blocks), kThreads, 0, to_stream(stream)>>>(c, vectors);
    if (CudaError error = launched()) return error;
  }
  const dim3 grid(static_cast<unsigned>(divided_up(c.width, kTile)), static_cast<unsigned>(divided_up(c.rows, kTile)));
  if (grid.y > 65535) return "more than 8 million rows";
  round_tiles<<<grid, kThreads, 0, to_stream(stream)>>>(c);
  return launched();
}

}  // namespace trireme::kernels::gpu
