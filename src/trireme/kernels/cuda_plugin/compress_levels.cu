// Few levels an element: QSGD's random ones, and numbers rounded to 16 or 8 bits.
#include <type_traits>

#include "trireme/kernels/cuda_plugin/compress.cuh"

namespace trireme::kernels::gpu {
namespace {

constexpr int kLevelThreads = 128;

/// parallel/compress/qsgd_code.h: uniform in [0, 1) by 53 bits, two of a block.
__device__ __forceinline__ double qsgd_uniform(const std::uint32_t (&draws)[4], std::int64_t index) {
  const auto number = static_cast<std::uint64_t>(index / 2);
  std::uint32_t c[4] = {static_cast<std::uint32_t>(number), static_cast<std::uint32_t>(number >> 32), draws[2],
                        draws[3]};
  philox(c, draws[0], draws[1]);
  const std::uint32_t low = index % 2 == 0 ? c[0] : c[2], high = index % 2 == 0 ? c[1] : c[3];
  return static_cast<double>(high) * 0x1p-32 + static_cast<double>(low >> 11) * 0x1p-53;
}

template <typename T>
__global__ void __launch_bounds__(kLevelThreads) encode_qsgd_kernel(const CudaQsgdCode a) {
  const std::int64_t bucket = blockIdx.x, begin = bucket * a.bucket_size;
  const std::int64_t size = min(a.bucket_size, a.count - begin), groups = divided_up(size, 32);
  const T* values = static_cast<const T*>(a.values) + begin;
  double norm;
  if (a.by_max) {
    norm = 0;
    bool none = false;  // NaN
    for (std::int64_t i = threadIdx.x; i < size; i += kLevelThreads) {
      const double x = fabs(static_cast<double>(values[i]));
      if (x != x) none = true;
      norm = x > norm ? x : norm;
    }
    norm = max_over<kLevelThreads>(norm);
    if (__syncthreads_or(none)) norm = __longlong_as_double(0x7ff8000000000000);
  } else {
    double squares[1] = {};
    for (std::int64_t i = threadIdx.x; i < size; i += kLevelThreads)
      squares[0] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
    sum_all<kLevelThreads>(squares);
    norm = sqrt(squares[0]);
  }
  const T sent = static_cast<T>(norm);
  if (threadIdx.x == 0) static_cast<T*>(a.norms)[bucket] = sent;
  const bool coded = sent > 0 && isfinite(sent);
  const double scale = coded ? a.levels / static_cast<double>(sent) : 0,
               unit = coded ? static_cast<double>(sent) / a.levels : 0;
  std::uint32_t* words = a.words + bucket * divided_up(a.bucket_size, 32) * a.width;
  double errors[2] = {};
  for (std::int64_t group = threadIdx.x / 32; group < groups; group += kLevelThreads / 32) {
    const std::int64_t i = group * 32 + threadIdx.x % 32;
    int level = 0;
    if (i < size) {
      const auto x = static_cast<double>(values[i]);
      const double size_in_levels = __dmul_rn(fabs(x), scale), whole = floor(size_in_levels);
      if (coded) {
        level = static_cast<int>(whole) + (qsgd_uniform(a.draws, begin + i) < size_in_levels - whole ? 1 : 0);
        level = min(level, a.levels);
        if (x < 0) level = -level;
      }
      const double rest = static_cast<double>(static_cast<T>(unit * level)) - x;
      errors[0] += rest * rest;
      errors[1] += x * x;
    }
    const auto code = static_cast<std::uint32_t>(level + a.levels);
    std::uint32_t mine = 0;
    for (int bit = 0; bit < a.width; ++bit) {
      const std::uint32_t word = __ballot_sync(0xffffffffu, i < size && (code >> bit & 1) != 0);
      if (static_cast<int>(threadIdx.x % 32) == bit) mine = word;
    }
    if (static_cast<int>(threadIdx.x % 32) < a.width) words[group * a.width + threadIdx.x % 32] = mine;
  }
  sum_all<kLevelThreads>(errors);
  if (threadIdx.x == 0 && a.errors != nullptr) a.errors[2 * bucket] = errors[0], a.errors[2 * bucket + 1] = errors[1];
}

template <typename T>
__global__ void __launch_bounds__(kLevelThreads) decode_qsgd_kernel(const CudaQsgdDecode a) {
  const std::int64_t bucket = blockIdx.x, begin = bucket * a.bucket_size;
  const std::int64_t size = min(a.bucket_size, a.count - begin), groups = divided_up(a.bucket_size, 32);
  T* out = static_cast<T*>(a.out) + begin;
  for (std::int64_t i = threadIdx.x; i < size; i += kLevelThreads) {
    T sum = 0;
    for (std::int64_t m = 0; m < a.messages; ++m) {
      const T norm =
          reinterpret_cast<const T*>(static_cast<const std::uint8_t*>(a.norms) + m * a.message_bytes)[bucket];
      if (norm == 0) continue;
      if (!isfinite(norm)) {
        sum += norm;
        continue;
      }
      const std::uint32_t* words =
          reinterpret_cast<const std::uint32_t*>(reinterpret_cast<const std::uint8_t*>(a.words) + m * a.message_bytes) +
          (bucket * groups + i / 32) * a.width;
      int code = 0;
      for (int bit = 0; bit < a.width; ++bit) code |= static_cast<int>(words[bit] >> (i % 32) & 1) << bit;
      const double unit = static_cast<double>(norm) / a.levels;
      const T said = static_cast<T>(__dmul_rn(unit, static_cast<double>(code - a.levels)));
      sum += said;
    }
    out[i] = sum;
  }
}

// ---- 16 and 8 bits

// A warp for each block of numbers, kPerLane of them a lane, kVec neighbours at a time; all are loaded before the first
// is stored.
constexpr int kPerLane = static_cast<int>(kCudaDeltaBlock) / 32, kDeltaWarps = kLevelThreads / 32;

/// Where number k of a lane lies in its block.
template <int kVec>
__device__ __forceinline__ int delta_place(int k) {
  return k / kVec * 32 * kVec + static_cast<int>(threadIdx.x % 32) * kVec + k % kVec;
}
/// to[k] = from[place of k], 0 beyond `size`.
template <int kVec, typename T>
__device__ __forceinline__ void load_block(const T* from, std::int64_t size, T (&to)[kPerLane]) {
#pragma unroll
  for (int k = 0; k < kPerLane; k += kVec) {
    Pack<T, kVec> pack = {};
    if (delta_place<kVec>(k) < size) pack = load_pack<kVec>(from + delta_place<kVec>(k));
#pragma unroll
    for (int n = 0; n < kVec; ++n) to[k + n] = pack.v[n];
  }
}
template <int kVec, typename T>
__device__ __forceinline__ void store_block(T* to, std::int64_t size, const T (&from)[kPerLane]) {
#pragma unroll
  for (int k = 0; k < kPerLane; k += kVec) {
    T pack[kVec];
#pragma unroll
    for (int n = 0; n < kVec; ++n) pack[n] = from[k + n];
    if (delta_place<kVec>(k) < size) store<kVec>(to + delta_place<kVec>(k), pack);
  }
}

__device__ __forceinline__ float nearest(float x) { return rintf(x); }
__device__ __forceinline__ double nearest(double x) { return rint(x); }

/// Writes a block's code, and leaves in x what it says.
template <typename T, int kVec>
__device__ __forceinline__ void round_block(T (&x)[kPerLane], std::int64_t block, std::int64_t size, bool half,
                                            std::uint8_t* code, std::int64_t levels_at) {
  if (half) {
    auto* out = reinterpret_cast<F16*>(code + levels_at) + block * kCudaDeltaBlock;
#pragma unroll
    for (int k = 0; k < kPerLane; k += kVec) {
      Pack<F16, kVec> pack;
#pragma unroll
      for (int n = 0; n < kVec; ++n) {
        pack.v[n] = __float2half_rn(static_cast<float>(x[k + n]));
        x[k + n] = static_cast<T>(__half2float(pack.v[n]));
      }
      if (delta_place<kVec>(k) < size) *reinterpret_cast<Pack<F16, kVec>*>(out + delta_place<kVec>(k)) = pack;
    }
    return;
  }
  T largest = 0;
#pragma unroll
  for (int k = 0; k < kPerLane; ++k) largest = max(largest, sizeless_abs(x[k]));
  if constexpr (sizeof(T) == 4) {  // of numbers >= 0 the order is that of their bits
    largest = __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(largest)));
  } else {
    largest = warp_max(largest);
  }
  const T scale = largest / T(127);
  if (threadIdx.x % 32 == 0) reinterpret_cast<T*>(code)[block] = scale;
  auto* out = reinterpret_cast<std::int8_t*>(code + levels_at) + block * kCudaDeltaBlock;
#pragma unroll
  for (int k = 0; k < kPerLane; k += kVec) {
    Pack<std::int8_t, kVec> pack;
#pragma unroll
    for (int n = 0; n < kVec; ++n) {
      const T steps = scale > 0 ? nearest(x[k + n] / scale) : T(0);
      pack.v[n] = static_cast<std::int8_t>(static_cast<int>(min(max(steps, T(-127)), T(127))));
      x[k + n] = scale * static_cast<T>(pack.v[n]);
    }
    if (delta_place<kVec>(k) < size) *reinterpret_cast<Pack<std::int8_t, kVec>*>(out + delta_place<kVec>(k)) = pack;
  }
}
/// to[k] += what a block's code says.
template <typename T, int kVec>
__device__ __forceinline__ void add_block(const std::uint8_t* code, std::int64_t levels_at, std::int64_t block,
                                          std::int64_t size, bool half, T (&to)[kPerLane]) {
  const std::int64_t first = block * kCudaDeltaBlock;
  const T scale = half ? T(1) : reinterpret_cast<const T*>(code)[block];
#pragma unroll
  for (int k = 0; k < kPerLane; k += kVec) {
    const int place = delta_place<kVec>(k);
    if (place >= size) continue;
    if (half) {
      const auto pack = load_pack<kVec>(reinterpret_cast<const F16*>(code + levels_at) + first + place);
#pragma unroll
      for (int n = 0; n < kVec; ++n) to[k + n] += static_cast<T>(__half2float(pack.v[n]));
    } else {
      const auto pack = load_pack<kVec>(reinterpret_cast<const std::int8_t*>(code + levels_at) + first + place);
#pragma unroll
      for (int n = 0; n < kVec; ++n) {
        // Rounded twice, as on the CPU.
        if constexpr (sizeof(T) == 4) {
          to[k + n] = __fadd_rn(to[k + n], __fmul_rn(scale, static_cast<T>(pack.v[n])));
        } else {
          to[k + n] = __dadd_rn(to[k + n], __dmul_rn(scale, static_cast<T>(pack.v[n])));
        }
      }
    }
  }
}

