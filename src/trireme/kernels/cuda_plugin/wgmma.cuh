// kernels/cuda_plugin/wgmma.cuh -- Hopper's warp-group GEMM (wgmma) for bfloat16 and half with float sums, and the
// copies that bring rows to where it reads them.
//
// A matrix in shared memory is panels of 64 columns (128 bytes a row) with the 128-byte swizzle: the 16 bytes number c
// of row r lie at c ^ (r % 8). Such a panel can be read both ways: with the sum along a row's columns (K-major), or
// along the rows (MN-major, the "transposed" operand). Panels begin at multiples of 1,024 bytes. What wgmma reads must
// be fenced (fence_async) by the threads that wrote it before a barrier. Registers of results are touched only behind
// wgmma_wait. Compiled for sm_90a alone. Depends on: common.cuh.
#pragma once

#include "trireme/kernels/cuda_plugin/common.cuh"

namespace trireme::kernels::gpu {
namespace {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define TRIREME_WGMMA 1
#endif

constexpr int kPanelColumns = 64, kRowBytes = 128;

__device__ __forceinline__ std::uint32_t shared_offset(const void* at) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(at));
}

/// Descriptor of a panel's rows: 8 rows are 1,024 bytes; `panel_bytes` from one panel to the next (MN-major only).
__device__ __forceinline__ std::uint64_t panel_descriptor(const void* at, std::uint32_t panel_bytes = 16) {
  return static_cast<std::uint64_t>(shared_offset(at) >> 4) | static_cast<std::uint64_t>(panel_bytes >> 4) << 16 |
         std::uint64_t{1024 >> 4} << 32 | std::uint64_t{1} << 62;
}

__device__ __forceinline__ void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// All but the last kLeft groups have ended.
template <int kLeft>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
}
/// Keeps the compiler from moving what uses these registers across.
template <int kCount>
__device__ __forceinline__ void hold(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// clang-format off
#define TRIREME_SUMS_8(d, n) "+f"(d[n]), "+f"(d[n + 1]), "+f"(d[n + 2]), "+f"(d[n + 3]), "+f"(d[n + 4]), "+f"(d[n + 5]), "+f"(d[n + 6]), "+f"(d[n + 7])
#define TRIREME_SUMS_32(d, n) TRIREME_SUMS_8(d, n), TRIREME_SUMS_8(d, n + 8), TRIREME_SUMS_8(d, n + 16), TRIREME_SUMS_8(d, n + 24)
#define TRIREME_SUMS_64(d) TRIREME_SUMS_32(d, 0), TRIREME_SUMS_32(d, 32)
#define TRIREME_NAMES_32 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define TRIREME_NAMES_64 TRIREME_NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
// clang-format on

/// d [64, kN] = (add ? d : 0) + a [64, 16] b [16, kN]; both in shared memory, K-major.
template <typename T, int kN>
__device__ __forceinline__ void wgmma_shared(float (&d)[kN / 2], std::uint64_t a, std::uint64_t b, bool add) {
  static_assert(kN == 64 || kN == 128);
#define TRIREME_WGMMA_SHARED(n, type, names, sums, at_a, at_b, at_add)                                            \
  asm volatile("{.reg .pred p; setp.ne.b32 p, " at_add ", 0; wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type \
               "." type " {" names "}, " at_a ", " at_b ", p, 1, 1, 0, 0;}"                                       \
               : sums                                                                                             \
               : "l"(a), "l"(b), "r"(static_cast<int>(add)))
#ifdef TRIREME_WGMMA
  if constexpr (kN == 64 && __is_same(T, Bf16)) {
    TRIREME_WGMMA_SHARED("64", "bf16", TRIREME_NAMES_32, TRIREME_SUMS_32(d, 0), "%32", "%33", "%34");
  } else if constexpr (kN == 64) {
    TRIREME_WGMMA_SHARED("64", "f16", TRIREME_NAMES_32, TRIREME_SUMS_32(d, 0), "%32", "%33", "%34");
  } else if constexpr (__is_same(T, Bf16)) {
    TRIREME_WGMMA_SHARED("128", "bf16", TRIREME_NAMES_64, TRIREME_SUMS_64(d), "%64", "%65", "%66");
  } else {
    TRIREME_WGMMA_SHARED("128", "f16", TRIREME_NAMES_64, TRIREME_SUMS_64(d), "%64", "%65", "%66");
  }
#endif
#undef TRIREME_WGMMA_SHARED
}

/// d [64, kN] += a [64, 16] b [16, kN]; a in registers, b in shared memory, MN-major.
template <typename T, int kN>
__device__ __forceinline__ void wgmma_registers(float (&d)[kN / 2], const std::uint32_t (&a)[4], std::uint64_t b) {
  static_assert(kN == 64 || kN == 128);
#define TRIREME_WGMMA_REGISTERS(n, type, names, sums, a0, a1, a2, a3, at_b)                                       \
  asm volatile("{.reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type \
               " {" names "}, {" a0 "," a1 "," a2 "," a3 "}, " at_b ", p, 1, 1, 1;}"                              \
               : sums                                                                                             \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#ifdef TRIREME_WGMMA
  if constexpr (kN == 64 && __is_same(T, Bf16)) {
    TRIREME_WGMMA_REGISTERS("64", "bf16", TRIREME_NAMES_32, TRIREME_SUMS_32(d, 0), "%32", "%33", "%34", "%35", "%36");
  } else if constexpr (kN == 64) {
    TRIREME_WGMMA_REGISTERS("64", "f16", TRIREME_NAMES_32, TRIREME_SUMS_32(d, 0), "%32", "%33", "%34", "%35", "%36");
  } else if constexpr (__is_same(T, Bf16)) {
    TRIREME_WGMMA_REGISTERS("128", "bf16", TRIREME_NAMES_64, TRIREME_SUMS_64(d), "%64", "%65", "%66", "%67", "%68");
  } else {
    TRIREME_WGMMA_REGISTERS("128", "f16", TRIREME_NAMES_64, TRIREME_SUMS_64(d), "%64", "%65", "%66", "%67", "%68");
  }
#endif
#undef TRIREME_WGMMA_REGISTERS
}

/// The 16 bytes number `chunk` of a row, swizzled, in a matrix of kRows rows and any number of panels.
template <int kRows>
__device__ __forceinline__ std::uint32_t swizzled(int row, int chunk) {
  return static_cast<std::uint32_t>(chunk / 8 * (kRows * kRowBytes) + row * kRowBytes + ((chunk % 8) ^ (row % 8)) * 16);
}

/// 16 bytes to shared memory, or zeros; not waited for.
__device__ __forceinline__ void copy16(std::uint32_t to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}
__device__ __forceinline__ void copy4(std::uint32_t to, const void* from, bool there) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(there ? 4 : 0) : "memory");
}
__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// This thread's copies are there, and wgmma will see them behind the next barrier.
__device__ __forceinline__ void copies_wait() {
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  fence_async();
}

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace
}  // namespace trireme::kernels::gpu
