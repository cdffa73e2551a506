// The norms: a row stays in the registers of a warp or a block between its passes.
#include "trireme/kernels/cuda_plugin/norm.cuh"

#include "trireme/kernels/cuda_plugin/functions.h"

namespace trireme::kernels::gpu {
namespace {

/// blockDim is (kThreads, kRows): kThreads threads share a row, of which each keeps kHold vectors.
template <typename T, bool kLayer, int kThreads, int kRows, int kHold>
__global__ void __launch_bounds__(kThreads* kRows)
    forward_held(const NormForwardLoop c, const CudaNormWeights w, std::int64_t rows) {
  using A = Sum<T>;
  constexpr int kVec = kWide<T>;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kRows + threadIdx.y;
  if (row >= rows) return;
  const int vectors = static_cast<int>(c.width / kVec);
  const T* x = row_of<const T>(c.x, row, c.x_stride);
  Raw<T, kVec> held[kHold], other[kHold];
#pragma unroll
  for (int i = 0; i < kHold; ++i) {
    const int at = threadIdx.x + i * kThreads;
    if (at < vectors) held[i] = load_raw<kVec>(x + at * kVec);
  }
  if (c.residual != nullptr) {
    const T* residual = row_of<const T>(c.residual, row, c.residual_stride);
    T* sum = row_of<T>(c.sum, row, c.sum_stride);
#pragma unroll
    for (int i = 0; i < kHold; ++i) {
      const int at = threadIdx.x + i * kThreads;
      if (at < vectors) other[i] = load_raw<kVec>(residual + at * kVec);
    }
#pragma unroll
    for (int i = 0; i < kHold; ++i) {
      const int at = threadIdx.x + i * kThreads;
      if (at >= vectors) continue;
      A both[kVec];
#pragma unroll
      for (int k = 0; k < kVec; ++k) both[k] = held[i][k] + other[i][k];
      held[i] = to_raw<T, kVec>(both);  // rounded as the backward pass will see it
      store_raw(sum + at * kVec, held[i]);
    }
  }
  const A share = A(1) / static_cast<A>(c.width);
  A mean = 0, total = 0;
  if constexpr (kLayer) {
#pragma unroll
    for (int i = 0; i < kHold; ++i) {
      if (threadIdx.x + i * kThreads >= vectors) continue;
#pragma unroll
      for (int k = 0; k < kVec; ++k) total += held[i][k];
    }
    mean = sum_over<kThreads>(total) * share;
  }
  total = 0;
#pragma unroll
  for (int i = 0; i < kHold; ++i) {
    if (threadIdx.x + i * kThreads >= vectors) continue;
#pragma unroll
    for (int k = 0; k < kVec; ++k) {
      const A from_mean = held[i][k] - mean;
      total += from_mean * from_mean;
    }
  }
  const A rstd = A(1) / sqrt(sum_over<kThreads>(total) * share + static_cast<A>(c.epsilon));
  if (threadIdx.x == 0) {
    if (c.mean != nullptr) static_cast<A*>(c.mean)[row] = mean;
    if (c.rstd != nullptr) static_cast<A*>(c.rstd)[row] = rstd;
  }
  T* y = row_of<T>(c.y, row, c.y_stride);
#pragma unroll
  for (int i = 0; i < kHold; ++i) {
    const int at = threadIdx.x + i * kThreads;
    if (at >= vectors) continue;
    A weight[kVec], bias[kVec], out[kVec];
    load_weight<kVec>(w, at * kVec, weight);
    load_bias<kVec>(w, at * kVec, bias);
#pragma unroll
    for (int k = 0; k < kVec; ++k) out[k] = (held[i][k] - mean) * rstd * weight[k] + bias[k];
    store<kVec>(y + at * kVec, out);
  }
}

/// Any width and stride, one number at a time.
template <typename T, bool kLayer>
__global__ void __launch_bounds__(256) forward_any(const NormForwardLoop c, const CudaNormWeights w) {
  using A = Sum<T>;
  const std::int64_t row = blockIdx.x;
  const T* x = row_of<const T>(c.x, row, c.x_stride);
  if (c.residual != nullptr) {
    const T* residual = row_of<const T>(c.residual, row, c.residual_stride);
    T* sum = row_of<T>(c.sum, row, c.sum_stride);
    for (std::int64_t i = threadIdx.x; i < c.width; i += 256) sum[i] = narrow<T>(widen(x[i]) + widen(residual[i]));
    x = sum;  // a thread reads only what it wrote itself
  }
  const A share = A(1) / static_cast<A>(c.width);
  A mean = 0, total = 0;
  if constexpr (kLayer) {
    for (std::int64_t i = threadIdx.x; i < c.width; i += 256) total += widen(x[i]);
    mean = sum_over<256>(total) * share;
  }
  total = 0;
  for (std::int64_t i = threadIdx.x; i < c.width; i += 256) total += (widen(x[i]) - mean) * (widen(x[i]) - mean);
  const A rstd = A(1) / sqrt(sum_over<256>(total) * share + static_cast<A>(c.epsilon));
  if (threadIdx.x == 0) {
    if (c.mean != nullptr) static_cast<A*>(c.mean)[row] = mean;
    if (c.rstd != nullptr) static_cast<A*>(c.rstd)[row] = rstd;
  }
  T* y = row_of<T>(c.y, row, c.y_stride);
  for (std::int64_t i = threadIdx.x; i < c.width; i += 256) {
    A weight[1], bias[1];
    load_weight<1>(w, i, weight);
    load_bias<1>(w, i, bias);
    y[i] = narrow<T>((widen(x[i]) - mean) * rstd * weight[0] + bias[0]);
  }
}

template <typename T, bool kLayer>
CudaError forward(const NormForwardLoop& c, const CudaNormWeights& w, std::int64_t rows, cudaStream_t stream) {
  const int size = sizeof(T);
  const bool wide = wide_rows(c.x, c.x_stride, c.width, size) && wide_rows(c.y, c.y_stride, c.width, size) &&
                    wide_rows(c.residual, c.residual_stride, c.width, size) &&
                    wide_rows(c.residual == nullptr ? nullptr : c.sum, c.sum_stride, c.width, size) && aligned(w);
  const bool done = wide && by_width<T>(c.width / kWide<T>, [&](auto threads, auto at_once, auto hold) {
                      const unsigned grid = static_cast<unsigned>(divided_up(rows, at_once()));
                      forward_held<T, kLayer, threads(), at_once(), hold()>
                          <<<grid, dim3(threads(), at_once()), 0, stream>>>(c, w, rows);
                    });
  if (!done) forward_any<T, kLayer><<<static_cast<unsigned>(rows), 256, 0, stream>>>(c, w);
  return launched();
}

}  // namespace

CudaError norm_forward(const NormForwardLoop& c, const CudaNormWeights& w, Element element, bool layer,
                       std::int64_t rows, CudaStream stream) {
  if (rows == 0 || c.width == 0) return nullptr;
  return by_type(element, [&](auto type) {
    using T = decltype(type);
    return layer ? forward<T, true>(c, w, rows, to_stream(stream)) : forward<T, false>(c, w, rows, to_stream(stream));
  });
}

}  // namespace trireme::kernels::gpu
