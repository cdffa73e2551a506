// The table of libtrireme_cuda, and the tensor library's current stream.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime.h>

#include "trireme/kernels/cuda_plugin/functions.h"

namespace trireme::kernels {
namespace {

CudaStream current_stream() { return c10::cuda::getCurrentCUDAStream().stream(); }

std::int64_t peak_bytes(int device) {
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(static_cast<c10::DeviceIndex>(device));
  return stats.allocated_bytes[0].peak;  // of all pools
}
void forget_peak(int device) { c10::cuda::CUDACachingAllocator::resetPeakStats(static_cast<c10::DeviceIndex>(device)); }

CudaError host_allocate(void** data, std::int64_t bytes) {
  const cudaError_t error = cudaHostAlloc(data, static_cast<std::size_t>(bytes), cudaHostAllocPortable);
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
void host_free(void* data) { cudaFreeHost(data); }

std::int64_t driver_allocations(int device) {
  return c10::cuda::CUDACachingAllocator::getDeviceStats(static_cast<c10::DeviceIndex>(device)).num_device_alloc;
}
void device_bytes(int device, std::int64_t* all, std::int64_t* free) {
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
  std::size_t now = 0, total = 0;
  if (cudaMemGetInfo(&now, &total) != cudaSuccess) now = total = 0;
  *all = static_cast<std::int64_t>(total), *free = static_cast<std::int64_t>(now);
}

constexpr CudaKernels kKernels = {.version = kCudaKernelsVersion,
                                  .current_stream = current_stream,
                                  .peak_bytes = peak_bytes,
                                  .forget_peak = forget_peak,
                                  .probe = gpu::probe,
                                  .norm_forward = gpu::norm_forward,
                                  .norm_backward = gpu::norm_backward,
                                  .activation_forward = gpu::activation_forward,
                                  .activation_backward = gpu::activation_backward,
                                  .gated_forward = gpu::gated_forward,
                                  .gated_backward = gpu::gated_backward,
                                  .cross_entropy = gpu::cross_entropy,
                                  .dropout = gpu::dropout,
                                  .embedding_forward = gpu::embedding_forward,
                                  .embedding_backward = gpu::embedding_backward,
                                  .rotary = gpu::rotary,
                                  .sum_rows = gpu::sum_rows,
                                  .sgd = gpu::sgd,
                                  .adagrad = gpu::adagrad,
                                  .adam = gpu::adam,
                                  .lamb = gpu::lamb,
                                  .apply = gpu::apply,
                                  .lars = gpu::lars,
                                  .squares = gpu::squares,
                                  .attention_forward = gpu::attention_forward,
                                  .attention_backward = gpu::attention_backward,
                                  .cudnn_ready = gpu::cudnn_ready,
                                  .cudnn_plan = gpu::cudnn_plan,
                                  .cudnn_run = gpu::cudnn_run,
                                  .copy = gpu::copy,
                                  .fold = gpu::fold,
                                  .graph_begin = gpu::graph_begin,
                                  .graph_end = gpu::graph_end,
                                  .graph_launch = gpu::graph_launch,
                                  .graph_free = gpu::graph_free,
                                  .fp8 = gpu::fp8,
                                  .fp8_gated_backward = gpu::fp8_gated_backward,
                                  .slice_values = gpu::slice_values,
                                  .slice_gradients = gpu::slice_gradients,
                                  .streams = &gpu::kStreams,
                                  .host_allocate = host_allocate,
                                  .host_free = host_free,
                                  .driver_allocations = driver_allocations,
                                  .device_bytes = device_bytes,
                                  .tuning_key = gpu::tuning_key,
                                  .gemm_algorithms = gpu::gemm_algorithms,
                                  .gemm_fits = gpu::gemm_fits,
                                  .gemm = gpu::gemm,
                                  .event_new = gpu::event_new,
                                  .event_record = gpu::event_record,
                                  .event_wait = gpu::event_wait,
                                  .event_seconds = gpu::event_seconds,
                                  .event_free = gpu::event_free,
                                  .capturing = gpu::capturing,
                                  .set_numbers = gpu::set_numbers,
                                  .decide = gpu::decide,
                                  .fp8_advance = gpu::fp8_advance};

}  // namespace

const CudaKernels* trireme_cuda_kernels() { return &kKernels; }

}  // namespace trireme::kernels
