// kernels/cuda_plugin/common.cuh -- what the kernels share: elements, wide loads, sums over a block, choosing by type.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "trireme/kernels/cuda_table.h"

namespace trireme::kernels::gpu {

using Bf16 = __nv_bfloat16;
using F16 = __half;

template <typename T>
struct SumOf {
  using Type = float;
};
template <>
struct SumOf<double> {
  using Type = double;
};
template <typename T>
using Sum = typename SumOf<T>::Type;

__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ double widen(double x) { return x; }
__device__ __forceinline__ float widen(Bf16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float widen(F16 x) { return __half2float(x); }

template <typename T>
__device__ __forceinline__ T narrow(Sum<T> x) {
  if constexpr (sizeof(T) >= 4) {
    return x;
  } else if constexpr (__is_same(T, Bf16)) {
    return __float2bfloat16_rn(x);
  } else {
    return __float2half_rn(x);
  }
}

/// kVec neighbours, moved with instructions of 16 bytes where they fill that.
template <typename T, int kVec>
struct alignas(sizeof(T) * kVec < 16 ? sizeof(T) * kVec : 16) Pack {
  T v[kVec];
};

template <int kVec, typename T, typename A>
__device__ __forceinline__ void load(const T* from, A (&to)[kVec]) {
  const auto pack = *reinterpret_cast<const Pack<T, kVec>*>(from);
#pragma unroll
  for (int k = 0; k < kVec; ++k) to[k] = widen(pack.v[k]);
}

/// Two numbers, rounded, as they lie side by side.
template <typename T>
__device__ __forceinline__ std::uint32_t two_words(float a, float b) {
  if constexpr (__is_same(T, Bf16)) {
    const __nv_bfloat162 two = __floats2bfloat162_rn(a, b);
    return *reinterpret_cast<const std::uint32_t*>(&two);
  } else {
    const __half2 two = __floats2half2_rn(a, b);
    return *reinterpret_cast<const std::uint32_t*>(&two);
  }
}

/// To global memory, in whole vectors: a struct that is assigned may be written member by member.
template <int kWords>
__device__ __forceinline__ void store_words(void* to, const std::uint32_t (&w)[kWords]) {
  const auto at = [&](int k) { return __cvta_generic_to_global(static_cast<std::uint32_t*>(to) + k); };
  if constexpr (kWords % 4 == 0) {
#pragma unroll
    for (int k = 0; k < kWords; k += 4) {
      asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(at(k)), "r"(w[k]), "r"(w[k + 1]), "r"(w[k + 2]),
                   "r"(w[k + 3])
                   : "memory");
    }
  } else if constexpr (kWords == 2) {
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(at(0)), "r"(w[0]), "r"(w[1]) : "memory");
  } else {
#pragma unroll
    for (int k = 0; k < kWords; ++k) static_cast<std::uint32_t*>(to)[k] = w[k];
  }
}

template <int kVec, typename T, typename A>
__device__ __forceinline__ void store(T* to, const A (&from)[kVec]) {
  if constexpr (sizeof(T) == 2 && kVec % 2 == 0) {  // two are rounded by one instruction
    std::uint32_t words[kVec / 2];
#pragma unroll
    for (int k = 0; k < kVec; k += 2) words[k / 2] = two_words<T>(from[k], from[k + 1]);
    store_words(to, words);
  } else if constexpr (sizeof(T) == 4) {
    std::uint32_t words[kVec];
#pragma unroll
    for (int k = 0; k < kVec; ++k) words[k] = __float_as_uint(from[k]);
    store_words(to, words);
  } else {
    Pack<T, kVec> pack;
#pragma unroll
    for (int k = 0; k < kVec; ++k) pack.v[k] = narrow<T>(from[k]);
    *reinterpret_cast<Pack<T, kVec>*>(to) = pack;
  }
}

/// The same to shared memory.
template <int kVec, typename T>
__device__ __forceinline__ void store_shared(T* to, const T (&from)[kVec]) {
  Pack<T, kVec> pack;
#pragma unroll
  for (int k = 0; k < kVec; ++k) pack.v[k] = from[k];
  *reinterpret_cast<Pack<T, kVec>*>(to) = pack;
}

/// A vector as it lies in memory: half the registers of its widened numbers.
template <int kVec, typename T>
__device__ __forceinline__ Pack<T, kVec> load_pack(const T* from) {
  return *reinterpret_cast<const Pack<T, kVec>*>(from);
}

