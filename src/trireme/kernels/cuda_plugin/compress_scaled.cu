// Signs and a scale for each share, with error feedback: 1-bit Adam's code. The scale needs all of a share before its
// first residual, so there are two passes: the first leaves c where the residual will be, the second reads only that.
#include <initializer_list>
#include <type_traits>

#include "trireme/kernels/cuda_plugin/compress.cuh"

namespace trireme::kernels::gpu {
namespace {

constexpr int kScaledThreads = 256, kScaledPacks = 4;

struct ShareOf {
  std::int64_t begin, size;
};
__device__ __forceinline__ ShareOf share_of(std::int64_t n, std::int64_t owner, std::int64_t owners) {
  const std::int64_t begin = share_begin(n, owner, owners);
  return {begin, share_begin(n, owner + 1, owners) - begin};
}
/// body(std::integral_constant): how many numbers are moved at once. Shares begin and end where they like.
template <typename T, typename Body>
__device__ __forceinline__ void by_width(const ShareOf& share, bool aligned, Body&& body) {
  if (sizeof(T) == 4 && aligned && share.begin % 4 == 0 && share.size % 4 == 0) {
    body(std::integral_constant<int, 4>());
  } else {
    body(std::integral_constant<int, 1>());
  }
}

/// Between the passes, an element that does not move is the negative zero, and one that moves never is.
template <typename T>
__device__ __forceinline__ bool stands_still(T c) {
  return c == 0 && signbit(c);
}

/// Signs, and a block's part of |c|^2, of |c|_1 and of how many move. Warps take kScaledPacks packs a lane at a time,
/// all loads of them before the first store.
template <typename T, int kVec>
__device__ __forceinline__ void scaled_signs(const CudaScaledCode& a, const ShareOf& share, double (&sums)[3]) {
  constexpr int kChunk = 32 * kVec * kScaledPacks;
  auto* signs = reinterpret_cast<std::uint32_t*>(a.codes + blockIdx.y * a.slot_bytes + a.signs_at);
  const T *values = static_cast<const T*>(a.values) + share.begin, *kept = static_cast<const T*>(a.kept) + share.begin,
          *variance = static_cast<const T*>(a.variance) + share.begin;
  T* next = static_cast<T*>(a.next) + share.begin;
  const int lane = threadIdx.x % 32, warps = kScaledThreads / 32;
  for (std::int64_t chunk = static_cast<std::int64_t>(blockIdx.x) * warps + threadIdx.x / 32;
       chunk * kChunk < share.size; chunk += static_cast<std::int64_t>(gridDim.x) * warps) {
    const std::int64_t first = chunk * kChunk + lane * kVec;
    Pack<T, kVec> c[kScaledPacks], e[kScaledPacks], v[kScaledPacks];
#pragma unroll
    for (int r = 0; r < kScaledPacks; ++r) {
      const std::int64_t i = first + 32 * kVec * r;
      if (i >= share.size) continue;
      c[r] = load_pack<kVec>(values + i), e[r] = load_pack<kVec>(kept + i), v[r] = load_pack<kVec>(variance + i);
    }
    T squares = 0, sizes = 0;
    int moving = 0;
    std::uint32_t ups = 0;
#pragma unroll
    for (int r = 0; r < kScaledPacks; ++r) {
      const std::int64_t i = first + 32 * kVec * r;
      const bool inside = i < share.size;
      T out[kVec];
#pragma unroll
      for (int k = 0; k < kVec; ++k) {
        const bool moves = inside && v[r].v[k] != 0;
        T value = moves ? c[r].v[k] + e[r].v[k] : T(0);
        squares += value * value;
        sizes += sizeless_abs(value);
        moving += moves ? 1 : 0;
        const bool up = inside && value >= 0;
        if constexpr (kVec == 4) {
          ups |= (up ? 1u : 0u) << (4 * r + k);
        } else {
          const std::uint32_t word = __ballot_sync(0xffffffffu, up);
          if (lane == r) ups = word;
        }
        out[k] = !moves ? -T(0) : value == 0 ? T(0) : value;
      }
      if (inside) store<kVec>(next + i, out);
    }
    if constexpr (kVec == 4) {
      const std::uint32_t word = transpose_nibbles(ups);  // of pack lane % 8
      const std::int64_t number = chunk * (kChunk / 32) + lane % 8 * 4 + lane / 8;
      if (lane % 8 < kScaledPacks && number * 32 < share.size) signs[number] = word;
    } else {
      const std::int64_t number = chunk * (kChunk / 32) + lane;
      if (lane < kScaledPacks && number * 32 < share.size) signs[number] = ups;
    }
    sums[0] += static_cast<double>(squares);
    sums[1] += static_cast<double>(sizes);
    sums[2] += moving;
  }
}

template <typename T>
__global__ void __launch_bounds__(kScaledThreads, 3) scaled_signs_kernel(const CudaScaledCode a, bool aligned) {
  const ShareOf share = share_of(a.count, blockIdx.y, a.owners);
  double sums[3] = {};
  by_width<T>(share, aligned, [&](auto width) { scaled_signs<T, width.value>(a, share, sums); });
  sum_all<kScaledThreads>(sums);
  if (threadIdx.x == 0) {
    double* partial = a.partial + (blockIdx.y * gridDim.x + blockIdx.x) * 3;
    partial[0] = sums[0], partial[1] = sums[1], partial[2] = sums[2];
  }
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

/// From the end: what the first pass wrote last is still in the cache.
template <typename T, int kVec>
__device__ __forceinline__ void scaled_rest(const CudaScaledCode& a, const ShareOf& share) {
  constexpr int kChunk = kScaledThreads * kVec * kScaledPacks;
  const T scale = *reinterpret_cast<const T*>(a.codes + blockIdx.y * a.slot_bytes);
  T* next = static_cast<T*>(a.next) + share.begin;
  for (std::int64_t chunk = divided_up(share.size, kChunk) - 1 - blockIdx.x; chunk >= 0; chunk -= gridDim.x) {
    const std::int64_t first = chunk * kChunk + threadIdx.x * kVec;
    Pack<T, kVec> c[kScaledPacks];
#pragma unroll
    for (int r = 0; r < kScaledPacks; ++r) {
      const std::int64_t i = first + kScaledThreads * kVec * r;
      if (i < share.size) c[r] = load_pack<kVec>(next + i);
    }
#pragma unroll
    for (int r = 0; r < kScaledPacks; ++r) {
      const std::int64_t i = first + kScaledThreads * kVec * r;
      if (i >= share.size) continue;
      T rest[kVec];
#pragma unroll
      for (int k = 0; k < kVec; ++k) {
        const T value = c[r].v[k];
        rest[k] = stands_still(value) ? T(0) : value - (value >= 0 ? scale : -scale);
      }
      store<kVec>(next + i, rest);
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kScaledThreads) scaled_rest_kernel(const CudaScaledCode a, bool aligned) {
  const ShareOf share = share_of(a.count, blockIdx.y, a.owners);
  by_width<T>(share, aligned, [&](auto width) { scaled_rest<T, width.value>(a, share); });
}

template <typename T, int kVec>
__device__ __forceinline__ void decode_scaled_share(const CudaScaledDecode& a, const ShareOf& share) {
  const std::uint8_t* code = a.codes + blockIdx.y * a.slot_bytes;
  const T* variance = static_cast<const T*>(a.variance) + share.begin;
  T* out = static_cast<T*>(a.out) + share.begin;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kScaledThreads * kVec;
  for (std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * kScaledThreads + threadIdx.x) * kVec; i < share.size;
       i += step) {
    const Pack<T, kVec> v = load_pack<kVec>(variance + i);
    T sum[kVec] = {};
    for (std::int64_t m = 0; m < a.messages; ++m) {
      const std::uint8_t* message = code + m * a.message_bytes;
      const T scale = *reinterpret_cast<const T*>(message);
      const std::uint32_t word = reinterpret_cast<const std::uint32_t*>(message + a.signs_at)[i / 32] >> (i % 32);
#pragma unroll
      for (int k = 0; k < kVec; ++k) {
        // Rounded twice, as on the CPU: a fused one would part from it.
        const T said = static_cast<T>(a.factor) * ((word >> k & 1) != 0 ? scale : -scale);
        if constexpr (sizeof(T) == 4) {
          sum[k] = __fadd_rn(sum[k], said);
        } else {
          sum[k] = __dadd_rn(sum[k], said);
        }
      }
    }
#pragma unroll
    for (int k = 0; k < kVec; ++k) sum[k] = v.v[k] != 0 ? sum[k] : T(0);
    store<kVec>(out + i, sum);
  }
}

template <typename T>
__global__ void __launch_bounds__(kScaledThreads) decode_scaled_kernel(const CudaScaledDecode a, bool aligned) {
  const ShareOf share = share_of(a.count, blockIdx.y, a.owners);
  by_width<T>(share, aligned, [&](auto width) { decode_scaled_share<T, width.value>(a, share); });
}

bool all_aligned(std::initializer_list<const void*> pointers) {
  bool aligned = true;
  for (const void* pointer : pointers) aligned = aligned && reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
  return aligned;
}

dim3 scaled_grid(std::int64_t count, std::int64_t owners) {
  const std::int64_t blocks = divided_up(divided_up(count, owners), 8 * kScaledThreads);
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
    const bool aligned = all_aligned({a.values, a.kept, a.variance, a.next});
    scaled_signs_kernel<T><<<grid, kScaledThreads, 0, to_stream(stream)>>>(a, aligned);
    scale_kernel<T>
        <<<static_cast<unsigned>(a.owners), kScaledThreads, 0, to_stream(stream)>>>(a, static_cast<int>(grid.x));
    scaled_rest_kernel<T><<<grid, kScaledThreads, 0, to_stream(stream)>>>(a, aligned);
    return launched();
  });
}

CudaError decode_scaled(const CudaScaledDecode& a, Element element, CudaStream stream) {
  if (a.count == 0) return nullptr;
  return by_wide_type(element, [&](auto type) {
    decode_scaled_kernel<decltype(type)>
        <<<scaled_grid(a.count, a.owners), kScaledThreads, 0, to_stream(stream)>>>(a, all_aligned({a.variance, a.out}));
    return launched();
  });
}

}  // namespace trireme::kernels::gpu