__device__ __forceinline__ bool is_aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
}
/// body(std::integral_constant): how many neighbours of a share are moved at once.
template <typename T, typename Body>
__device__ __forceinline__ void by_delta_width(bool aligned, std::int64_t size, Body&& body) {
  if (sizeof(T) == 4 && aligned && size % 4 == 0) {
    body(std::integral_constant<int, 4>());
  } else {
    body(std::integral_constant<int, 1>());
  }
}
__device__ __forceinline__ std::int64_t delta_block() {
  return static_cast<std::int64_t>(blockIdx.x) * kDeltaWarps + threadIdx.x / 32;
}

template <typename T>
__global__ void __launch_bounds__(kLevelThreads) encode_delta_kernel(const CudaDeltaCode a) {
  const std::int64_t begin = share_begin(a.count, blockIdx.y, a.owners),
                     share = share_begin(a.count, blockIdx.y + 1, a.owners) - begin;
  const std::int64_t block = delta_block(), first = block * kCudaDeltaBlock;
  if (first >= share) return;  // a whole warp
  const std::int64_t size = min(kCudaDeltaBlock, share - first);
  const T* values = static_cast<const T*>(a.values) + begin + first;
  T* residual = static_cast<T*>(a.residual) + begin + first;
  const bool aligned = is_aligned(values) && is_aligned(residual);
  by_delta_width<T>(aligned, size, [&](auto w) {
    T x[kPerLane], c[kPerLane];
    load_block<w.value>(values, size, x);
    load_block<w.value>(static_cast<const T*>(residual), size, c);
#pragma unroll
    for (int k = 0; k < kPerLane; ++k) c[k] = x[k] = x[k] + c[k];
    round_block<T, w.value>(x, block, size, a.half, a.codes + blockIdx.y * a.slot_bytes, a.levels_at);
#pragma unroll
    for (int k = 0; k < kPerLane; ++k) c[k] -= x[k];
    store_block<w.value>(residual, size, c);
  });
}

