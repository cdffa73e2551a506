// parallel/host_link.h -- the way between a GPU and what a rank keeps on the host: gradients out, new weights back.
//
// Sums leave as soon as they are there, a few at a time, while backward goes on; memory that they leave from is lent
// again when they have arrived. New weights come in as each bucket's update is over, while the rest is still updated,
// and computing waits for a bucket only where a layer needs it.
// Depends on: device.
#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "trireme/device/copy.h"

namespace trireme::parallel {

class HostLink {
 public:
  using Copy = device::HostCopies::Copy;
  explicit HostLink(at::Device device) : copies_(device::HostCopies::make(device)) {}

  /// Zeros in memory that copies reach, on the host.
  at::Tensor zeros(std::int64_t elements, at::ScalarType type);

  /// `to` on the host becomes the sum, or has it added; `from` may have another type. Nobody touches either before
  /// `arrived`, which is called from a later call of this object.
  void send(const at::Tensor& from, at::Tensor to, bool add, std::function<void()> arrived = nullptr);
  /// Until all that was sent has arrived.
  void wait_for_sent();

  /// Weights on their way to the device. The host's must not change before wait_until_copied().
  Copy upload(const at::Tensor& from, const at::Tensor& to) { return last_upload_ = copies_->to_device(from, to); }
  void before_compute(Copy copy) { copies_->make_stream_wait(copy); }
  Copy last_upload() const { return last_upload_; }
  /// On any thread.
  void wait_until_copied(Copy copy) { wait(copy); }
  /// Copies under way, both ways (device/copy.h). Blocked: the thread that made this object waited for one.
  QueueReading queue();

 private:
  struct Leaving {
    Copy copy = 0;
    at::Tensor staged, to;  // staged: undefined where the copy goes to its place
    bool add = false;
    std::function<void()> arrived;
  };
  void take_oldest();
  void wait(Copy copy);

  const std::thread::id owner_ = std::this_thread::get_id();
  QueueMeter::Nanoseconds blocked_ = 0;  // touched by the owner alone
  std::deque<Leaving> leaving_;
  Copy last_upload_ = 0;
  std::unique_ptr<device::HostCopies> copies_;  // last: it ends its copies before the tensors go
};

}  // namespace trireme::parallel
