#include "trireme/kernels/cuda_graph.h"

#include "trireme/kernels/cuda.h"

namespace trireme::kernels {

CudaGraph::CudaGraph(const std::function<void()>& body) {
  const CudaError begun = cuda().graph_begin(&graph_);
  try {
    check_cuda(begun, "recording a graph");
    body();
  } catch (...) {
    if (begun == nullptr) cuda().graph_end(graph_, /*keep=*/false);
    cuda().graph_free(graph_);
    throw;
  }
  if (const CudaError error = cuda().graph_end(graph_, /*keep=*/true)) {
    cuda().graph_free(graph_);
    check_cuda(error, "recording a graph");
  }
}

CudaGraph::~CudaGraph() { cuda().graph_free(graph_); }

void CudaGraph::replay() { check_cuda(cuda().graph_launch(graph_, cuda_stream()), "a recorded graph"); }

}  // namespace trireme::kernels
