// tests/comm/fake_nccl/fake_gpu.h -- a stand-in for the CUDA runtime: streams are threads that do what they are given
// in order, on host memory; events, graphs and counters behave as CUDA's do.
//
// Lives in libfake_nccl.so together with the stand-in for NCCL, whose "kernels" run on these streams. Tests load the
// library by its path; the product knows nothing of it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "trireme/device/cuda_runtime.h"

namespace trireme::fake {

/// What a stream is given.
using Task = std::function<void()>;
void enqueue(device::CudaStream stream, Task task);
/// The calling thread's.
int current_gpu();

/// Runs what one GPU is given for other GPUs one at a time, in the order given, as a GPU without room for two kernels
/// of NCCL would: orders that differ between ranks hang.
class Turn {
 public:
  explicit Turn(int gpu);
  /// Waits until all that was given before is over, or `given_up` is set.
  void wait(const std::atomic<bool>& given_up) const;
  void finish() const;

 private:
  int gpu_;
  std::uint64_t number_;
};

/// What tests do with it besides what the transport does.
struct Gpu {
  device::CudaRuntime cuda;
  /// Until the calling thread's stream has done all that it was given.
  void (*synchronise)();
  /// Writes `value` into every byte, in order on the calling thread's stream, after so many milliseconds.
  void (*fill)(void* data, std::size_t bytes, int value, int after_ms);
  /// Copies in order on the calling thread's stream.
  void (*copy)(void* to, const void* from, std::size_t bytes);
};
/// How the stand-in for NCCL misbehaves, on this process's ranks.
struct Misbehaviour {
  int rank = -1;                 // of the communicator; -1: every one
  int init_result = 0;           // of making a communicator
  bool init_hangs = false;       // making a communicator never ends
  int call_result = 0;           // of giving it a call
  int later_result = 0;          // found by ncclCommGetAsyncError once a call was given
  std::uint64_t hangs_from = 0;  // calls of a communicator from this number on (from 1) never end; 0: none
  int slow_ms = 0;               // every call takes so much longer
};
/// What the stand-in has been asked for, by all ranks of this process.
struct Usage {
  std::uint64_t communicators = 0, destroyed = 0, aborted = 0, registered = 0, deregistered = 0, calls = 0;
};

extern "C" {
__attribute__((visibility("default"))) const Gpu* trireme_fake_gpu();
__attribute__((visibility("default"))) void trireme_fake_nccl_misbehave(const Misbehaviour* how);
__attribute__((visibility("default"))) Usage trireme_fake_nccl_usage();
}

}  // namespace trireme::fake
