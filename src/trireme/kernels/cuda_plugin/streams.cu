// Streams, events and marks, for those who give the GPU work that others wait for: comm/gpu_driver.h.
#include <cuda_runtime.h>

#include <cstring>

#include "trireme/kernels/cuda_plugin/common.cuh"
#include "trireme/kernels/cuda_plugin/functions.h"

namespace trireme::kernels::gpu {
namespace {

CudaError words(cudaError_t error) { return error == cudaSuccess ? nullptr : cudaGetErrorString(error); }

/// Host memory is written past the GPU's caches; only one stream at a time counts a word, in order.
__global__ void count_one(volatile unsigned long long* word) {
  *word = *word + 1;
  __threadfence_system();
}

cudaStream_t raw(CudaStream stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t raw_event(void* event) { return static_cast<cudaEvent_t>(event); }

CudaError use(int gpu) {
  int now = -1;
  if (cudaGetDevice(&now) == cudaSuccess && now == gpu) return nullptr;
  return words(cudaSetDevice(gpu));
}

CudaError is_recording(CudaStream stream, bool* answer) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t error = cudaStreamIsCapturing(raw(stream), &status);
  *answer = status != cudaStreamCaptureStatusNone;
  return words(error);
}

CudaError make_stream(CudaStream* stream) {
  int least = 0, greatest = 0;
  if (CudaError error = words(cudaDeviceGetStreamPriorityRange(&least, &greatest))) return error;
  // "Non-blocking": it does not wait for the default stream, where the tensor library computes, but where told to.
  return words(cudaStreamCreateWithPriority(reinterpret_cast<cudaStream_t*>(stream), cudaStreamNonBlocking, greatest));
}
void free_stream(CudaStream stream) { cudaStreamDestroy(raw(stream)); }

CudaError make_event(void** event) {
  return words(cudaEventCreateWithFlags(reinterpret_cast<cudaEvent_t*>(event), cudaEventDisableTiming));
}
void free_event(void* event) { cudaEventDestroy(raw_event(event)); }
CudaError record(void* event, CudaStream stream) { return words(cudaEventRecord(raw_event(event), raw(stream))); }
CudaError wait(CudaStream stream, void* event) { return words(cudaStreamWaitEvent(raw(stream), raw_event(event), 0)); }

CudaError copy_bytes(void* to, const void* from, std::size_t bytes, CudaStream stream) {
  return words(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, raw(stream)));
}

CudaError make_words(std::size_t count, std::uint64_t** on_host, std::uint64_t** on_gpu) {
  void *host = nullptr, *device = nullptr;
  if (CudaError error = words(cudaHostAlloc(&host, count * sizeof(std::uint64_t), cudaHostAllocMapped))) return error;
  std::memset(host, 0, count * sizeof(std::uint64_t));
  if (CudaError error = words(cudaHostGetDevicePointer(&device, host, 0))) {
    cudaFreeHost(host);
    return error;
  }
  *on_host = static_cast<std::uint64_t*>(host);
  *on_gpu = static_cast<std::uint64_t*>(device);
  return nullptr;
}
void free_words(std::uint64_t* on_host) { cudaFreeHost(on_host); }

CudaError mark(std::uint64_t* on_gpu, CudaStream stream) {
  count_one<<<1, 1, 0, raw(stream)>>>(reinterpret_cast<volatile unsigned long long*>(on_gpu));
  return launched();
}

/// The same for one GPU whatever number it has in this process.
CudaError identity(int gpu, char id[16]) {
  cudaDeviceProp properties{};
  if (CudaError error = words(cudaGetDeviceProperties(&properties, gpu))) return error;
  std::memcpy(id, properties.uuid.bytes, 16);
  return nullptr;
}

}  // namespace

const CudaStreams kStreams = {.use = use,
                              .is_recording = is_recording,
                              .make_stream = make_stream,
                              .free_stream = free_stream,
                              .make_event = make_event,
                              .free_event = free_event,
                              .record = record,
                              .wait = wait,
                              .copy = copy_bytes,
                              .make_words = make_words,
                              .free_words = free_words,
                              .mark = mark,
                              .identity = identity};

}  // namespace trireme::kernels::gpu
