// 8-bit floats with scales: a block takes a tile of 128 x 128 numbers, rounds them, and leaves them as they lie, turned
// round, or both. A scale belongs to the whole tensor, to 128 neighbours along what a product sums over, or to a tile.
#include "trireme/kernels/cuda_plugin/activations.cuh"
#include "trireme/kernels/cuda_plugin/fp8_tiles.cuh"
#include "trireme/kernels/cuda_plugin/functions.h"

namespace trireme::kernels::gpu {
namespace {

template <typename T>
__global__ void __launch_bounds__(kThreads) largest_of(const CudaFp8 c, std::int64_t vectors) {
  constexpr int kAtOnce = 4;
  const T* x = static_cast<const T*>(c.x);
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  const auto at = [&](std::int64_t i) {
    const std::int64_t row = i * kVec / c.width;
    return load_pack<kVec>(x + row * c.stride + (i * kVec - row * c.width));
  };
  float top = 0;
  std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (; i + (kAtOnce - 1) * step < vectors; i += kAtOnce * step) {
    Pack<T, kVec> raw[kAtOnce];
#pragma unroll
    for (int t = 0; t < kAtOnce; ++t) raw[t] = at(i + t * step);
#pragma unroll
    for (int t = 0; t < kAtOnce; ++t) top = fmaxf(top, largest(raw[t]));
  }
  for (; i < vectors; i += step) top = fmaxf(top, largest(at(i)));
  top = warp_max(top);
  if (threadIdx.x % 32 == 0) raise(c.largest, top);
}

__device__ __forceinline__ float most_of(CudaFp8::Format format) {
  return format == CudaFp8::kE4m3 ? 448.0f : 57344.0f;
}
/// What numbers are divided by. All zeros: anything would do.
__device__ __forceinline__ float scale_for(float top, CudaFp8::Format format) {
  return top > 0 ? top / most_of(format) : 1.0f;
}

// What is rounded: eight neighbours of a row.

template <typename T>
struct AsItLies {
  __device__ __forceinline__ static Pack<T, kVec> read(const CudaFp8& c, std::int64_t row, std::int64_t column) {
    return load_pack<kVec>(static_cast<const T*>(c.x) + row * c.stride + column);
  }
};

/// f(x) up, to the bit as if it had been written and read again.
template <typename T, typename F>
struct Gated {
  __device__ __forceinline__ static Pack<T, kVec> read(const CudaFp8& c, std::int64_t row, std::int64_t column) {
    Pack<T, kVec> gate = load_pack<kVec>(static_cast<const T*>(c.x) + row * c.stride + column);
    const auto up = load_pack<kVec>(static_cast<const T*>(c.up) + row * c.up_stride + column);
#pragma unroll
    for (int k = 0; k < kVec; ++k) gate.v[k] = narrow<T>(F::value(widen(gate.v[k])) * widen(up.v[k]));
    return gate;
  }
};

/// A thread holds its numbers as they lie, which leaves registers for more threads.
template <typename T, CudaFp8::Scaling kScaling, typename Source = AsItLies<T>>
__global__ void __launch_bounds__(kThreads, sizeof(T) == 2 && kScaling != CudaFp8::kLine ? 3 : 2)
    round_tiles(const CudaFp8 c) {
  constexpr bool kLines = kScaling == CudaFp8::kLine;
  __shared__ unsigned column_top[kLines ? kTile : 1], tile_top;
  __shared__ __align__(16) std::uint8_t turned[kTile * kTile];
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.y) * kTile;
  const std::int64_t first_column = static_cast<std::int64_t>(blockIdx.x) * kTile;
  const int lane = threadIdx.x % kAcross, line = threadIdx.x / kAcross;
  const std::int64_t column = first_column + lane * kVec, row = first_row + line * kTurns;
  const bool inside = row < c.rows && column < c.width;  // sizes are multiples of eight
  Pack<T, kVec> raw[kTurns];
  float row_top[kTurns] = {};
#pragma unroll
  for (int t = 0; t < kTurns; ++t) {
    raw[t] = inside ? Source::read(c, row + t, column) : Pack<T, kVec>{};
  }
  if (kScaling == CudaFp8::kWhole && c.amax != nullptr) {
    float top = 0;
#pragma unroll
    for (int t = 0; t < kTurns; ++t) top = fmaxf(top, largest(raw[t]));
    top = warp_max(top);
    if (threadIdx.x % 32 == 0) raise(c.amax, top);
  }
  if constexpr (kScaling != CudaFp8::kWhole) {
    if constexpr (kLines) {
      for (int i = threadIdx.x; i < kTile; i += kThreads) column_top[i] = 0;
    }
    if (threadIdx.x == 0) tile_top = 0;
    __syncthreads();
    float all = 0;
#pragma unroll
    for (int t = 0; t < kTurns; ++t) {
      float top = largest(raw[t]);
      if constexpr (kLines) {
#pragma unroll
        for (int step = kAcross / 2; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
      }
      row_top[t] = top;
      all = fmaxf(all, top);
    }
    if constexpr (kLines) {
#pragma unroll
      for (int k = 0; k < kVec; ++k) {
        float own = 0;
#pragma unroll
        for (int t = 0; t < kTurns; ++t) own = fmaxf(own, fabsf(widen(raw[t].v[k])));
        own = fmaxf(own, __shfl_xor_sync(0xffffffffu, own, kAcross));  // the warp's other eight rows
        if (threadIdx.x % 32 < kAcross) atomicMax(&column_top[lane * kVec + k], __float_as_uint(own));
      }
    } else {
      all = warp_max(all);
      if (threadIdx.x % 32 == 0) atomicMax(&tile_top, __float_as_uint(all));
    }
    __syncthreads();
  }
  float whole = 0;
  if constexpr (kScaling == CudaFp8::kWhole) {
    whole = c.scale != nullptr ? *c.scale : scale_for(*static_cast<const float*>(c.largest), c.format);
    if (threadIdx.x == 0 && blockIdx.x == 0 && blockIdx.y == 0) {
      if (c.row_scales != nullptr) *c.row_scales = whole;
      if (c.column_scales != nullptr) *c.column_scales = whole;
    }
  } else if constexpr (kScaling == CudaFp8::kTile) {
    whole = scale_for(__uint_as_float(tile_top), c.format);
    if (threadIdx.x == 0) {
      if (c.row_scales != nullptr) c.row_scales[blockIdx.y * c.row_scale_stride + blockIdx.x] = whole;
      if (c.column_scales != nullptr) c.column_scales[blockIdx.x * c.column_scale_stride + blockIdx.y] = whole;
    }
  }
  const TileOut out{.rows = c.out_rows,
                    .columns = c.out_columns,
                    .row_stride = c.width,
                    .column_stride = c.rows,
                    .first_row = first_row,
                    .first_column = first_column,
                    .rows_end = c.rows,
                    .columns_end = c.width};
  const auto row_share = [&](int t) {
    const float scale = kLines ? scale_for(row_top[t], c.format) : whole;
    if (kLines && lane == 0) c.row_scales[blockIdx.x * c.row_scale_stride + row + t] = scale;
    return 1.0f / scale;
  };
  const auto column_share = [&](int at) {
    const float scale = kLines ? scale_for(__uint_as_float(column_top[kLines ? at : 0]), c.format) : whole;
    if (kLines && line == 0 && first_column + at < c.width) {
      c.column_scales[blockIdx.y * c.column_scale_stride + first_column + at] = scale;
    }
    return 1.0f / scale;
  };
  leave_tile([&](int t, int k) { return widen(raw[t].v[k]); }, out, c.format, turned, row_share, column_share);
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
  const dim3 grid(static_cast<unsigned>(divided_up(c.width, kTile)), static_cast<unsigned>(divided_up(c.rows, kTile)));
  if (grid.y > 65535) return "more than 8 million rows";
  if (c.element == Element::kDouble) return "doubles are not rounded to 8 bits";
  if (c.up != nullptr && (c.scale == nullptr || c.up_stride % kVec != 0))
    return "what is made on its way to 8 bits needs a known scale and whole vectors";
  return by_type(c.element, [&](auto type) -> CudaError {
    using T = decltype(type);
    if constexpr (sizeof(T) == 8) {
      return nullptr;
    } else {
      if (c.scaling == CudaFp8::kWhole && c.scale == nullptr) {
        if (cudaMemsetAsync(c.largest, 0, sizeof(float), to_stream(stream)) != cudaSuccess) return launched();
        const std::int64_t vectors = c.rows * c.width / kVec;
        std::int64_t blocks = divided_up(vectors, kThreads * 4);
        if (blocks > 1056) blocks = 1056;
        largest_of<T><<<static_cast<unsigned>(blocks), kThreads, 0, to_stream(stream)>>>(c, vectors);
        if (CudaError error = launched()) return error;
      }
      if (c.up != nullptr) {
        return by_kind(c.activation, [&](auto function) {
          round_tiles<T, CudaFp8::kWhole, Gated<T, decltype(function)>><<<grid, kThreads, 0, to_stream(stream)>>>(c);
          return launched();
        });
      }
      if (c.scaling == CudaFp8::kWhole) {
        round_tiles<T, CudaFp8::kWhole><<<grid, kThreads, 0, to_stream(stream)>>>(c);
      } else if (c.scaling == CudaFp8::kLine) {
        round_tiles<T, CudaFp8::kLine><<<grid, kThreads, 0, to_stream(stream)>>>(c);
      } else {
        round_tiles<T, CudaFp8::kTile><<<grid, kThreads, 0, to_stream(stream)>>>(c);
      }
      return launched();
    }
  });
}

CudaError fp8_advance(float* table, std::int64_t tensors, std::int64_t width, std::int64_t slot, double factor,
                      CudaStream stream) {
  if (tensors == 0) return nullptr;
  advance<<<static_cast<unsigned>(divided_up(tensors, kThreads)), kThreads, 0, to_stream(stream)>>>(
      table, tensors, width, slot, static_cast<float>(factor));
  return launched();
}

}  // namespace trireme::kernels::gpu
