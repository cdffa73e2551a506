// Graphs: what a thread starts on the GPU is recorded on a stream of its own, with memory that stays where it is, and
// is then started again in one go.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime.h>

#include <atomic>
#include <optional>
#include <string>

#include "trireme/kernels/cuda_plugin/functions.h"

namespace trireme::kernels::gpu {
namespace {

CudaError words(cudaError_t error) { return error == cudaSuccess ? nullptr : cudaGetErrorString(error); }

struct Graph {
  c10::DeviceIndex device = 0;
  c10::MempoolId_t pool;
  std::optional<c10::cuda::CUDAStream> before;  // the thread's, while it records
  cudaGraphExec_t exec = nullptr;

  ~Graph() {
    if (exec != nullptr) cudaGraphExecDestroy(exec);
    if (pool.second != 0) c10::cuda::CUDACachingAllocator::releasePool(device, pool);
  }
};

/// Pools of graphs have their number in the second place, as the tensor library's own have; ours begin far away.
c10::MempoolId_t new_pool() {
  static std::atomic<unsigned long long> next{1ULL << 40};
  return {0, next.fetch_add(1)};
}

}  // namespace

CudaError graph_begin(void** out) try {
  auto* graph = new Graph;
  *out = graph;
  graph->before = c10::cuda::getCurrentCUDAStream();
  graph->device = graph->before->device_index();
  graph->pool = new_pool();
  // What was cached for steps before is not used again: the graph has memory of its own.
  if (CudaError error = words(cudaDeviceSynchronize())) return error;
  c10::cuda::CUDACachingAllocator::emptyCache();
  const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool(/*isHighPriority=*/false, graph->device);
  c10::cuda::setCurrentCUDAStream(stream);
  const cudaStream_t raw = stream.stream();
  c10::cuda::CUDACachingAllocator::beginAllocateToPool(graph->device, graph->pool,
                                                       [raw](cudaStream_t other) { return other == raw; });
  return words(cudaStreamBeginCapture(raw, cudaStreamCaptureModeThreadLocal));
} catch (const std::exception& error) {
  static thread_local std::string text;
  text = error.what();
  return text.c_str();
}

CudaError graph_end(void* opaque, bool keep) {
  auto* graph = static_cast<Graph*>(opaque);
  cudaGraph_t recorded = nullptr;
  cudaError_t error = cudaStreamEndCapture(c10::cuda::getCurrentCUDAStream().stream(), &recorded);
  c10::cuda::CUDACachingAllocator::endAllocateToPool(graph->device, graph->pool);
  c10::cuda::setCurrentCUDAStream(*graph->before);
  if (error == cudaSuccess && keep) error = cudaGraphInstantiate(&graph->exec, recorded, 0);
  if (recorded != nullptr) cudaGraphDestroy(recorded);
  return words(error);
}

CudaError graph_launch(void* opaque, CudaStream stream) {
  return words(cudaGraphLaunch(static_cast<Graph*>(opaque)->exec, static_cast<cudaStream_t>(stream)));
}

void graph_free(void* opaque) { delete static_cast<Graph*>(opaque); }

}  // namespace trireme::kernels::gpu
