// The runtime's table of libtrireme_cuda: CUDA's runtime, and the tensor library's streams and caching allocator.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <atomic>
#include <cstring>
#include <optional>
#include <string>

#include "trireme/device/cuda_plugin/functions.h"

namespace trireme::device {
namespace {

using gpu::error_of;

cudaStream_t to_stream(CudaStream stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t to_event(CudaEventHandle event) { return static_cast<cudaEvent_t>(event); }
c10::DeviceIndex to_index(int gpu) { return static_cast<c10::DeviceIndex>(gpu); }

// --- devices

CudaError set_device(int gpu) {
  int now = -1;
  if (cudaGetDevice(&now) == cudaSuccess && now == gpu) return nullptr;
  return error_of(cudaSetDevice(gpu));
}

CudaError device_uuid(int gpu, char uuid[16]) {
  cudaDeviceProp properties{};
  if (CudaError error = error_of(cudaGetDeviceProperties(&properties, gpu))) return error;
  std::memcpy(uuid, properties.uuid.bytes, 16);
  return nullptr;
}

// --- streams

CudaStream current_stream() { return c10::cuda::getCurrentCUDAStream().stream(); }

CudaError is_capturing(CudaStream stream, bool* answer) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t error = cudaStreamIsCapturing(to_stream(stream), &status);
  *answer = status != cudaStreamCaptureStatusNone;
  return error_of(error);
}

CudaError create_stream(CudaStream* stream, CudaStreamPriority priority) {
  // The normal priority is 0, the least of the range.
  int least = 0, greatest = 0;
  if (CudaError error = error_of(cudaDeviceGetStreamPriorityRange(&least, &greatest))) return error;
  cudaStream_t created = nullptr;
  // "Non-blocking": it does not wait for the default stream, where the tensor library computes, but where told to.
  const cudaError_t error =
      cudaStreamCreateWithPriority(&created, cudaStreamNonBlocking, priority == kPriorityHighest ? greatest : 0);
  *stream = created;
  return error_of(error);
}
void destroy_stream(CudaStream stream) { cudaStreamDestroy(to_stream(stream)); }

CudaError stream_wait_event(CudaStream stream, CudaEventHandle event) {
  return error_of(cudaStreamWaitEvent(to_stream(stream), to_event(event), 0));
}

// --- events

CudaError create_event(CudaEventHandle* event, CudaEventKind kind) {
  unsigned flags = cudaEventDisableTiming;
  if (kind == kEventBlockingSync) flags |= cudaEventBlockingSync;
  if (kind == kEventTiming) flags = cudaEventDefault;
  cudaEvent_t created = nullptr;
  const cudaError_t error = cudaEventCreateWithFlags(&created, flags);
  *event = created;
  return error_of(error);
}
void destroy_event(CudaEventHandle event) { cudaEventDestroy(to_event(event)); }

CudaError record_event(CudaEventHandle event, CudaStream stream) {
  return error_of(cudaEventRecord(to_event(event), to_stream(stream)));
}

CudaError query_event(CudaEventHandle event, bool* reached) {
  const cudaError_t error = cudaEventQuery(to_event(event));
  *reached = error == cudaSuccess;
  if (error != cudaErrorNotReady) return error_of(error);
  cudaGetLastError();  // an answer, which must not become the next launch's error
  return nullptr;
}

CudaError synchronize_event(CudaEventHandle event) { return error_of(cudaEventSynchronize(to_event(event))); }

CudaError event_elapsed_seconds(CudaEventHandle begin, CudaEventHandle end, double* seconds) {
  float ms = 0;
  const cudaError_t error = cudaEventElapsedTime(&ms, to_event(begin), to_event(end));
  *seconds = static_cast<double>(ms) * 1e-3;
  return error_of(error);
}

// --- graphs: what a thread launches is captured on a stream of its own, with memory that stays where it is

struct Graph {
  c10::DeviceIndex device = 0;
  c10::MempoolId_t pool;
  std::optional<c10::cuda::CUDAStream> before;  // the thread's, while it captures
  cudaGraphExec_t exec = nullptr;

