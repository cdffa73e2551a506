// nn/stash.h -- kept activations wait on the host between forward and backward (ZeRO-R's Pa+cpu, ZeRO-Offload).
//
// What a recomputed layer keeps goes to host memory while the next layers run forward, and comes back one layer before
// backward needs it. Copies run beside computing (device/copy.h); at most one frame is on its way out and one
// on its way back, so the device holds two of them however deep the model is. The newest frame of all stays on the
// device until another follows: backward wants it first. Numbers are copied, never computed, so nothing changes to the
// bit. A tensor that several layers keep (an encoder's output) is copied for each of them.
// Depends on: device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "trireme/device/copy.h"
#include "trireme/device/memory_pool.h"

namespace trireme::nn {

/// One frame of a tape that is away.
struct Stashed {
  class Stash* stash = nullptr;
  std::vector<at::Tensor> on_device, on_host;
  std::int64_t bytes = 0;
  device::HostCopies::Copy leaving = 0, returning = 0;
  QueueMeter::Nanoseconds put = 0;
};
/// Shared by the tape and the copy under way.
using StashedFrame = std::shared_ptr<Stashed>;

/// One for a rank, which alone calls it. Outlives the tapes that use it.
class Stash {
 public:
  /// `memory` is borrowed: activations of both pools are counted there. May be null. `device`: where layers compute.
  explicit Stash(device::RankMemory* memory = nullptr, at::Device device = at::kCPU)
      : memory_(memory), copies_(device::HostCopies::make(device)) {}

  /// Nobody writes to the tensors any more. Returns at once; the frame before this one is then away.
  StashedFrame put(std::vector<at::Tensor> tensors);
  /// Begins to bring it back, where that has not begun.
  void prefetch(const StashedFrame& frame);
  /// The tensors, on the device again. Once for each frame.
  std::vector<at::Tensor> take(const StashedFrame& frame);
  /// A frame that nobody will take: the tape is gone.
  void drop(const StashedFrame& frame);

  /// Frames, from when they are put until they are taken or dropped; blocked: until a copy was over. A GPU's stream
  /// waits for copies by itself, which is not seen.
  QueueReading queue() const { return meter_.read(); }
  /// Their copies, a tensor each, both ways (device/copy.h).
  QueueReading copies() { return copies_->queue(); }

 private:
  void count(std::int64_t device_bytes, std::int64_t host_bytes);
  void release_newest();
  void wait(device::HostCopies::Copy copy);

  device::RankMemory* memory_;
  QueueMeter meter_;
  StashedFrame newest_;                         // still on the device, its copy under way or done
  std::unique_ptr<device::HostCopies> copies_;  // last: it ends its copies before the frames go
};

}  // namespace trireme::nn
