// Few levels an element: QSGD's random ones, and numbers rounded to 16 or 8 bits.
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

template <typename T>
__device__ __forceinline__ T through_half(T x, F16& code) {
  code = __float2half_rn(static_cast<float>(x));
  return static_cast<T>(__half2float(code));
}

/// Of a block of up to kCudaDeltaBlock numbers, x[k] being number threadIdx.x + k kLevelThreads of it: leaves in x what
/// the code says.
constexpr int kPerThread = static_cast<int>(kCudaDeltaBlock) / kLevelThreads;
template <typename T>
__device__ __forceinline__ void round_block(T (&x)[kPerThread], std::int64_t block, std::int64_t size, bool half,
                                            std::uint8_t* code, std::int64_t levels_at) {
  if (half) {
    auto* out = reinterpret_cast<F16*>(code + levels_at) + block * kCudaDeltaBlock;
    for (int k = 0; k < kPerThread; ++k) {
      const int i = threadIdx.x + k * kLevelThreads;
      if (i < size) x[k] = through_half(x[k], out[i]);
    }
    return;
  }
  T largest = 0;
  for (int k = 0; k < kPerThread; ++k) largest = max(largest, sizeless_abs(x[k]));
  const T scale = max_over<kLevelThreads>(largest) / T(127);
  if (threadIdx.x == 0) reinterpret_cast<T*>(code)[block] = scale;
  auto* out = reinterpret_cast<std::int8_t*>(code + levels_at) + block * kCudaDeltaBlock;
  for (int k = 0; k < kPerThread; ++k) {
    const int i = threadIdx.x + k * kLevelThreads;
    if (i >= size) continue;
    const double steps = scale > 0 ? rint(static_cast<double>(x[k] / scale)) : 0;
    const auto level = static_cast<std::int8_t>(fmin(fmax(steps, -127.0), 127.0));
    out[i] = level;
    x[k] = scale * static_cast<T>(level);
  }
}
/// Number i of a code.
template <typename T>
__device__ __forceinline__ T delta_at(const std::uint8_t* code, std::int64_t levels_at, std::int64_t i, bool half) {
  if (half) return static_cast<T>(__half2float(reinterpret_cast<const F16*>(code + levels_at)[i]));
  return reinterpret_cast<const T*>(code)[i / kCudaDeltaBlock] *
         static_cast<T>(reinterpret_cast<const std::int8_t*>(code + levels_at)[i]);
}

template <typename T>
__global__ void __launch_bounds__(kLevelThreads) encode_delta_kernel(const CudaDeltaCode a) {
  const std::int64_t begin = share_begin(a.count, blockIdx.y, a.owners),
                     share = share_begin(a.count, blockIdx.y + 1, a.owners) - begin;
  const std::int64_t first = blockIdx.x * kCudaDeltaBlock;
  if (first >= share) return;
  const std::int64_t size = min(kCudaDeltaBlock, share - first);
  const T* values = static_cast<const T*>(a.values) + begin + first;
  T* residual = static_cast<T*>(a.residual) + begin + first;
  T x[kPerThread] = {}, c[kPerThread] = {};
  for (int k = 0; k < kPerThread; ++k) {
    const int i = threadIdx.x + k * kLevelThreads;
    if (i < size) c[k] = x[k] = values[i] + residual[i];
  }
  round_block(x, blockIdx.x, size, a.half, a.codes + blockIdx.y * a.slot_bytes, a.levels_at);
  for (int k = 0; k < kPerThread; ++k) {
    const int i = threadIdx.x + k * kLevelThreads;
    if (i < size) residual[i] = c[k] - x[k];
  }
}

template <typename T>
__global__ void __launch_bounds__(kLevelThreads) mean_delta_kernel(const CudaDeltaMean a) {
  const std::int64_t first = blockIdx.x * kCudaDeltaBlock, size = min(kCudaDeltaBlock, a.count - first);
  T x[kPerThread] = {}, mean[kPerThread] = {};
  for (int k = 0; k < kPerThread; ++k) {
    const int i = threadIdx.x + k * kLevelThreads;
    if (i >= size) continue;
    T sum = 0;
    for (std::int64_t m = 0; m < a.messages; ++m)
      sum += delta_at<T>(a.codes + m * a.message_bytes, a.levels_at, first + i, a.half);
    mean[k] = x[k] = sum / static_cast<T>(a.messages);
  }
  round_block(x, blockIdx.x, size, a.half, a.mean, a.levels_at);
  T* residual = static_cast<T*>(a.residual) + first;
  for (int k = 0; k < kPerThread; ++k) {
    const int i = threadIdx.x + k * kLevelThreads;
    if (i < size) residual[i] += static_cast<T>(a.messages) * (mean[k] - x[k]);
  }
}

template <typename T>
__global__ void __launch_bounds__(kLevelThreads) decode_delta_kernel(const CudaDeltaDecode a) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kLevelThreads + threadIdx.x;
  if (i >= a.count) return;
  const OwnedPlace place = owned_place(i, a.count, a.owners);
  static_cast<T*>(a.out)[i] = delta_at<T>(a.codes + place.owner * a.slot_bytes, a.levels_at, place.place, a.half);
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
    const dim3 grid(static_cast<unsigned>(divided_up(divided_up(a.count, a.owners), kCudaDeltaBlock)),
                    static_cast<unsigned>(a.owners));
    encode_delta_kernel<decltype(type)><<<grid, kLevelThreads, 0, to_stream(stream)>>>(a);
    return launched();
  });
}
CudaError mean_delta(const CudaDeltaMean& a, Element element, CudaStream stream) {
  if (a.count == 0) return nullptr;
  return by_wide_type(element, [&](auto type) {
    const auto grid = static_cast<unsigned>(divided_up(a.count, kCudaDeltaBlock));
    mean_delta_kernel<decltype(type)><<<grid, kLevelThreads, 0, to_stream(stream)>>>(a);
    return launched();
  });
}
CudaError decode_delta(const CudaDeltaDecode& a, Element element, CudaStream stream) {
  if (a.count == 0) return nullptr;
  return by_wide_type(element, [&](auto type) {
    const auto grid = static_cast<unsigned>(divided_up(a.count, kLevelThreads));
    decode_delta_kernel<decltype(type)><<<grid, kLevelThreads, 0, to_stream(stream)>>>(a);
    return launched();
  });
}

}  // namespace trireme::kernels::gpu
