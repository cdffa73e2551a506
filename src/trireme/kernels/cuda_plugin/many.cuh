// kernels/cuda_plugin/many.cuh -- many tensors in one launch: blocks find their tensor in a table that comes with it.
#pragma once

#include <cstdint>

namespace trireme::kernels::gpu {

template <typename Item, int kMost>
struct Tables {
  Item items[kMost];
  std::int32_t first_block[kMost + 1];
  std::int32_t count;

  /// The tensor that block number `block` works on.
  __device__ __forceinline__ int find(int block) const {
    int low = 0, high = count - 1;
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (first_block[middle] <= block) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }
};

}  // namespace trireme::kernels::gpu
