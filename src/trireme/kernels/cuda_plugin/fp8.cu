// 8-bit floats with scales: a block takes a tile of 128 x 128 numbers, rounds them, and leaves them as they lie, turned
// round, or both. A scale belongs to the whole tensor, to 128 neighbours along what a product sums over, or to a tile.
#include <cuda_fp8.h>

#include "trireme/kernels/cuda_plugin/activations.cuh"
#include "trireme/kernels/cuda_plugin/common.cuh"
#include "trireme/kernels/cuda_plugin/functions.h"

namespace trireme::kernels::gpu {
namespace {

constexpr int kThreads = 256, kTile = 128, kVec = 8, kAcross = kTile / kVec;  // vectors of a tile's row
constexpr int kTurns = kTile * kAcross / kThreads;                            // vectors of a thread
static_assert(kTurns == kVec && kThreads / kAcross * kTurns == kTile);

/// Of the magnitudes; of bfloat16s two at a time.
template <typename T>
__device__ __forceinline__ float largest(const Pack<T, kVec>& pack) {
  if constexpr (__is_same(T, Bf16)) {
    __nv_bfloat162 top = __habs2(__halves2bfloat162(pack.v[0], pack.v[1]));
#pragma unroll
    for (int k = 2; k < kVec; k += 2) top = __hmax2(top, __habs2(__halves2bfloat162(pack.v[k], pack.v[k + 1])));
    return fmaxf(__low2float(top), __high2float(top));
  } else {
    float top = 0;
#pragma unroll
    for (int k = 0; k < kVec; ++k) top = fmaxf(top, fabsf(widen(pack.v[k])));
    return top;
  }
}

/// Of non-negative floats the order is that of their bits, so maxima need no order of visits. Most find a larger one
/// there.
__device__ __forceinline__ void raise(void* most, float top) {
  unsigned* word = static_cast<unsigned*>(most);
  if (__float_as_uint(top) > *static_cast<volatile unsigned*>(word)) atomicMax(word, __float_as_uint(top));
}

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

__device__ __forceinline__ std::uint16_t two_bytes(float a, float b, CudaFp8::Format format) {
  return __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, format == CudaFp8::kE4m3 ? __NV_E4M3 : __NV_E5M2);
}

/// Where a tile goes: as it lies, turned round, or both; null: not there.
struct TileOut {
  std::uint8_t *rows, *columns;
  std::int64_t row_stride, column_stride;
  std::int64_t first_row, first_column;  // of the tile
  std::int64_t rows_end, columns_end;    // of the matrix
};

/// A thread has eight neighbouring rows of eight columns, so that both ways out are words of eight bytes: number(t, k).
/// row_share(t)
/// and column_share(column of the tile) are what numbers are multiplied by. Turned, the word of rows 8 w .. 8 w + 7 of
/// column c lies at place w ^ (c / 8) of its 128 bytes: neither writing nor reading meets a bank twice. Called by all
/// threads.
template <typename Number, typename RowShare, typename ColumnShare>
__device__ __forceinline__ void leave_tile(Number&& number, const TileOut& out, CudaFp8::Format format,
                                           std::uint8_t* turned, RowShare&& row_share, ColumnShare&& column_share) {
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
    const float share = column_share(at);
    Word pack;
#pragma unroll
    for (int t = 0; t < kTurns; t += 2) {
      pack.v[t / 2] = two_bytes(number(t, k) * share, number(t + 1, k) * share, format);
    }
    *reinterpret_cast<Word*>(turned + at * kTile + (line ^ lane) * kTurns) = pack;
  }
  __syncthreads();
  // Sixteen threads write a turned row.
  for (int at = line; at < kTile; at += kThreads / kAcross) {
    if (out.first_column + at >= out.columns_end || out.first_row + lane * kTurns >= out.rows_end) continue;
    *reinterpret_cast<Word*>(out.columns + (out.first_column + at) * out.column_stride + out.first_row +
                             lane * kTurns) =
        *reinterpret_cast<const Word*>(turned + at * kTile + (lane ^ (at / kVec)) * kTurns);
  }
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

/// Eight numbers of 16 bits in four registers: kept as single ones they would take eight.
struct Words {
  std::uint32_t w[kVec / 2];
};
template <typename T>
__device__ __forceinline__ Words load_words(const void* data, std::int64_t at) {
  const uint4 four = *reinterpret_cast<const uint4*>(static_cast<const T*>(data) + at);
  return {{four.x, four.y, four.z, four.w}};
}
template <typename T>
__device__ __forceinline__ float low(std::uint32_t word) {
  if constexpr (__is_same(T, Bf16)) return __uint_as_float(word << 16);
  return __half2float(__ushort_as_half(static_cast<unsigned short>(word)));
}
template <typename T>
__device__ __forceinline__ float high(std::uint32_t word) {
  if constexpr (__is_same(T, Bf16)) return __uint_as_float(word & 0xffff0000u);
  return __half2float(__ushort_as_half(static_cast<unsigned short>(word >> 16)));
}

/// Of a tile, the gradients of gate and up and what they gave, made once and left one after the other.
template <typename T, typename F>
__global__ void __launch_bounds__(kThreads, 2) gated_backward_tiles(const CudaFp8Gated c) {
  __shared__ __align__(16) std::uint8_t turned[kTile * kTile];
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.y) * kTile;
  const std::int64_t first_column = static_cast<std::int64_t>(blockIdx.x) * kTile;
  const std::int64_t column = first_column + threadIdx.x % kAcross * kVec,
                     row = first_row + threadIdx.x / kAcross * kTurns;
  const bool inside = row < c.rows && column < c.width;
  // As they come in, and in the same registers as they go out: the gate's gradient, up's, and what they gave.
  Words gate[kTurns] = {}, up[kTurns] = {}, dy[kTurns] = {};
  if (inside) {
#pragma unroll
    for (int t = 0; t < kTurns; ++t) {
      gate[t] = load_words<T>(c.gate, (row + t) * c.gate_stride + column);
      up[t] = load_words<T>(c.up, (row + t) * c.up_stride + column);
      dy[t] = load_words<T>(c.dy, (row + t) * c.dy_stride + column);
    }
  }
  float top = 0, again_top = 0;
#pragma unroll
  for (int t = 0; t < kTurns; ++t) {
#pragma unroll
    for (int k = 0; k < kVec / 2; ++k) {
      const float u0 = low<T>(up[t].w[k]), u1 = high<T>(up[t].w[k]), d0 = low<T>(dy[t].w[k]), d1 = high<T>(dy[t].w[k]);
      const Both<float> f0 = F::both(low<T>(gate[t].w[k])), f1 = F::both(high<T>(gate[t].w[k]));
      gate[t].w[k] = two_words<T>(d0 * u0 * f0.slope, d1 * u1 * f1.slope);
      up[t].w[k] = two_words<T>(d0 * f0.value, d1 * f1.value);
      dy[t].w[k] = two_words<T>(f0.value * u0, f1.value * u1);
      top = fmaxf(fmaxf(top, fmaxf(fabsf(low<T>(gate[t].w[k])), fabsf(high<T>(gate[t].w[k])))),
                  fmaxf(fabsf(low<T>(up[t].w[k])), fabsf(high<T>(up[t].w[k]))));
      again_top = fmaxf(again_top, fmaxf(fabsf(low<T>(dy[t].w[k])), fabsf(high<T>(dy[t].w[k]))));
    }
  }
  const auto note = [&](const CudaFp8Gated::Out& out, float mine) {
    if (out.amax != nullptr) {
      mine = warp_max(mine);
      if (threadIdx.x % 32 == 0) raise(out.amax, mine);
    }
    if (threadIdx.x == 0 && blockIdx.x == 0 && blockIdx.y == 0) {
      if (out.row_scale != nullptr) *out.row_scale = *out.scale;
      if (out.column_scale != nullptr) *out.column_scale = *out.scale;
    }
  };
  note(c.gradient, top);
  note(c.again, again_top);
  const auto leave = [&](const Words(&raw)[kTurns], const CudaFp8Gated::Out& to, std::int64_t width,
                         std::int64_t shift) {
    // The second half lies behind the first: beside it in a row, below it turned round.
    const TileOut out{.rows = to.rows == nullptr ? nullptr : to.rows + shift,
                      .columns = to.columns == nullptr ? nullptr : to.columns + shift * c.rows,
                      .row_stride = width,
                      .column_stride = c.rows,
                      .first_row = first_row,
                      .first_column = first_column,
                      .rows_end = c.rows,
                      .columns_end = c.width};
    const float share = 1.0f / *to.scale;
    const auto same = [share](int) { return share; };
    const auto number = [&](int t, int k) { return k % 2 == 0 ? low<T>(raw[t].w[k / 2]) : high<T>(raw[t].w[k / 2]); };
    leave_tile(number, out, to.format, turned, same, same);
    __syncthreads();  // the turned tile has been read
  };
  leave(gate, c.gradient, 2 * c.width, 0);
  leave(up, c.gradient, 2 * c.width, c.width);
  leave(dy, c.again, c.width, 0);
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

CudaError fp8_gated_backward(const CudaFp8Gated& c, CudaStream stream) {
  if (c.rows == 0 || c.width == 0) return nullptr;
  if (c.width % kVec != 0 || c.rows % kTurns != 0 || c.gate_stride % kVec != 0 || c.up_stride % kVec != 0 ||
      c.dy_stride % kVec != 0) {
    return "sizes that 8-bit products do not take";
  }
  if (c.gradient.scale == nullptr || c.again.scale == nullptr) return "the scales must be known";
  const dim3 grid(static_cast<unsigned>(divided_up(c.width, kTile)), static_cast<unsigned>(divided_up(c.rows, kTile)));
  if (grid.y > 65535) return "more than 8 million rows";
  return by_kind(c.activation, [&](auto function) -> CudaError {
    using F = decltype(function);
    if (c.element == Element::kBfloat16) {
      gated_backward_tiles<Bf16, F><<<grid, kThreads, 0, to_stream(stream)>>>(c);
    } else if (c.element == Element::kHalf) {
      gated_backward_tiles<F16, F><<<grid, kThreads, 0, to_stream(stream)>>>(c);
    } else {
      return "numbers of 16 bits only";
    }
    return launched();
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
