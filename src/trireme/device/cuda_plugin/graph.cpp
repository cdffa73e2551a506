// CUDA graphs: what a thread launches is captured on a stream of its own, with memory that stays where it is.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <atomic>
#include <optional>
#include <string>

#include "trireme/device/cuda_plugin/functions.h"

namespace trireme::device::gpu {
namespace {

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

}  // namespace

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

}  // namespace trireme::device::gpu
