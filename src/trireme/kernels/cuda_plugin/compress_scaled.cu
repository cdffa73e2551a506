// Signs and a scale for each share, with error feedback: 1-bit Adam's code. The scale needs all of a share before its
// first residual, so numbers are read twice.
#include "trireme/kernels/cuda_plugin/compress.cuh"

namespace trireme::kernels::gpu {
namespace {

constexpr int kScaledThreads = 256;

/// c of an element, and whether it moves.
template <typename T>
__device__ __forceinline__ T compensated(const CudaScaledCode& a, std::int64_t i, bool& moves) {
  moves = static_cast<const T*>(a.variance)[i] != 0;
  return moves ? static_cast<const T*>(a.values)[i] + static_cast<const T*>(a.kept)[i] : T(0);
}

struct ShareOf {
  std::int64_t begin, size;
};
__device__ __forceinline__ ShareOf share_of(std::int64_t n, std::int64_t owner, std::int64_t owners) {
  const std::int64_t begin = share_begin(n, owner, owners);
  return {begin, share_begin(n, owner + 1, owners) - begin};
}

/// Signs, and a block's part of |c|^2, of |c|_1 and of how many move.
template <typename T>
__global__ void __launch_bounds__(kScaledThreads) scaled_signs_kernel(const CudaScaledCode a) {
  const auto [begin, size] = share_of(a.count, blockIdx.y, a.owners);
  auto* signs = reinterpret_cast<std::uint32_t*>(a.codes + blockIdx.y * a.slot_bytes + a.signs_at);
  double sums[3] = {};
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kScaledThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kScaledThreads + threadIdx.x;
       i < divided_up(size, 32) * 32; i += step) {  // whole warps
    bool moves = false;
    const T c = i < size ? compensated<T>(a, begin + i, moves) : T(0);
    const std::uint32_t word = __ballot_sync(0xffffffffu, i < size && c >= 0);
    if (threadIdx.x % 32 == 0) signs[i / 32] = word;
    sums[0] += static_cast<double>(c) * static_cast<double>(c);
    sums[1] += static_cast<double>(sizeless_abs(c));
    sums[2] += moves ? 1 : 0;
  }
  sum_all<kScaledThreads>(sums);
  if (threadIdx.x < 3) a.partial[(blockIdx.y * gridDim.x + blockIdx.x) * 3 + threadIdx.x] = sums[threadIdx.x];
}

/// The scale of each share, in a fixed order of blocks.
template <typename T>
__global__ void __launch_bounds__(kScaledThreads) scale_kernel(const CudaScaledCode a, int blocks) {
  double sums[3] = {};
  for (int block = threadIdx.x; block < blocks; block += kScaledThreads) {
    for (int n = 0; n < 3; ++n) sums[n] += a.partial[(static_cast<std::int64_t>(blockIdx.x) * blocks + block) * 3 + n];
  }
  sum_all<kScaledThreads>(sums);
  if (threadIdx.x != 0) return;
  const T scale = static_cast<T>(sums[2] > 0 ? sqrt(sums[0] / sums[2]) : 0);
  *reinterpret_cast<T*>(a.codes + blockIdx.x * a.slot_bytes) = scale;
  if (a.errors == nullptr) return;
  const auto s = static_cast<double>(scale);
  a.errors[2 * blockIdx.x] = fmax(0.0, sums[0] - 2 * s * sums[1] + sums[2] * s * s);
  a.errors[2 * blockIdx.x + 1] = sums[0];
}

template <typename T>
__global__ void __launch_bounds__(kScaledThreads) scaled_rest_kernel(const CudaScaledCode a) {
  const auto [begin, size] = share_of(a.count, blockIdx.y, a.owners);
  const T scale = *reinterpret_cast<const T*>(a.codes + blockIdx.y * a.slot_bytes);
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kScaledThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kScaledThreads + threadIdx.x; i < size; i += step) {
    bool moves = false;
    const T c = compensated<T>(a, begin + i, moves);
    static_cast<T*>(a.next)[begin + i] = moves ? c - (c >= 0 ? scale : -scale) : T(0);
  }
}

template <typename T>
__global__ void __launch_bounds__(kScaledThreads) decode_scaled_kernel(const CudaScaledDecode a) {
  const auto [begin, size] = share_of(a.count, blockIdx.y, a.owners);
  const std::uint8_t* code = a.codes + blockIdx.y * a.slot_bytes;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kScaledThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kScaledThreads + threadIdx.x; i < size; i += step) {
    T sum = 0;
    if (static_cast<const T*>(a.variance)[begin + i] != 0) {
      for (std::int64_t m = 0; m < a.messages; ++m) {
        const std::uint8_t* message = code + m * a.message_bytes;
        const T scale = *reinterpret_cast<const T*>(message);
        const std::uint32_t word = reinterpret_cast<const std::uint32_t*>(message + a.signs_at)[i / 32];
        // Rounded twice, as on the CPU: a fused one would part from it.
        const T said = static_cast<T>(a.factor) * ((word >> (i % 32) & 1) != 0 ? scale : -scale);
        if constexpr (sizeof(T) == 4) {
          sum = __fadd_rn(sum, said);
        } else {
          sum = __dadd_rn(sum, said);
        }
      }
    }
    static_cast<T*>(a.out)[begin + i] = sum;
  }
}

dim3 scaled_grid(std::int64_t count, std::int64_t owners) {
  const std::int64_t blocks = divided_up(divided_up(count, owners), 4 * kScaledThreads);
  return {static_cast<unsigned>(blocks < 1                   ? 1
                                : blocks > kCudaScaledBlocks ? kCudaScaledBlocks
                                                             : blocks),
          static_cast<unsigned>(owners)};
}

}  // namespace

CudaError encode_scaled(const CudaScaledCode& a, Element element, CudaStream stream) {
  return by_wide_type(element, [&](auto type) {
    using T = decltype(type);
    const dim3 grid = scaled_grid(a.count, a.owners);
    scaled_signs_kernel<T><<<grid, kScaledThreads, 0, to_stream(stream)>>>(a);
    scale_kernel<T>
        <<<static_cast<unsigned>(a.owners), kScaledThreads, 0, to_stream(stream)>>>(a, static_cast<int>(grid.x));
    scaled_rest_kernel<T><<<grid, kScaledThreads, 0, to_stream(stream)>>>(a);
    return launched();
  });
}

CudaError decode_scaled(const CudaScaledDecode& a, Element element, CudaStream stream) {
  if (a.count == 0) return nullptr;
  return by_wide_type(element, [&](auto type) {
    decode_scaled_kernel<decltype(type)><<<scaled_grid(a.count, a.owners), kScaledThreads, 0, to_stream(stream)>>>(a);
    return launched();
  });
}

}  // namespace trireme::kernels::gpu