template <typename T>
__global__ void __launch_bounds__(kLevelThreads) mean_delta_kernel(const CudaDeltaMean a) {
  const std::int64_t block = delta_block(), first = block * kCudaDeltaBlock;
  if (first >= a.count) return;
  const std::int64_t size = min(kCudaDeltaBlock, a.count - first);
  T* residual = static_cast<T*>(a.residual) + first;
  by_delta_width<T>(is_aligned(residual), size, [&](auto w) {
    T x[kPerLane] = {}, mean[kPerLane], left[kPerLane];
    for (std::int64_t m = 0; m < a.messages; ++m)
      add_block<T, w.value>(a.codes + m * a.message_bytes, a.levels_at, block, size, a.half, x);
    load_block<w.value>(static_cast<const T*>(residual), size, left);
#pragma unroll
    for (int k = 0; k < kPerLane; ++k) mean[k] = x[k] = x[k] / static_cast<T>(a.messages);
    round_block<T, w.value>(x, block, size, a.half, a.mean, a.levels_at);
#pragma unroll
    for (int k = 0; k < kPerLane; ++k) left[k] += static_cast<T>(a.messages) * (mean[k] - x[k]);
    store_block<w.value>(residual, size, left);
  });
}

template <typename T>
__global__ void __launch_bounds__(kLevelThreads) decode_delta_kernel(const CudaDeltaDecode a) {
  const std::int64_t begin = share_begin(a.count, blockIdx.y, a.owners),
                     share = share_begin(a.count, blockIdx.y + 1, a.owners) - begin;
  const std::int64_t block = delta_block(), first = block * kCudaDeltaBlock;
  if (first >= share) return;
  const std::int64_t size = min(kCudaDeltaBlock, share - first);
  T* out = static_cast<T*>(a.out) + begin + first;
  by_delta_width<T>(is_aligned(out), size, [&](auto w) {
    T x[kPerLane] = {};
    add_block<T, w.value>(a.codes + blockIdx.y * a.slot_bytes, a.levels_at, block, size, a.half, x);
    store_block<w.value>(out, size, x);
  });
}

