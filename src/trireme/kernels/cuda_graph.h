// kernels/cuda_graph.h -- a stretch of work on a GPU, recorded once and started again in one go.
//
// Starting a kernel costs the host some microseconds and the GPU one or two of waiting for the next; a recorded graph
// of hundreds costs about one start. While it is recorded nothing runs, and nothing may wait for the GPU. Tensors made
// inside live in memory that the graph keeps: they hold the last replay's numbers, at the same addresses.
// Depends on: base.
#pragma once

#include <functional>

namespace trireme::kernels {

class CudaGraph {
 public:
  /// Records what `body` starts on this thread's stream. Throws what body throws, or an Error where something in it
  /// cannot be recorded.
  explicit CudaGraph(const std::function<void()>& body);
  ~CudaGraph();
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;
  /// Starts all of it, after what this thread has started before.
  void replay();

 private:
  void* graph_ = nullptr;
};

}  // namespace trireme::kernels