/// kVec numbers as they lie, in whole registers: as single ones, those of 16 bits would take a register each. What a
/// thread holds of them is what it has under way, so kernels that wait for memory keep their numbers like this.
template <typename T, int kVec>
struct Raw {
  static_assert(sizeof(T) * kVec % 4 == 0);
  static constexpr int kWords = sizeof(T) * kVec / 4;
  std::uint32_t w[kWords];

  /// Number k, widened. `k` is known when the kernel is compiled, once loops are unrolled.
  __device__ __forceinline__ Sum<T> operator[](int k) const {
    if constexpr (__is_same(T, Bf16)) {
      return __uint_as_float(k % 2 == 0 ? w[k / 2] << 16 : w[k / 2] & 0xffff0000u);
    } else if constexpr (sizeof(T) == 2) {
      return __half2float(__ushort_as_half(static_cast<unsigned short>(k % 2 == 0 ? w[k / 2] : w[k / 2] >> 16)));
    } else if constexpr (sizeof(T) == 4) {
      return __uint_as_float(w[k]);
    } else {
      return __hiloint2double(static_cast<int>(w[2 * k + 1]), static_cast<int>(w[2 * k]));
    }
  }
};

template <int kVec, typename T>
__device__ __forceinline__ Raw<T, kVec> load_raw(const T* from) {
  using Words = Pack<std::uint32_t, Raw<T, kVec>::kWords>;
  const Words pack = *reinterpret_cast<const Words*>(from);
  Raw<T, kVec> to;
#pragma unroll
  for (int k = 0; k < to.kWords; ++k) to.w[k] = pack.v[k];
  return to;
}
/// The numbers, each rounded to T.
template <typename T, int kVec>
__device__ __forceinline__ Raw<T, kVec> to_raw(const Sum<T> (&from)[kVec]) {
  Raw<T, kVec> to;
#pragma unroll
  for (int k = 0; k < kVec; ++k) {
    if constexpr (sizeof(T) == 2) {
      if (k % 2 == 0) to.w[k / 2] = two_words<T>(from[k], from[k + 1]);
    } else if constexpr (sizeof(T) == 4) {
      to.w[k] = __float_as_uint(from[k]);
    } else {
      to.w[2 * k] = static_cast<std::uint32_t>(__double2loint(from[k]));
      to.w[2 * k + 1] = static_cast<std::uint32_t>(__double2hiint(from[k]));
    }
  }
  return to;
}
template <typename T, int kVec>
__device__ __forceinline__ void store_raw(T* to, const Raw<T, kVec>& from) {
  store_words(to, from.w);
}

// 16 bytes of a thread's own on their way from global to shared memory, past the registers: it waits until at most so
// many of the groups that it closed are still under way, and then finds its bytes there.
__device__ __forceinline__ void fetch16(void* shared, const void* global) {
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(shared))),
      "l"(global)
      : "memory");
}
__device__ __forceinline__ void close_fetches() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kLeft>
__device__ __forceinline__ void wait_fetches() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

/// e^x by the special function unit, within 2 + |x| / 2 units in the last place of a float; exact enough for double.
__device__ __forceinline__ float fast_exp(float x) { return __expf(x); }
__device__ __forceinline__ double fast_exp(double x) { return exp(x); }