dim3 delta_grid(std::int64_t count, std::int64_t owners) {
  return {static_cast<unsigned>(divided_up(divided_up(count, owners), kCudaDeltaBlock * kDeltaWarps)),
          static_cast<unsigned>(owners)};
}

}  // namespace

CudaError encode_qsgd(const CudaQsgdCode& a, Element element, CudaStream stream) {
  if (a.count == 0) return nullptr;
  if (a.width > 32) return "QSGD levels take more than 32 bits";
  return by_wide_type(element, [&](auto type) {
    const auto grid = static_cast<unsigned>(divided_up(a.count, a.bucket_size));
    encode_qsgd_kernel<decltype(type)><<<grid, kLevelThreads, 0, to_stream(stream)>>>(a);
    return launched();
  });
}
CudaError decode_qsgd(const CudaQsgdDecode& a, Element element, CudaStream stream) {
  if (a.count == 0) return nullptr;
  return by_wide_type(element, [&](auto type) {
    const auto grid = static_cast<unsigned>(divided_up(a.count, a.bucket_size));
    decode_qsgd_kernel<decltype(type)><<<grid, kLevelThreads, 0, to_stream(stream)>>>(a);
    return launched();
  });
}
CudaError encode_delta(const CudaDeltaCode& a, Element element, CudaStream stream) {
  if (a.count == 0) return nullptr;
  return by_wide_type(element, [&](auto type) {
    encode_delta_kernel<decltype(type)><<<delta_grid(a.count, a.owners), kLevelThreads, 0, to_stream(stream)>>>(a);
    return launched();
  });
}
CudaError mean_delta(const CudaDeltaMean& a, Element element, CudaStream stream) {
  if (a.count == 0) return nullptr;
  return by_wide_type(element, [&](auto type) {
    mean_delta_kernel<decltype(type)><<<delta_grid(a.count, 1), kLevelThreads, 0, to_stream(stream)>>>(a);
    return launched();
  });
}
CudaError decode_delta(const CudaDeltaDecode& a, Element element, CudaStream stream) {
  if (a.count == 0) return nullptr;
  return by_wide_type(element, [&](auto type) {
    decode_delta_kernel<decltype(type)><<<delta_grid(a.count, a.owners), kLevelThreads, 0, to_stream(stream)>>>(a);
    return launched();
  });
}

}  // namespace trireme::kernels::gpu
