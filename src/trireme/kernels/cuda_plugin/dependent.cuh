// kernels/cuda_plugin/dependent.cuh -- kernels that follow one another closely (programmatic dependent launch), and the
// tensor cores' smallest step.
//
// A decode step is hundreds of kernels of a few microseconds. Launched as dependents, a kernel's thread blocks come to
// their SMs while the one before still runs, and wait there for its results: what does not depend on them, such as
// weights, can be on its way already. Captured in a CUDA graph the same holds at every replay.
#pragma once

#include "trireme/kernels/cuda_plugin/common.cuh"

namespace trireme::kernels::gpu {

/// From here on everything that kernels before this one wrote is there.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// The next kernel's blocks may come, once every block of this one has said so.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Cards before Hopper launch it the plain way.
inline bool launches_dependents() {
  static const bool answer = [] {
    int gpu = 0, major = 0;
    cudaGetDevice(&gpu);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, gpu);
    return major >= 9;
  }();
  return answer;
}

template <typename... Params, typename... Given>
CudaError launch_dependent(void (*kernel)(Params...), dim3 grid, dim3 threads, std::size_t shared, CudaStream stream,
                           Given&&... given) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = threads;
  config.dynamicSmemBytes = shared;
  config.stream = to_stream(stream);
  config.attrs = &attribute;
  config.numAttrs = launches_dependents() ? 1 : 0;
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, Params(given)...);
  return error == cudaSuccess ? launched() : cudaGetErrorString(error);
}

/// d [16, 8] = a [16, 16] b [16, 8] + d, in float. Lane 4 g + c holds of a: rows g and g + 8, columns 2c, 2c + 1 and 8
/// more; of b: column g, rows 2c, 2c + 1 and 8 more; of d: rows g and g + 8, columns 2c and 2c + 1.
template <typename T>
__device__ __forceinline__ void mma(float (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                    std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
  if constexpr (__is_same(T, Bf16)) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, "
        "%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}
/// The same where rows 8 to 15 of a are zero, and nobody asks for theirs of d.
template <typename T>
__device__ __forceinline__ void mma_upper(float (&d)[2], std::uint32_t a0, std::uint32_t a2, std::uint32_t b0,
                                          std::uint32_t b1) {
  if constexpr (__is_same(T, Bf16)) {
    asm volatile(
        "{\n.reg .f32 x, y;\n"
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, x, y}, {%2, %6, %3, %6}, {%4, %5}, {%0, %1, %7, "
        "%7};\n"
        "}"
        : "+f"(d[0]), "+f"(d[1])
        : "r"(a0), "r"(a2), "r"(b0), "r"(b1), "r"(0), "f"(0.0F));
  } else {
    asm volatile(
        "{\n.reg .f32 x, y;\n"
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, x, y}, {%2, %6, %3, %6}, {%4, %5}, {%0, %1, %7, "
        "%7};\n"
        "}"
        : "+f"(d[0]), "+f"(d[1])
        : "r"(a0), "r"(a2), "r"(b0), "r"(b1), "r"(0), "f"(0.0F));
  }
}

/// 16 bytes that are read once: they do not push anything out of the cache.
__device__ __forceinline__ uint4 load_once(const void* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

}  // namespace trireme::kernels::gpu
