// kernels/cuda_plugin/fp8_tiles.cuh -- tiles of 128 x 128 numbers on their way to 8 bits, as they lie and transposed.
#pragma once

#include <cuda_fp8.h>

#include <type_traits>

#include "trireme/kernels/cuda_plugin/common.cuh"

namespace trireme::kernels::gpu {
namespace {

constexpr int kThreads = 256, kTile = 128, kVec = 8, kAcross = kTile / kVec;  // vectors of a tile's row
constexpr int kTurns = kTile * kAcross / kThreads;                            // vectors of a thread
static_assert(kTurns == kVec && kThreads / kAcross * kTurns == kTile);

/// The larger magnitudes of two pairs, number by number; what is NaN or Inf is passed over.
template <typename T>
__device__ __forceinline__ std::uint32_t larger_two(std::uint32_t a, std::uint32_t b) {
  using Two = std::conditional_t<__is_same(T, Bf16), __nv_bfloat162, __half2>;
  const Two top = __hmax2(__habs2(*reinterpret_cast<const Two*>(&a)), __habs2(*reinterpret_cast<const Two*>(&b)));
  return *reinterpret_cast<const std::uint32_t*>(&top);
}

/// Number by number the larger magnitudes of some vectors: of 16-bit numbers two at a time.
template <typename T, int kCount>
__device__ __forceinline__ Raw<T, kVec> largest_each(const Raw<T, kVec> (&of)[kCount]) {
  Raw<T, kVec> top{};
#pragma unroll
  for (int t = 0; t < kCount; ++t) {
#pragma unroll
    for (int k = 0; k < top.kWords; ++k) {
      if constexpr (sizeof(T) == 2) {
        top.w[k] = larger_two<T>(top.w[k], of[t].w[k]);
      } else {
        top.w[k] = __float_as_uint(fmaxf(__uint_as_float(top.w[k]), fabsf(of[t][k])));
      }
    }
  }
  return top;
}
/// Of a vector's magnitudes.
template <typename T>
__device__ __forceinline__ float largest(const Raw<T, kVec>& raw) {
  if constexpr (sizeof(T) == 2) {
    Raw<T, 2> top{{raw.w[0]}};
#pragma unroll
    for (int k = 0; k < raw.kWords; ++k) top.w[0] = larger_two<T>(top.w[0], raw.w[k]);
    return fmaxf(top[0], top[1]);
  } else {
    float top = 0;
#pragma unroll
    for (int k = 0; k < kVec; ++k) top = fmaxf(top, fabsf(raw[k]));
    return top;
  }
}

/// Of non-negative floats the order is that of their bits, so maxima need no order of visits. Most find a larger one
/// there.
__device__ __forceinline__ void raise(void* most, float top) {
  unsigned* word = static_cast<unsigned*>(most);
  if (__float_as_uint(top) > *static_cast<volatile unsigned*>(word)) atomicMax(word, __float_as_uint(top));
}

__device__ __forceinline__ std::uint16_t two_bytes(float a, float b, CudaFp8::Format format) {
  return __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, format == CudaFp8::kE4m3 ? __NV_E4M3 : __NV_E5M2);
}

/// Where a tile goes: as it lies, transposed, or both; null: not there.
struct TileOut {
  std::uint8_t *rows, *columns;
  std::int64_t row_stride, column_stride;
  std::int64_t first_row, first_column;  // of the tile
  std::int64_t rows_end, columns_end;    // of the matrix
};

/// A thread has eight neighbouring rows of eight columns, so that both ways out are words of eight bytes: number(t, k).
/// row_share(t) and column_share(k) are what these are multiplied by. Turned, the word of rows 8 w .. 8 w + 7 of
/// column c lies at place w ^ (c / 8) of its 128 bytes: neither writing nor reading meets a bank twice. Called by all
/// threads.
template <typename Number, typename RowShare, typename ColumnShare>
__device__ __forceinline__ void leave_tile(Number&& number, const TileOut& out, CudaFp8::Format format,
                                           std::uint8_t* transposed, RowShare&& row_share, ColumnShare&& column_share) {
  const int lane = threadIdx.x % kAcross, line = threadIdx.x / kAcross;
  const std::int64_t column = out.first_column + lane * kVec, row = out.first_row + line * kTurns;
  using Word = Pack<std::uint16_t, kTurns / 2>;
  if (out.rows != nullptr && row < out.rows_end && column < out.columns_end) {
#pragma unroll
    for (int t = 0; t < kTurns; ++t) {
      const float share = row_share(t);
      Word pack;
#pragma unroll
      for (int k = 0; k < kVec; k += 2) {
        pack.v[k / 2] = two_bytes(number(t, k) * share, number(t, k + 1) * share, format);
      }
      *reinterpret_cast<Word*>(out.rows + (row + t) * out.row_stride + column) = pack;
    }
  }
  if (out.columns == nullptr) return;  // all threads
#pragma unroll
  for (int k = 0; k < kVec; ++k) {
    const int at = lane * kVec + k;
    const float share = column_share(k);
    Word pack;
#pragma unroll
    for (int t = 0; t < kTurns; t += 2) {
      pack.v[t / 2] = two_bytes(number(t, k) * share, number(t + 1, k) * share, format);
    }
    *reinterpret_cast<Word*>(transposed + at * kTile + (line ^ lane) * kTurns) = pack;
  }
  __syncthreads();
  // Sixteen threads write a transposed row.
  for (int at = line; at < kTile; at += kThreads / kAcross) {
    if (out.first_column + at >= out.columns_end || out.first_row + lane * kTurns >= out.rows_end) continue;
    *reinterpret_cast<Word*>(out.columns + (out.first_column + at) * out.column_stride + out.first_row +
                             lane * kTurns) =
        *reinterpret_cast<const Word*>(transposed + at * kTile + (lane ^ (at / kVec)) * kTurns);
  }
}

}  // namespace
}  // namespace trireme::kernels::gpu
