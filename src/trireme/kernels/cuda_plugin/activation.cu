// Activations: a block takes a row, a thread 16 bytes at a time.
#include "trireme/kernels/cuda_plugin/activations.cuh"
#include "trireme/kernels/cuda_plugin/functions.h"

namespace trireme::kernels::gpu {
namespace {

constexpr int kThreads = 128;

/// f(column) for every vector of a row; gridDim.y blocks share it.
template <int kVec, typename F>
__device__ __forceinline__ void each(std::int64_t width, F&& f) {
  const int step = kThreads * kVec * static_cast<int>(gridDim.y);
  const int begin = (static_cast<int>(blockIdx.y) * kThreads + threadIdx.x) * kVec;
#pragma unroll 2
  for (int column = begin; column < width; column += step) f(column);
}

template <typename T, typename F, int kVec>
__global__ void __launch_bounds__(kThreads) forward(const ActivationLoop c) {
  const T* x = row_of<const T>(c.x, blockIdx.x, c.x_stride);
  T* y = row_of<T>(c.out, blockIdx.x, c.out_stride);
  each<kVec>(c.width, [&](int i) {
    Sum<T> v[kVec];
    load<kVec>(x + i, v);
    if (c.bias != nullptr) {
      Sum<T> bias[kVec];
      load<kVec>(static_cast<const T*>(c.bias) + i, bias);
#pragma unroll
      for (int k = 0; k < kVec; ++k) v[k] += bias[k];
    }
#pragma unroll
    for (int k = 0; k < kVec; ++k) v[k] = F::value(v[k]);
    store<kVec>(y + i, v);
  });
}

template <typename T, typename F, int kVec>
__global__ void __launch_bounds__(kThreads) backward(const ActivationLoop c) {
  const T* x = row_of<const T>(c.x, blockIdx.x, c.x_stride);
  const T* dy = row_of<const T>(c.dy, blockIdx.x, c.dy_stride);
  T* dx = row_of<T>(c.out, blockIdx.x, c.out_stride);
  T* y = c.y == nullptr ? nullptr : row_of<T>(c.y, blockIdx.x, c.y_stride);
  each<kVec>(c.width, [&](int i) {
    Sum<T> v[kVec], d[kVec];
    slopes<F, kVec>(c, i, load_pack<kVec>(x + i), load_pack<kVec>(dy + i), d, v);
    store<kVec>(dx + i, d);
    if (y != nullptr) store<kVec>(y + i, v);
  });
}

template <typename T, typename F, int kVec>
__global__ void __launch_bounds__(kThreads) gated_forward_rows(const GatedLoop c) {
  const T* gate = row_of<const T>(c.gate, blockIdx.x, c.gate_stride);
  const T* up = row_of<const T>(c.up, blockIdx.x, c.up_stride);
  T* y = row_of<T>(c.y, blockIdx.x, c.y_stride);
  each<kVec>(c.width, [&](int i) {
    Sum<T> g[kVec], u[kVec];
    load<kVec>(gate + i, g);
    load<kVec>(up + i, u);
#pragma unroll
    for (int k = 0; k < kVec; ++k) g[k] = F::value(g[k]) * u[k];
    store<kVec>(y + i, g);
  });
}

template <typename T, typename F, int kVec>
__global__ void __launch_bounds__(kThreads) gated_backward_rows(const GatedLoop c) {
  const T* gate = row_of<const T>(c.gate, blockIdx.x, c.gate_stride);
  const T* up = row_of<const T>(c.up, blockIdx.x, c.up_stride);
  const T* dy = row_of<const T>(c.dy, blockIdx.x, c.dy_stride);
  T* dgate = row_of<T>(c.dgate, blockIdx.x, c.dgate_stride);
  T* dup = row_of<T>(c.dup, blockIdx.x, c.dup_stride);
  T* y = c.y == nullptr ? nullptr : row_of<T>(c.y, blockIdx.x, c.y_stride);
  each<kVec>(c.width, [&](int i) {
    Sum<T> g[kVec], u[kVec], d[kVec], again[kVec];
    load<kVec>(gate + i, g);
    load<kVec>(up + i, u);
    load<kVec>(dy + i, d);
#pragma unroll
    for (int k = 0; k < kVec; ++k) {
      const Both<Sum<T>> f = F::both(g[k]);
      again[k] = f.value * u[k];
      g[k] = d[k] * u[k] * f.slope;
      u[k] = d[k] * f.value;
    }
    store<kVec>(dgate + i, g);
    store<kVec>(dup + i, u);
    if (y != nullptr) store<kVec>(y + i, again);
  });
}

/// Few long rows are shared among blocks.
dim3 grid_of(std::int64_t rows, std::int64_t width, int vec) {
  const std::int64_t most = divided_up(width, static_cast<std::int64_t>(kThreads) * vec);
  std::int64_t share = rows >= 1024 ? 1 : divided_up(1024, rows);
  if (share > most) share = most;
  return {static_cast<unsigned>(rows), static_cast<unsigned>(share > 65535 ? 65535 : share)};
}

}  // namespace

CudaError activation_forward(const ActivationLoop& c, int kind, Element element, std::int64_t rows, CudaStream stream) {
  if (rows == 0 || c.width == 0) return nullptr;
  return by_type(element, [&](auto type) {
    using T = decltype(type);
    const bool wide = wide_rows(c.x, c.x_stride, c.width, sizeof(T)) &&
                      wide_rows(c.out, c.out_stride, c.width, sizeof(T)) && wide_rows(c.bias, 0, c.width, sizeof(T));
    return by_kind(kind, [&](auto function) {
      using F = decltype(function);
      if (wide) {
        forward<T, F, kWide<T>><<<grid_of(rows, c.width, kWide<T>), kThreads, 0, to_stream(stream)>>>(c);
      } else {
        forward<T, F, 1><<<grid_of(rows, c.width, 1), kThreads, 0, to_stream(stream)>>>(c);
      }
      return launched();
    });
  });
}

CudaError activation_backward(const ActivationLoop& c, const CudaColumnSums& sums, int kind, Element element,
                              std::int64_t rows, CudaStream stream) {
  if (rows == 0 || c.width == 0) return nullptr;
  if (sums.first != nullptr) return activation_backward_sums(c, sums, kind, element, rows, stream);
  return by_type(element, [&](auto type) {
    using T = decltype(type);
    const bool wide = wide_backward(c, sizeof(T));
    return by_kind(kind, [&](auto function) {
      using F = decltype(function);
      if (wide) {
        backward<T, F, kWide<T>><<<grid_of(rows, c.width, kWide<T>), kThreads, 0, to_stream(stream)>>>(c);
      } else {
        backward<T, F, 1><<<grid_of(rows, c.width, 1), kThreads, 0, to_stream(stream)>>>(c);
      }
      return launched();
    });
  });
}

CudaError gated_forward(const GatedLoop& c, int kind, Element element, std::int64_t rows, CudaStream stream) {
  if (rows == 0 || c.width == 0) return nullptr;
  return by_type(element, [&](auto type) {
    using T = decltype(type);
    const bool wide = wide_rows(c.gate, c.gate_stride, c.width, sizeof(T)) &&
                      wide_rows(c.up, c.up_stride, c.width, sizeof(T)) &&
                      wide_rows(c.y, c.y_stride, c.width, sizeof(T));
    return by_kind(kind, [&](auto function) {
      using F = decltype(function);
      if (wide) {
        gated_forward_rows<T, F, kWide<T>><<<grid_of(rows, c.width, kWide<T>), kThreads, 0, to_stream(stream)>>>(c);
      } else {
        gated_forward_rows<T, F, 1><<<grid_of(rows, c.width, 1), kThreads, 0, to_stream(stream)>>>(c);
      }
      return launched();
    });
  });
}

CudaError gated_backward(const GatedLoop& c, int kind, Element element, std::int64_t rows, CudaStream stream) {
  if (rows == 0 || c.width == 0) return nullptr;
  return by_type(element, [&](auto type) {
    using T = decltype(type);
    const auto even = [&](const void* data, std::int64_t stride) {
      return wide_rows(data, stride, c.width, sizeof(T));
    };
    const bool wide = even(c.gate, c.gate_stride) && even(c.up, c.up_stride) && even(c.dy, c.dy_stride) &&
                      even(c.dgate, c.dgate_stride) && even(c.dup, c.dup_stride) && even(c.y, c.y_stride);
    return by_kind(kind, [&](auto function) {
      using F = decltype(function);
      if (wide) {
        gated_backward_rows<T, F, kWide<T>><<<grid_of(rows, c.width, kWide<T>), kThreads, 0, to_stream(stream)>>>(c);
      } else {
        gated_backward_rows<T, F, 1><<<grid_of(rows, c.width, 1), kThreads, 0, to_stream(stream)>>>(c);
      }
      return launched();
    });
  });
}

}  // namespace trireme::kernels::gpu
