// 8-bit floats with scales: a block takes a tile of 128 x 128 numbers, rounds them, and leaves them as they lie, turned
// round, or both. A scale belongs to the whole tensor, to 128 neighbours along what a product sums over, or to a tile.
#include <cuda_fp8.h>

#include "trireme/kernels/cuda_plugin/common.cuh"
#include "trireme/kernels/cuda_plugin/functions.h"

namespace trireme::kernels::gpu {
namespace {

constexpr int kThreads = 256, kTile = 128, kVec = 8, kAcross = kTile / kVec;  // vectors of a tile's row
constexpr int kTurns = kTile * kAcross / kThreads;                            // vectors of a thread
static_assert(kTurns == kVec && kThreads / kAcross * kTurns == kTile);

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

/// A thread has eight neighbouring rows of eight columns, so that both ways out are words of eight bytes. Turned, the
/// word of rows 8 w .. 8 w + 7 of column c lies at place w ^ (c / 8) of its 128 bytes: neither writing nor reading
/// meets a bank twice.
__global__ void __launch_bounds__(kThreads) round_tiles(const CudaFp8 c) {
  __shared__ unsigned column_top[kTile], tile_top;
  __shared__ __align__(16) std::uint8_t turned[kTile * kTile];
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.y) * kTile;
  const std::int64_t first_column = static_cast<std::int64_t>(blockIdx.x) * kTile;
  const int lane = threadIdx.x % kAcross, line = threadIdx.x / kAcross;
  const std::int64_t column = first_column + lane * kVec, row = first_row + line * kTurns;
  const bool inside = row < c.rows && column < c.width;  // sizes are multiples of eight
  float v[kTurns][kVec], row_top[kTurns];
#pragma unroll
  for (int t = 0; t < kTurns; ++t) {
    if (inside) {
      load_any<kVec>(c.x, c.element, (row + t) * c.stride + column, v[t]);
    } else {
#pragma unroll
      for (int k = 0; k < kVec; ++k) v[t][k] = 0;
    }
  }
  if (c.scaling != CudaFp8::kWhole || c.amax != nullptr) {
    for (int i = threadIdx.x; i < kTile; i += kThreads) column_top[i] = 0;
    if (threadIdx.x == 0) tile_top = 0;
    __syncthreads();
    float own[kVec] = {}, all = 0;
#pragma unroll
    for (int t = 0; t < kTurns; ++t) {
      float top = largest(v[t]);
#pragma unroll
      for (int k = 0; k < kVec; ++k) own[k] = fmaxf(own[k], fabsf(v[t][k]));
      if (c.scaling == CudaFp8::kLine) {
#pragma unroll
        for (int step = kAcross / 2; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
      }
      row_top[t] = top;
      all = fmaxf(all, top);
    }
    if (c.scaling == CudaFp8::kLine) {
#pragma unroll
      for (int k = 0; k < kVec; ++k) atomicMax(&column_top[lane * kVec + k], __float_as_uint(own[k]));
    }
    all = warp_max(all);
    if (threadIdx.x % 32 == 0) atomicMax(&tile_top, __float_as_uint(all));
    __syncthreads();
    if (threadIdx.x == 0 && c.amax != nullptr) atomicMax(reinterpret_cast<unsigned*>(c.amax), tile_top);
  }
  const float whole = c.scale != nullptr             ? *c.scale
                      : c.scaling == CudaFp8::kWhole ? scale_for(*static_cast<const float*>(c.largest), c.format)
                      : c.scaling == CudaFp8::kTile  ? scale_for(__uint_as_float(tile_top), c.format)
                                                     : 0.0f;
  if (threadIdx.x == 0 && c.scaling == CudaFp8::kWhole && blockIdx.x == 0 && blockIdx.y == 0) {
    if (c.row_scales != nullptr) *c.row_scales = whole;
    if (c.column_scales != nullptr) *c.column_scales = whole;
  }
  if (threadIdx.x == 0 && c.scaling == CudaFp8::kTile) {
    if (c.row_scales != nullptr) c.row_scales[blockIdx.y * c.row_scale_stride + blockIdx.x] = whole;
    if (c.column_scales != nullptr) c.column_scales[blockIdx.x * c.column_scale_stride + blockIdx.y] = whole;
  }
  if (c.out_rows != nullptr && inside) {
#pragma unroll
    for (int t = 0; t < kTurns; ++t) {
      const float scale = c.scaling == CudaFp8::kLine ? scale_for(row_top[t], c.format) : whole, share = 1.0f / scale;
      Pack<std::uint16_t, kVec / 2> pack;
#pragma unroll
      for (int k = 0; k < kVec; k += 2) pack.v[k / 2] = two_bytes(v[t][k] * share, v[t][k + 1] * share, c.format);
      *reinterpret_cast<Pack<std::uint16_t, kVec / 2>*>(c.out_rows + (row + t) * c.width + column) = pack;
      if (c.scaling == CudaFp8::kLine && lane == 0) c.row_scales[blockIdx.x * c.row_scale_stride + row + t] = scale;
    }
  }
  if (c.out_columns == nullptr) return;  // all threads
#pragma unroll
  for (int k = 0; k < kVec; ++k) {
    const int at = lane * kVec + k;
    const float scale = c.scaling == CudaFp8::kLine ? scale_for(__uint_as_float(column_top[at]), c.format) : whole;
    const float share = 1.0f / scale;
    if (c.scaling == CudaFp8::kLine && line == 0 && first_column + at < c.width) {
      c.column_scales[blockIdx.y * c.column_scale_stride + first_column + at] = scale;
    }
    Pack<std::uint16_t, kTurns / 2> pack;
#pragma unroll
    for (int t = 0; t < kTurns; t += 2) pack.v[t / 2] = two_bytes(v[t][k] * share, v[t + 1][k] * share, c.format);
    *reinterpret_cast<Pack<std::uint16_t, kTurns / 2>*>(turned + at * kTile + (line ^ lane) * kTurns) = pack;
  }
  __syncthreads();
  // Sixteen threads write a turned row.
  for (int at = line; at < kTile; at += kThreads / kAcross) {
    if (first_column + at >= c.width || first_row + lane * kTurns >= c.rows) continue;
    *reinterpret_cast<Pack<std::uint16_t, kTurns / 2>*>(c.out_columns + (first_column + at) * c.rows + first_row +
                                                        lane * kTurns) =
        *reinterpret_cast<const Pack<std::uint16_t, kTurns / 2>*>(turned + at * kTile + (lane ^ (at / kVec)) * kTurns);
  }
}

/// A row of the table: the largest number of this step, the scale, the format's largest, and those of earlier steps.
__global__ void __launch_bounds__(kThreads)
    advance(float* table, std::int64_t tensors, std::int64_t width, std::int64_t slot, float factor) {
  const std::int64_t tensor = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (tensor >= tensors) return;
  float* row = table + tensor * width;
  if (row[0] > 0 && isfinite(row[0])) row[3 + slot] = row[0];
  row[0] = 0;
  float top = 0;
  for (std::int64_t i = 3; i < width; ++i) top = fmaxf(top, row[i]);
  if (top > 0) row[1] = __fmul_rn(__fdiv_rn(top, row[2]), factor);
}

}  // namespace

CudaError fp8(const CudaFp8& c, CudaStream stream) {
  if (c.rows == 0 || c.width == 0) return nullptr;
  if (c.width % kVec != 0 || c.rows % kTurns != 0 || c.stride % kVec != 0)
    return "sizes that 8-bit products do not take";
  if (c.scale != nullptr && c.scaling != CudaFp8::kWhole) return "a scale of blocks comes from their numbers";
  if (c.scaling == CudaFp8::kWhole && c.scale == nullptr) {
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

CudaError fp8_advance(float* table, std::int64_t tensors, std::int64_t width, std::int64_t slot, double factor,
                      CudaStream stream) {
  if (tensors == 0) return nullptr;
  advance<<<static_cast<unsigned>(divided_up(tensors, kThreads)), kThreads, 0, to_stream(stream)>>>(
      table, tensors, width, slot, static_cast<float>(factor));
  return launched();
}

}  // namespace trireme::kernels::gpu
