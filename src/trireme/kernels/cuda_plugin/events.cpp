// Marks on streams: when the GPU came to a place, and how long it took.
#include <cuda_runtime.h>

#include "trireme/kernels/cuda_plugin/functions.h"

namespace trireme::kernels::gpu {
namespace {

CudaError words(cudaError_t error) { return error == cudaSuccess ? nullptr : cudaGetErrorString(error); }
cudaEvent_t to_event(void* event) { return static_cast<cudaEvent_t>(event); }

}  // namespace

CudaError event_new(void** event, bool timed) {
  cudaEvent_t made = nullptr;
  // Waiting sleeps: a core that spins is one less for the threads that read data and write checkpoints.
  const cudaError_t error =
      cudaEventCreateWithFlags(&made, timed ? cudaEventDefault : cudaEventDisableTiming | cudaEventBlockingSync);
  *event = made;
  return words(error);
}

CudaError event_record(void* event, CudaStream stream) {
  return words(cudaEventRecord(to_event(event), static_cast<cudaStream_t>(stream)));
}

CudaError event_wait(void* event) { return words(cudaEventSynchronize(to_event(event))); }

CudaError event_seconds(void* begin, void* end, double* seconds) {
  float ms = 0;
  const cudaError_t error = cudaEventElapsedTime(&ms, to_event(begin), to_event(end));
  *seconds = static_cast<double>(ms) * 1e-3;
  return words(error);
}

void event_free(void* event) {
  if (event != nullptr) cudaEventDestroy(to_event(event));
}

bool capturing(CudaStream stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status) != cudaSuccess) return false;
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace trireme::kernels::gpu