  ~Graph() {
    if (exec != nullptr) cudaGraphExecDestroy(exec);
    if (pool.second != 0) c10::cuda::CUDACachingAllocator::releasePool(device, pool);
  }
};

/// Memory pools of graphs have their number in the second place, as the tensor library's own have; ours begin far away.
c10::MempoolId_t new_pool() {
  static std::atomic<unsigned long long> next{1ULL << 40};
  return {0, next.fetch_add(1)};
}

/// The thread has its stream and its memory back.
void leave(const Graph& graph) {
  c10::cuda::CUDACachingAllocator::endAllocateToPool(graph.device, graph.pool);
  c10::cuda::setCurrentCUDAStream(*graph.before);
}

CudaError begin_capture(void** out) try {
  auto* graph = new Graph;
  *out = graph;
  graph->before = c10::cuda::getCurrentCUDAStream();
  graph->device = graph->before->device_index();
  // What was cached for steps before is not used again: the graph has memory of its own.
  if (CudaError error = error_of(cudaDeviceSynchronize())) return error;
  c10::cuda::CUDACachingAllocator::emptyCache();
  const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool(/*isHighPriority=*/false, graph->device);
  c10::cuda::setCurrentCUDAStream(stream);
  const cudaStream_t raw = stream.stream();
  graph->pool = new_pool();
  c10::cuda::CUDACachingAllocator::beginAllocateToPool(graph->device, graph->pool,
                                                       [raw](cudaStream_t other) { return other == raw; });
  const CudaError error = error_of(cudaStreamBeginCapture(raw, cudaStreamCaptureModeThreadLocal));
  if (error != nullptr) leave(*graph);
  return error;
} catch (const std::exception& error) {
  static thread_local std::string text;
  text = error.what();
  return text.c_str();
}

CudaError end_capture(void* opaque, bool instantiate) {
  auto* graph = static_cast<Graph*>(opaque);
  cudaGraph_t captured = nullptr;
  cudaError_t error = cudaStreamEndCapture(c10::cuda::getCurrentCUDAStream().stream(), &captured);
  leave(*graph);
  if (error == cudaSuccess && instantiate) error = cudaGraphInstantiate(&graph->exec, captured, 0);
  if (captured != nullptr) cudaGraphDestroy(captured);
  return error_of(error);
}

CudaError launch_graph(void* opaque, CudaStream stream) {
  return error_of(cudaGraphLaunch(static_cast<Graph*>(opaque)->exec, static_cast<cudaStream_t>(stream)));
}

void destroy_graph(void* opaque) { delete static_cast<Graph*>(opaque); }

// --- copies and memory

CudaError memcpy_async(void* to, const void* from, std::size_t bytes, CudaStream stream) {
  return error_of(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, to_stream(stream)));
}

CudaError alloc_pinned(void** on_host, void** on_gpu, std::size_t bytes) {
  if (CudaError error = error_of(cudaHostAlloc(on_host, bytes, cudaHostAllocPortable | cudaHostAllocMapped))) {
    return error;
  }
  if (on_gpu == nullptr) return nullptr;
  const CudaError error = error_of(cudaHostGetDevicePointer(on_gpu, *on_host, 0));
  if (error != nullptr) cudaFreeHost(*on_host);
  return error;
}
void free_pinned(void* on_host) { cudaFreeHost(on_host); }

std::int64_t max_memory_allocated(int gpu) {
  return c10::cuda::CUDACachingAllocator::getDeviceStats(to_index(gpu)).allocated_bytes[0].peak;  // of all pools
}
void reset_peak_memory_stats(int gpu) { c10::cuda::CUDACachingAllocator::resetPeakStats(to_index(gpu)); }

std::int64_t num_device_allocs(int gpu) {
  return c10::cuda::CUDACachingAllocator::getDeviceStats(to_index(gpu)).num_device_alloc;
}

void mem_get_info(int gpu, std::int64_t* free, std::int64_t* total) {
  const c10::cuda::CUDAGuard guard(to_index(gpu));
  std::size_t now = 0, all = 0;
  if (cudaMemGetInfo(&now, &all) != cudaSuccess) now = all = 0;
  *free = static_cast<std::int64_t>(now), *total = static_cast<std::int64_t>(all);
}

constexpr CudaRuntime kRuntime = {.header = kCudaRuntimeHeader,
                                  .probe = gpu::probe,
                                  .set_device = set_device,
                                  .device_uuid = device_uuid,
                                  .current_stream = current_stream,
                                  .is_capturing = is_capturing,
                                  .create_stream = create_stream,
                                  .destroy_stream = destroy_stream,
                                  .stream_wait_event = stream_wait_event,
                                  .create_event = create_event,
                                  .destroy_event = destroy_event,
                                  .record_event = record_event,
                                  .query_event = query_event,
                                  .synchronize_event = synchronize_event,
                                  .event_elapsed_seconds = event_elapsed_seconds,
                                  .begin_capture = begin_capture,
                                  .end_capture = end_capture,
                                  .launch_graph = launch_graph,
                                  .destroy_graph = destroy_graph,
                                  .memcpy_async = memcpy_async,
                                  .alloc_pinned = alloc_pinned,
                                  .free_pinned = free_pinned,
                                  .increment = gpu::increment,
                                  .max_memory_allocated = max_memory_allocated,
                                  .reset_peak_memory_stats = reset_peak_memory_stats,
                                  .num_device_allocs = num_device_allocs,
                                  .mem_get_info = mem_get_info};

}  // namespace

const CudaRuntime* trireme_cuda_runtime() { return &kRuntime; }

}  // namespace trireme::device
