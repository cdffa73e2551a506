// kernels/cuda_event.h -- a mark in what this thread has started on a GPU, which the host can wait for.
//
// Depends on: base.
#pragma once

namespace trireme::kernels {

class CudaEvent {
 public:
  CudaEvent();
  ~CudaEvent();
  CudaEvent(CudaEvent&& other) noexcept;
  CudaEvent& operator=(CudaEvent&&) = delete;

  /// Behind what was started so far.
  void record();
  /// Until the GPU has come there.
  void wait();

 private:
  void* event_ = nullptr;
};

}  // namespace trireme::kernels
