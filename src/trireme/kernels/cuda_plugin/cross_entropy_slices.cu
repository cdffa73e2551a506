// Cross-entropy over slices of the classes, as tensor-parallel ranks have them: what each knows, and the gradient when
// all are known.
#include "trireme/kernels/cuda_plugin/cross_entropy.cuh"
#include "trireme/kernels/cuda_plugin/functions.h"

namespace trireme::kernels::gpu {
namespace {

template <typename T, int kVec>
__global__ void __launch_bounds__(kThreads) slice_value_rows(const CrossEntropySlice c) {
  using A = Sum<T>;
  const std::int64_t row = blockIdx.x, target = c.targets[row];
  const T* x = row_of<T>(c.logits, row, c.stride);
  const Totals<A> all = read_row<T, kVec>(x, static_cast<int>(c.classes), c.sums != nullptr);
  if (threadIdx.x != 0) return;
  static_cast<A*>(c.lse)[row] = all.lse();
  static_cast<A*>(c.hits)[row] = target >= 0 && target < c.classes ? widen(x[target]) : A(0);
  if (c.sums != nullptr) static_cast<A*>(c.sums)[row] = all.logits;
}

template <typename T, int kVec>
__global__ void __launch_bounds__(kThreads) slice_gradient_rows(const CrossEntropySlice c) {
  using A = Sum<T>;
  const std::int64_t row = blockIdx.x;
  T* x = row_of<T>(c.logits, row, c.stride);
  const int count = static_cast<int>(c.classes);
  const A scale = static_cast<const A*>(c.scale)[row], lse = static_cast<const A*>(c.lse)[row];
  if (scale == 0) return write_zeros<T, kVec>(x, count);
  slope_of(scale, lse * A(kLog2E), c.label_smoothing, c.z_loss, c.vocabulary, c.targets[row])
      .template write<kThreads, kVec>(x, count);
}

}  // namespace

CudaError slice_values(const CrossEntropySlice& c, Element element, std::int64_t rows, CudaStream stream) {
  if (rows == 0) return nullptr;
  if (c.classes > kMostClasses) return "more than 2^30 classes";
  return by_type(element, [&](auto type) {
    using T = decltype(type);
    const auto kernel =
        wide_rows(c.logits, c.stride, c.classes, sizeof(T)) ? slice_value_rows<T, kWide<T>> : slice_value_rows<T, 1>;
    kernel<<<static_cast<unsigned>(rows), kThreads, 0, to_stream(stream)>>>(c);
    return launched();
  });
}

CudaError slice_gradients(const CrossEntropySlice& c, Element element, std::int64_t rows, CudaStream stream) {
  if (rows == 0) return nullptr;
  if (c.classes > kMostClasses) return "more than 2^30 classes";
  return by_type(element, [&](auto type) {
    using T = decltype(type);
    const auto kernel = wide_rows(c.logits, c.stride, c.classes, sizeof(T)) ? slice_gradient_rows<T, kWide<T>>
                                                                            : slice_gradient_rows<T, 1>;
    kernel<<<static_cast<unsigned>(rows), kThreads, 0, to_stream(stream)>>>(c);
    return launched();
  });
}

}  // namespace trireme::kernels::gpu
