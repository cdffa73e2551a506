// The small passes of a decode step over its few rows: keys and values into the paged cache, and the likeliest token.
#include "trireme/kernels/cuda_plugin/dependent.cuh"
#include "trireme/kernels/cuda_plugin/inference_functions.h"

namespace trireme::kernels::gpu {
namespace {

template <typename T>
__global__ void __launch_bounds__(256) write_slots(const CudaPagedWrite c) {
  let_next_start();
  wait_for_previous();
  const std::int64_t row = blockIdx.x, slot = c.slots[row];
  if (slot < 0) return;
  const T* k = static_cast<const T*>(c.k) + row * c.k_row;
  T* keys = static_cast<T*>(c.keys) + slot * c.width;
  const T* v = static_cast<const T*>(c.v) + row * c.v_row;
  T* values = static_cast<T*>(c.values) + slot * c.width;
  constexpr int kVec = kWide<T>;
  const bool wide = (reinterpret_cast<std::uintptr_t>(k) | reinterpret_cast<std::uintptr_t>(v) |
                     reinterpret_cast<std::uintptr_t>(keys) | reinterpret_cast<std::uintptr_t>(values)) %
                            16 ==
                        0 &&
                    c.width % kVec == 0;
  if (wide) {
    for (std::int64_t i = threadIdx.x * kVec; i < c.width; i += blockDim.x * kVec) {
      *reinterpret_cast<uint4*>(keys + i) = *reinterpret_cast<const uint4*>(k + i);
      if (c.v) *reinterpret_cast<uint4*>(values + i) = *reinterpret_cast<const uint4*>(v + i);
    }
    return;
  }
  for (std::int64_t i = threadIdx.x; i < c.width; i += blockDim.x) {
    keys[i] = k[i];
    if (c.v) values[i] = v[i];
  }
}

template <typename T>
__global__ void __launch_bounds__(1024) argmax_rows(const CudaArgmax c) {
  constexpr int kVec = kWide<T>, kAtOnce = 4;
  __shared__ float tops[32];
  __shared__ std::int64_t ids[32];
  let_next_start();
  wait_for_previous();
  const T* row = static_cast<const T*>(c.logits) + static_cast<std::int64_t>(blockIdx.x) * c.stride;
  float top = -INFINITY;
  std::int64_t id = c.width;
  bool number = true;
  const auto look = [&](float x, std::int64_t at) {
    number &= x == x;
    if (x > top) {
      top = x;
      id = at;
    }
  };
  std::int64_t done = 0;
  if (reinterpret_cast<std::uintptr_t>(row) % 16 == 0) {
    const std::int64_t step = static_cast<std::int64_t>(blockDim.x) * kVec;
    done = c.width / (step * kAtOnce) * (step * kAtOnce);
    for (std::int64_t first = threadIdx.x * kVec; first < done; first += step * kAtOnce) {
      Raw<T, kVec> held[kAtOnce];
#pragma unroll
      for (int t = 0; t < kAtOnce; ++t) held[t] = load_raw<kVec>(row + first + t * step);
#pragma unroll
      for (int t = 0; t < kAtOnce; ++t) {
#pragma unroll
        for (int k = 0; k < kVec; ++k) look(static_cast<float>(held[t][k]), first + t * step + k);
      }
    }
  }
  for (std::int64_t i = done + threadIdx.x; i < c.width; i += blockDim.x) look(static_cast<float>(widen(row[i])), i);
  const auto better = [&](float other, std::int64_t other_id) {
    if (other > top || (other == top && other_id < id)) {
      top = other;
      id = other_id;
    }
  };
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, top, step);
    const std::int64_t other_id = __shfl_xor_sync(0xffffffffu, id, step);
    better(other, other_id);
  }
  const int bad = __syncthreads_or(!number);
  if (threadIdx.x % 32 == 0) {
    tops[threadIdx.x / 32] = top;
    ids[threadIdx.x / 32] = id;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int i = 1; i < static_cast<int>(blockDim.x / 32); ++i) better(tops[i], ids[i]);
  const bool sound = bad == 0 && id < c.width && top < INFINITY;
  c.tokens[blockIdx.x] = sound ? id : -1;
}

}  // namespace

CudaError paged_write(const CudaPagedWrite& c, Element element, CudaStream stream) {
  if (c.rows == 0 || c.width == 0) return nullptr;
  return by_type(element, [&](auto type) {
    return launch_dependent(write_slots<decltype(type)>, dim3(static_cast<unsigned>(c.rows)), dim3(256), 0, stream, c);
  });
}

CudaError argmax(const CudaArgmax& c, CudaStream stream) {
  if (c.rows == 0) return nullptr;
  return by_type(c.element, [&](auto type) {
    return launch_dependent(argmax_rows<decltype(type)>, dim3(static_cast<unsigned>(c.rows)), dim3(1024), 0, stream, c);
  });
}

}  // namespace trireme::kernels::gpu
