// kernels/host_copies.h -- copies between a device and host memory that run beside what the device computes.
//
// On a GPU they run on two streams of their own, one each way, from and into page-locked memory. A copy begins when all
// that this thread has given the device so far is done: what it reads is written then, and what it writes is read no
// more. The tensors of a copy stay alive until it has ended, or, those on the device, until computing waits for it.
// "Device" and host may both be this machine's memory: then a thread copies.
// Depends on: base, cuda_table.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

namespace trireme::kernels {

class HostCopies {
 public:
  using Copy = std::uint64_t;  ///< numbers from 1; 0 is over from the beginning

  static std::unique_ptr<HostCopies> make(c10::Device device);
  virtual ~HostCopies() = default;
  HostCopies() = default;
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  /// Host memory for a tensor like this one, contents undefined. It may outlive this object.
  virtual at::Tensor room_on_host(const at::Tensor& like) = 0;
  /// Memory of the device for a tensor that is on the host.
  virtual at::Tensor room_on_device(const at::Tensor& on_host) = 0;
  /// From the device to the host. As many numbers of the same type; `to` is room_on_host()'s.
  virtual Copy out(at::Tensor from, at::Tensor to) = 0;
  /// From the host, where nobody writes until it has ended, to the device.
  virtual Copy in(at::Tensor from, at::Tensor to) = 0;
  /// What this thread gives the device from now on runs after the copy. The thread itself does not wait for a GPU.
  virtual void before_compute(Copy copy) = 0;
  /// The calling thread, any thread, waits for it.
  virtual void wait(Copy copy) = 0;
  virtual bool ended(Copy copy) = 0;
  /// Page-locked bytes, in use or kept for later.
  virtual std::int64_t locked_bytes() const = 0;
};

}  // namespace trireme::kernels
