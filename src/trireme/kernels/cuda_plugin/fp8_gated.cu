// The way back through a gate, rounded to 8 bits as it is made.
#include "trireme/kernels/cuda_plugin/activations.cuh"
#include "trireme/kernels/cuda_plugin/fp8_tiles.cuh"
#include "trireme/kernels/cuda_plugin/functions.h"

namespace trireme::kernels::gpu {
namespace {

/// Of a tile, the gradients of gate and up and what they gave, made once and left one after the other.
template <typename T, typename F>
__global__ void __launch_bounds__(kThreads, 2) gated_backward_tiles(const CudaFp8Gated c) {
  __shared__ __align__(16) std::uint8_t transposed[kTile * kTile];
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.y) * kTile;
  const std::int64_t first_column = static_cast<std::int64_t>(blockIdx.x) * kTile;
  const std::int64_t column = first_column + threadIdx.x % kAcross * kVec,
                     row = first_row + threadIdx.x / kAcross * kTurns;
  const bool inside = row < c.rows && column < c.width;
  // As they come in, and in the same registers as they go out: the gate's gradient, up's, and what they gave.
  Raw<T, kVec> gate[kTurns] = {}, up[kTurns] = {}, dy[kTurns] = {};
  if (inside) {
#pragma unroll
    for (int t = 0; t < kTurns; ++t) {
      gate[t] = load_raw<kVec>(static_cast<const T*>(c.gate) + (row + t) * c.gate_stride + column);
      up[t] = load_raw<kVec>(static_cast<const T*>(c.up) + (row + t) * c.up_stride + column);
      dy[t] = load_raw<kVec>(static_cast<const T*>(c.dy) + (row + t) * c.dy_stride + column);
    }
  }
  Raw<T, 2> top{}, recomputed_top{};
#pragma unroll
  for (int t = 0; t < kTurns; ++t) {
#pragma unroll
    for (int k = 0; k < kVec / 2; ++k) {
      const float u0 = up[t][2 * k], u1 = up[t][2 * k + 1], d0 = dy[t][2 * k], d1 = dy[t][2 * k + 1];
      const Both<float> f0 = F::both(gate[t][2 * k]), f1 = F::both(gate[t][2 * k + 1]);
      gate[t].w[k] = two_words<T>(d0 * u0 * f0.slope, d1 * u1 * f1.slope);
      up[t].w[k] = two_words<T>(d0 * f0.value, d1 * f1.value);
      dy[t].w[k] = two_words<T>(f0.value * u0, f1.value * u1);
      top.w[0] = larger_two<T>(larger_two<T>(top.w[0], gate[t].w[k]), up[t].w[k]);
      recomputed_top.w[0] = larger_two<T>(recomputed_top.w[0], dy[t].w[k]);
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
  note(c.grad, fmaxf(top[0], top[1]));
  note(c.recomputed, fmaxf(recomputed_top[0], recomputed_top[1]));
  const auto leave = [&](const Raw<T, kVec>(&raw)[kTurns], const CudaFp8Gated::Out& to, std::int64_t width,
                         std::int64_t shift) {
    // The second half lies behind the first: beside it in a row, below it transposed.
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
    const auto number = [&](int t, int k) { return raw[t][k]; };
    leave_tile(number, out, to.format, transposed, same, same);
    __syncthreads();  // the transposed tile has been read
  };
  leave(gate, c.grad, 2 * c.width, 0);
  leave(up, c.grad, 2 * c.width, c.width);
  leave(dy, c.recomputed, c.width, 0);
}

}  // namespace

CudaError fp8_gated_backward(const CudaFp8Gated& c, CudaStream stream) {
  if (c.rows == 0 || c.width == 0) return nullptr;
  if (c.width % kVec != 0 || c.rows % kTurns != 0 || c.gate_stride % kVec != 0 || c.up_stride % kVec != 0 ||
      c.dy_stride % kVec != 0) {
    return "sizes that FP8 GEMMs do not take";
  }
  if (c.grad.scale == nullptr || c.recomputed.scale == nullptr) return "the scales must be known";
  const dim3 grid(static_cast<unsigned>(divided_up(c.width, kTile)), static_cast<unsigned>(divided_up(c.rows, kTile)));
  if (grid.y > 65535) return "more than 8 million rows";
  return by_kind(c.activation, [&](auto function) -> CudaError {
    using F = decltype(function);
    if (c.element == Element::kBfloat16) {
      gated_backward_tiles<Bf16, F><<<grid, kThreads, 0, to_stream(stream)>>>(c);
    } else if (c.element == Element::kHalf) {
      gated_backward_tiles<F16, F><<<grid, kThreads, 0, to_stream(stream)>>>(c);
    } else {
      return "only fp16 and bf16 elements";
    }
    return launched();
  });
}

}  // namespace trireme::kernels::gpu