/// The square root within a unit in the last place of a float; of numbers too small for a normal float it is 0.
__device__ __forceinline__ float fast_root(float x) {
  float y;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// a / b within two units in the last place of a float; exact for double. Beyond 2^126, b makes it 0.
__device__ __forceinline__ float fast_divide(float a, float b) { return __fdividef(a, b); }
__device__ __forceinline__ double fast_divide(double a, double b) { return a / b; }

/// 2^x; of floats within 2 units in the last place, numbers too small for a normal float being 0.
__device__ __forceinline__ float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ double fast_exp2(double x) { return exp2(x); }

/// Numbers whose type is known only when the kernel runs: all threads take the same branch.
template <int kVec, typename A>
__device__ __forceinline__ void load_any(const void* data, Element element, std::int64_t index, A (&to)[kVec]) {
  if constexpr (sizeof(A) == 8) {
    load<kVec>(static_cast<const double*>(data) + index, to);
  } else if (element == Element::kBfloat16) {
    load<kVec>(static_cast<const Bf16*>(data) + index, to);
  } else if (element == Element::kHalf) {
    load<kVec>(static_cast<const F16*>(data) + index, to);
  } else {
    load<kVec>(static_cast<const float*>(data) + index, to);
  }
}
template <int kVec, typename A>
__device__ __forceinline__ void store_any(void* data, Element element, std::int64_t index, const A (&from)[kVec]) {
  if constexpr (sizeof(A) == 8) {
    store<kVec>(static_cast<double*>(data) + index, from);
  } else if (element == Element::kBfloat16) {
    store<kVec>(static_cast<Bf16*>(data) + index, from);
  } else if (element == Element::kHalf) {
    store<kVec>(static_cast<F16*>(data) + index, from);
  } else {
    store<kVec>(static_cast<float*>(data) + index, from);
  }
}

template <typename T>
__device__ __forceinline__ T* row_of(const void* data, std::int64_t row, std::int64_t stride) {
  return static_cast<T*>(const_cast<void*>(data)) + row * stride;
}

template <typename A>
__device__ __forceinline__ A warp_sum(A x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}
template <typename A>
__device__ __forceinline__ A warp_max(A x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = max(x, __shfl_xor_sync(0xffffffffu, x, step));
  return x;
}

/// The sum over kThreads threads, the same on all of them: a warp, or a whole block, every thread of which calls it.
template <int kThreads, typename A>
__device__ __forceinline__ A sum_over(A x) {
  x = warp_sum(x);
  if constexpr (kThreads > 32) {
    __shared__ A parts[kThreads / 32];
    __syncthreads();  // the last call's readers are done
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
    x = parts[0];
#pragma unroll
    for (int i = 1; i < kThreads / 32; ++i) x += parts[i];
  }
  return x;
}
template <int kThreads, typename A>
__device__ __forceinline__ A max_over(A x) {
  x = warp_max(x);
  if constexpr (kThreads > 32) {
    __shared__ A parts[kThreads / 32];
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
    x = parts[0];
#pragma unroll
    for (int i = 1; i < kThreads / 32; ++i) x = max(x, parts[i]);
  }
  return x;
}

/// base/random.h's philox(): a block of four words for a counter, in place.
__device__ __forceinline__ void philox(std::uint32_t (&c)[4], std::uint32_t key0, std::uint32_t key1) {
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const std::uint32_t left_high = __umulhi(0xD2511F53u, c[0]), left = 0xD2511F53u * c[0];
    const std::uint32_t right_high = __umulhi(0xCD9E8D57u, c[2]), right = 0xCD9E8D57u * c[2];
    c[0] = right_high ^ c[1] ^ key0;
    c[1] = right;
    c[2] = left_high ^ c[3] ^ key1;
    c[3] = left;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

// ---- host

template <typename T>
inline constexpr int kWide = 16 / static_cast<int>(sizeof(T));

/// Whether every row can be moved in 16 bytes at a time.
inline bool wide_rows(const void* data, std::int64_t stride, std::int64_t width, int size) {
  if (data == nullptr) return true;
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && stride * size % 16 == 0 && width * size % 16 == 0;
}

inline cudaStream_t to_stream(CudaStream stream) { return static_cast<cudaStream_t>(stream); }

inline CudaError launched() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

/// Lets launches of a kernel have `bytes` of dynamic shared memory. The attribute belongs to the process: were it set
/// to what one launch needs, a rank on another thread could lower it before that launch, so it is only ever set to all
/// that the card has.
template <typename Kernel>
CudaError allow_shared(Kernel* kernel, std::size_t bytes) {
  cudaFuncAttributes itself{};
  if (cudaFuncGetAttributes(&itself, kernel) == cudaSuccess && bytes + itself.sharedSizeBytes > 48 * 1024) {
    int device = 0, most = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         most - static_cast<int>(itself.sharedSizeBytes));
  }
  return launched();
}

/// body(T()) for the element's type.
template <typename Body>
CudaError by_type(Element element, Body&& body) {
  switch (element) {
    case Element::kFloat:
      return body(float());
    case Element::kDouble:
      return body(double());
    case Element::kBfloat16:
      return body(Bf16());
    case Element::kHalf:
      return body(F16());
  }
  return "an element type that no kernel has";
}

__host__ __device__ inline std::int64_t divided_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// sums.first[c] += the sum over blocks of sums.partial[block][c], in a fixed order; second likewise, of what lies
/// behind.
template <typename A>
CudaError add_blocks(const CudaColumnSums& sums, std::int64_t blocks, std::int64_t width, CudaStream stream);

}  // namespace trireme::kernels::gpu
