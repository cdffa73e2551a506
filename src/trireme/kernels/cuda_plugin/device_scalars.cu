// What an update in a captured step is given: the numbers that change from step to step lie in device memory, where
// the norm decides on clipping and on whether there is an update at all.
#include "trireme/kernels/cuda_plugin/common.cuh"
#include "trireme/kernels/cuda_plugin/functions.h"

namespace trireme::kernels::gpu {
namespace {

constexpr int kThreads = 256;

__global__ void write_numbers(double* to, double a, double b, double c, double d) {
  to[0] = a;
  to[1] = b;
  to[2] = c;
  to[3] = d;
}

/// Every operation is one that IEEE 754 rounds, in the order of optim/update.cpp and kernels/update.cpp: the bits are
/// the host's.
__global__ void __launch_bounds__(kThreads) clip_grad_norm_kernel(const CudaClipGradNorm c) {
  __shared__ double held[kThreads];
  __shared__ double scale;
  __shared__ bool taken;
  double sum = 0;
  for (std::int64_t begin = 0; begin < c.tensors; begin += kThreads) {
    const std::int64_t count = min(c.tensors - begin, static_cast<std::int64_t>(kThreads));
    __syncthreads();
    if (threadIdx.x < count) held[threadIdx.x] = c.squares[begin + threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) {
      for (std::int64_t i = 0; i < count; ++i) sum = __dadd_rn(sum, held[i]);
    }
  }
  if (threadIdx.x == 0) {
    const double norm = __dmul_rn(__dsqrt_rn(sum), fabs(c.numbers[1]));
    const double clip = c.clip > 0 && norm > c.clip ? __ddiv_rn(c.clip, norm) : 1.0;
    taken = isfinite(norm) && (c.loss == nullptr || isfinite(*c.loss)) && c.result[3] == 0;
    scale = __dmul_rn(c.numbers[1], clip);
    c.result[0] = norm;
    c.result[1] = clip;
    c.result[2] = taken ? 1 : 0;
    // Until the host has seen it no later step changes anything either: weights stay those before the bad step.
    if (!taken) c.result[3] = 1;
  }
  __syncthreads();
  for (std::int64_t i = threadIdx.x; i < c.tensors; i += kThreads) {
    const double rate = __dmul_rn(c.numbers[0], c.factors[i]);
    c.device_scalars[i] = {.gradient_scale = scale,
                           .rate = __ddiv_rn(rate, c.numbers[2]),
                           .root = c.numbers[3],
                           .weight_decay = __dmul_rn(rate, c.factors[c.tensors + i]),
                           .taken = taken ? 1 : 0};
  }
}

}  // namespace

CudaError set_step_scalars(double* to, double a, double b, double c, double d, CudaStream stream) {
  write_numbers<<<1, 1, 0, to_stream(stream)>>>(to, a, b, c, d);
  return launched();
}

CudaError clip_grad_norm(const CudaClipGradNorm& c, CudaStream stream) {
  clip_grad_norm_kernel<<<1, kThreads, 0, to_stream(stream)>>>(c);
  return launched();
}

}  // namespace trireme::kernels::gpu
