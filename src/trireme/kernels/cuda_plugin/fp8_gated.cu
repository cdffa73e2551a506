// The way back through a gate, rounded to 8 bits as it is made.
#include "trireme/kernels/cuda_plugin/activations.cuh"
#include "trireme/kernels/cuda_plugin/fp8_tiles.cuh"
#include "trireme/kernels/cuda_plugin/functions.h"

namespace trireme::kernels::gpu {
namespace {

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

}  // namespace

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

}  // namespace trireme::kernels::gpu
