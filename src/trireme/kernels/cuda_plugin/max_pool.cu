// Max pooling of images channels last: which element of its window was the largest takes a byte, and backward each
// pixel asks the windows that it is in, so nothing is added by atomics.
#include "trireme/kernels/cuda_plugin/common.cuh"
#include "trireme/kernels/cuda_plugin/image_functions.h"

namespace trireme::kernels::gpu {
namespace {

constexpr int kThreads = 256;

template <int kVec>
struct alignas(kVec) Winners {
  std::uint8_t v[kVec];
};

/// What a thread works on: a pixel of a sample, and 16 bytes of channels.
struct Pixel {
  std::int64_t sample, row, column, channel;
  bool inside;
  template <int kVec>
  __device__ __forceinline__ static Pixel of(const CudaMaxPool& c, std::int64_t height, std::int64_t width) {
    const std::int64_t vectors = c.channels / kVec;
    const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x, pixel = at / vectors;
    return {pixel / (height * width), pixel / width % height, pixel % width, at % vectors * kVec,
            at < c.samples * height * width * vectors};
  }
};

template <typename T, int kVec>
__global__ void __launch_bounds__(kThreads) forward_kernel(const CudaMaxPool c) {
  const Pixel out = Pixel::of<kVec>(c, c.out_height, c.out_width);
  if (!out.inside) return;
  const std::int64_t top = out.row * c.stride[0] - c.padding[0], left = out.column * c.stride[1] - c.padding[1];
  float best[kVec];
  Winners<kVec> winner{};
  bool any = false;
  for (int i = 0; i < c.kernel[0]; ++i) {
    const std::int64_t row = top + i;
    if (row < 0 || row >= c.height) continue;
    for (int j = 0; j < c.kernel[1]; ++j) {
      const std::int64_t column = left + j;
      if (column < 0 || column >= c.width) continue;
      float x[kVec];
      load<kVec>(
          static_cast<const T*>(c.x) + ((out.sample * c.height + row) * c.width + column) * c.channels + out.channel,
          x);
#pragma unroll
      for (int k = 0; k < kVec; ++k) {
        if (any && !(x[k] > best[k] || x[k] != x[k])) continue;  // NaN wins, as in the tensor library
        best[k] = x[k];
        winner.v[k] = static_cast<std::uint8_t>(i * c.kernel[1] + j);
      }
      any = true;
    }
  }
  const std::int64_t to = ((out.sample * c.out_height + out.row) * c.out_width + out.column) * c.channels + out.channel;
  store<kVec>(static_cast<T*>(c.y) + to, best);
  *reinterpret_cast<Winners<kVec>*>(c.winner + to) = winner;
}

template <typename T, int kVec>
__global__ void __launch_bounds__(kThreads) backward_kernel(const CudaMaxPool c) {
  const Pixel in = Pixel::of<kVec>(c, c.height, c.width);
  if (!in.inside) return;
  float sum[kVec] = {};
  // The last window that this row is in begins at or above it.
  const std::int64_t down = in.row + c.padding[0], right = in.column + c.padding[1];
  const std::int64_t bottom = min(down / c.stride[0], c.out_height - 1),
                     last = min(right / c.stride[1], c.out_width - 1);
  for (std::int64_t row = bottom; row >= 0 && down - row * c.stride[0] < c.kernel[0]; --row) {
    for (std::int64_t column = last; column >= 0 && right - column * c.stride[1] < c.kernel[1]; --column) {
      const std::int64_t at = ((in.sample * c.out_height + row) * c.out_width + column) * c.channels + in.channel;
      const auto mine = (down - row * c.stride[0]) * c.kernel[1] + right - column * c.stride[1];
      const auto winner = *reinterpret_cast<const Winners<kVec>*>(c.winner + at);
      float dy[kVec];
      load<kVec>(static_cast<const T*>(c.x) + at, dy);
#pragma unroll
      for (int k = 0; k < kVec; ++k) sum[k] += winner.v[k] == mine ? dy[k] : 0.F;
    }
  }
  store<kVec>(static_cast<T*>(c.y) + ((in.sample * c.height + in.row) * c.width + in.column) * c.channels + in.channel,
              sum);
}

template <typename Body>
CudaError by_pool_type(const CudaMaxPool& c, const Body& body) {
  if (c.kernel[0] * c.kernel[1] > 256) return "windows of at most 256 elements";
  return by_type(c.element, [&](auto type) -> CudaError {
    using T = decltype(type);
    if constexpr (sizeof(T) == 8) {
      return "images of double have no kernel";
    } else {
      if (c.channels % kWide<T> != 0) return "channels must come in whole steps of 16 bytes";
      return body(type);
    }
  });
}

}  // namespace

CudaError max_pool(const CudaMaxPool& c, CudaStream stream) {
  return by_pool_type(c, [&](auto type) -> CudaError {
    using T = decltype(type);
    const std::int64_t threads = c.samples * c.out_height * c.out_width * (c.channels / kWide<T>);
    if (threads == 0) return nullptr;
    forward_kernel<T, kWide<T>>
        <<<static_cast<unsigned>(divided_up(threads, kThreads)), kThreads, 0, to_stream(stream)>>>(c);
    return launched();
  });
}

CudaError max_pool_backward(const CudaMaxPool& c, CudaStream stream) {
  return by_pool_type(c, [&](auto type) -> CudaError {
    using T = decltype(type);
    const std::int64_t threads = c.samples * c.height * c.width * (c.channels / kWide<T>);
    if (threads == 0) return nullptr;
    backward_kernel<T, kWide<T>>
        <<<static_cast<unsigned>(divided_up(threads, kThreads)), kThreads, 0, to_stream(stream)>>>(c);
    return launched();
  });
}

}  // namespace trireme::kernels::gpu
