// device/copy.h -- asynchronous copies between a device and pinned host memory, beside what the device computes.
//
// On a GPU they run on two side streams, one each way. A copy begins when all that this thread's current stream has
// been given so far is done: what it reads is written then, and what it writes is read no more. The tensors of a copy
// stay alive until it has ended, or, those on the device, until the current stream waits for it. "Device" and host may
// both be this machine's memory: then a thread copies.
// Depends on: base (queue_meter), stream.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "trireme/base/queue_meter.h"
#include "trireme/device/cuda_runtime.h"

namespace trireme::device {

class HostCopies {
 public:
  using Copy = std::uint64_t;  ///< numbers from 1; 0 is over from the beginning

  static std::unique_ptr<HostCopies> make(c10::Device device);
  /// On the streams of `runtime`, which is borrowed, whatever kind of device it is.
  static std::unique_ptr<HostCopies> make_on_streams(c10::Device device, const CudaRuntime& runtime);
  virtual ~HostCopies() = default;
  HostCopies() = default;
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  /// Host memory, pinned for a GPU, for a tensor like this one, contents undefined. It may outlive this object.
  virtual at::Tensor empty_on_host(const at::Tensor& like) = 0;
  /// Memory of the device for a tensor that is on the host.
  virtual at::Tensor empty_on_device(const at::Tensor& on_host) = 0;
  /// As many elements of the same type; `to` is empty_on_host()'s.
  virtual Copy to_host(at::Tensor from, at::Tensor to) = 0;
  /// From the host, where nobody writes until it has ended.
  virtual Copy to_device(at::Tensor from, at::Tensor to) = 0;
  /// What this thread's current stream is given from now on runs after the copy. The thread itself does not wait for a
  /// GPU.
  virtual void make_stream_wait(Copy copy) = 0;
  /// The calling thread, any thread, waits for it.
  virtual void wait(Copy copy) = 0;
  virtual bool is_done(Copy copy) = 0;
  /// Copies, from when they are asked for until they are over; of a GPU's, until a call of this object finds them over,
  /// this one among them. Who stands still for them is the caller's to measure.
  virtual QueueReading queue() = 0;
  /// Pinned bytes, in use or cached for later.
  virtual std::int64_t pinned_bytes() const = 0;
};

}  // namespace trireme::device
