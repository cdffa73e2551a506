// device/stream.h -- CUDA streams, the events that order them, and graphs of what they are given.
//
// A stream runs what it is given in order; different streams run side by side except where one waits for an event of
// another. Computing goes to the current stream of the thread, which is the tensor library's.
// Depends on: cuda.h.
#pragma once

#include <functional>

#include "trireme/device/cuda.h"

namespace trireme::device {

/// The calling thread's current stream on its GPU.
inline CudaStream cuda_stream() { return cuda_runtime().current_stream(); }
/// Whether what the calling thread launches is being captured into a graph.
bool cuda_capturing();

/// A point in a stream: other streams and the host can wait for it.
class CudaEvent {
 public:
  explicit CudaEvent(CudaEventKind kind = kEventBlockingSync, const CudaRuntime& runtime = cuda_runtime());
  ~CudaEvent();
  CudaEvent(CudaEvent&& other) noexcept;
  CudaEvent& operator=(CudaEvent&&) = delete;

  /// Behind what the current stream, or this one, was given so far.
  void record() { record(runtime_->current_stream()); }
  void record(CudaStream stream);
  /// The stream runs what it is given from now on after the event; the host does not wait.
  void make_wait(CudaStream stream) const;
  /// Whether the GPU has come there.
  bool is_reached() const;
  /// Until the GPU has come there.
  void synchronise() const;
  /// Between two kEventTiming events that the GPU has come to.
  double seconds_since(const CudaEvent& begin) const;

 private:
  const CudaRuntime* runtime_;
  CudaEventHandle event_ = nullptr;
};

/// A stream of its own beside the current one. It waits for nothing but events.
class SideStream {
 public:
  explicit SideStream(CudaStreamPriority priority = kPriorityNormal, const CudaRuntime& runtime = cuda_runtime());
  ~SideStream();
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;
  CudaStream get() const { return stream_; }

 private:
  const CudaRuntime* runtime_;
  CudaStream stream_ = nullptr;
};

/// A CUDA graph: work of a GPU that is captured once and replayed with one launch.
///
/// Launching a kernel costs the host some microseconds and the GPU one or two of waiting for the next; replaying a
/// graph of hundreds costs about one launch. While it is captured nothing runs, and nothing may wait for the GPU.
/// Tensors allocated inside lie in a memory pool of the graph: they hold the last replay's values, at the same
/// addresses.
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
