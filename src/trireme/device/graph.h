// device/graph.h -- a CUDA graph: work of a GPU that is captured once and replayed with one launch.
//
// Launching a kernel costs the host some microseconds and the GPU one or two of waiting for the next; replaying a graph
// of hundreds costs about one launch. While it is captured nothing runs, and nothing may wait for the GPU. Tensors
// allocated inside lie in a memory pool of the graph: they hold the last replay's values, at the same addresses.
// Depends on: cuda.h.
#pragma once

#include <functional>

#include "trireme/device/cuda.h"

namespace trireme::device {

class CudaGraph {
 public:
  /// Captures what `body` launches on this thread's stream. Throws what body throws, or an Error where something in it
  /// cannot be captured.
  explicit CudaGraph(const std::function<void()>& body, const CudaRuntime& runtime = cuda_runtime());
  ~CudaGraph();
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;
  /// Launches all of it, after what this thread's stream was given before.
  void replay();

 private:
  const CudaRuntime& runtime_;
  void* graph_ = nullptr;
};

}  // namespace trireme::device
