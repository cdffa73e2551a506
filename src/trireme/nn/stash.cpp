#include "trireme/nn/stash.h"

#include <utility>

namespace trireme::nn {

void Stash::count(std::int64_t device_bytes, std::int64_t host_bytes) {
  if (memory_ == nullptr) return;
  memory_->device.add(device::MemoryUse::kActivations, device_bytes);
  memory_->host.add(device::MemoryUse::kActivations, host_bytes);
}

/// What is computed from now on runs after the copy.
void Stash::wait(device::HostCopies::Copy copy) {
  const QueueMeter::Nanoseconds start = QueueMeter::now();
  copies_->make_stream_wait(copy);
  meter_.block(QueueMeter::now() - start);
}

/// The copy is over before the device's memory is another's.
void Stash::release_newest() {
  if (!newest_) return;
  wait(newest_->leaving);
  newest_->on_device.clear();
  count(-newest_->bytes, 0);
  newest_.reset();
}

StashedFrame Stash::put(std::vector<at::Tensor> tensors) {
  release_newest();
  auto frame = std::make_shared<Stashed>();
  frame->stash = this;
  frame->put = QueueMeter::now();
  meter_.arrive(frame->put);
  frame->on_device = std::move(tensors);
  for (const at::Tensor& tensor : frame->on_device) {
    if (tensor.defined()) frame->bytes += static_cast<std::int64_t>(tensor.nbytes());
  }
  count(frame->bytes, frame->bytes);
  for (const at::Tensor& tensor : frame->on_device) {
    frame->on_host.push_back(tensor.defined() ? copies_->empty_on_host(tensor) : at::Tensor());
    // Of several, the last to begin is the last to end.
    if (tensor.defined()) frame->leaving = copies_->to_host(tensor, frame->on_host.back());
  }
  newest_ = frame;
  return frame;
}

void Stash::prefetch(const StashedFrame& frame) {
  if (frame == newest_ || frame->returning != 0) return;
  count(frame->bytes, 0);
  for (const at::Tensor& tensor : frame->on_host) {
    frame->on_device.push_back(tensor.defined() ? copies_->empty_on_device(tensor) : at::Tensor());
    if (tensor.defined()) frame->returning = copies_->to_device(tensor, frame->on_device.back());
  }
}

std::vector<at::Tensor> Stash::take(const StashedFrame& frame) {
  prefetch(frame);
  wait(frame == newest_ ? frame->leaving : frame->returning);
  if (frame == newest_) newest_.reset();
  frame->on_host.clear();
  meter_.depart(frame->put);
  count(-frame->bytes, -frame->bytes);
  return std::exchange(frame->on_device, {});
}

void Stash::drop(const StashedFrame& frame) {
  if (frame == newest_ || frame->returning != 0) {
    take(frame);
    return;
  }
  frame->on_host.clear();
  meter_.depart(frame->put);
  count(0, -frame->bytes);
}

}  // namespace trireme::nn
