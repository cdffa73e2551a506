// device/stream.h -- CUDA streams and the events that order them.
//
// A stream runs what it is given in order; different streams run side by side except where one waits for an event of
// another. Computing goes to the current stream of the thread, which is the tensor library's.
// Depends on: cuda.h.
#pragma once

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

}  // namespace trireme::device
