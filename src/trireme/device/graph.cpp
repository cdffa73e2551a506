#include "trireme/device/graph.h"

namespace trireme::device {

CudaGraph::CudaGraph(const std::function<void()>& body, const CudaRuntime& runtime) : runtime_(runtime) {
  const CudaError begun = runtime_.begin_capture(&graph_);
  try {
    check_cuda(begun, "beginning to capture a CUDA graph");
    body();
  } catch (...) {
    if (begun == nullptr) runtime_.end_capture(graph_, /*instantiate=*/false);
    runtime_.destroy_graph(graph_);
    throw;
  }
  if (const CudaError error = runtime_.end_capture(graph_, /*instantiate=*/true)) {
    runtime_.destroy_graph(graph_);
    check_cuda(error, "capturing a CUDA graph");
  }
}

CudaGraph::~CudaGraph() { runtime_.destroy_graph(graph_); }

void CudaGraph::replay() {
  check_cuda(runtime_.launch_graph(graph_, runtime_.current_stream()), "replaying a CUDA graph");
}

}  // namespace trireme::device
