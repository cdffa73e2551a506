#include "trireme/device/stream.h"

#include <utility>

namespace trireme::device {

bool cuda_capturing() {
  bool answer = false;
  return cuda_runtime().is_capturing(cuda_stream(), &answer) == nullptr && answer;
}

CudaEvent::CudaEvent(CudaEventKind kind, const CudaRuntime& runtime) : runtime_(&runtime) {
  check_cuda(runtime_->create_event(&event_, kind), "creating an event");
}

CudaEvent::~CudaEvent() {
  if (event_ != nullptr) runtime_->destroy_event(event_);
}

CudaEvent::CudaEvent(CudaEvent&& other) noexcept
    : runtime_(other.runtime_), event_(std::exchange(other.event_, nullptr)) {}

void CudaEvent::record(CudaStream stream) { check_cuda(runtime_->record_event(event_, stream), "recording an event"); }

void CudaEvent::make_wait(CudaStream stream) const {
  check_cuda(runtime_->stream_wait_event(stream, event_), "a stream's wait for an event");
}

bool CudaEvent::is_reached() const {
  bool reached = false;
  check_cuda(runtime_->query_event(event_, &reached), "querying an event");
  return reached;
}

void CudaEvent::synchronise() const { check_cuda(runtime_->synchronize_event(event_), "waiting for an event"); }

double CudaEvent::seconds_since(const CudaEvent& begin) const {
  double seconds = 0;
  check_cuda(runtime_->event_elapsed_seconds(begin.event_, event_, &seconds), "the time between two events");
  return seconds;
}

SideStream::SideStream(CudaStreamPriority priority, const CudaRuntime& runtime) : runtime_(&runtime) {
  check_cuda(runtime_->create_stream(&stream_, priority), "creating a stream");
}

SideStream::~SideStream() { runtime_->destroy_stream(stream_); }

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
