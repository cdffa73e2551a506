#include "trireme/nn/stash.h"

#include <ATen/ops/copy.h>
#include <ATen/ops/empty_like.h>

#include <utility>

namespace trireme::nn {
namespace {

std::vector<at::Tensor> room_for(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> room;
  for (const at::Tensor& tensor : tensors) room.push_back(tensor.defined() ? at::empty_like(tensor) : at::Tensor());
  return room;
}

void copy_all(const std::vector<at::Tensor>& from, std::vector<at::Tensor>& to) {
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (from[i].defined()) to[i].copy_(from[i]);
  }
}

}  // namespace

void Stash::count(std::int64_t device_bytes, std::int64_t host_bytes) {
  if (memory_ == nullptr) return;
  memory_->device.add(device::MemoryUse::kActivations, device_bytes);
  memory_->host.add(device::MemoryUse::kActivations, host_bytes);
}

/// The copy is over before the device's memory goes.
void Stash::let_go_of_newest() {
  if (!newest_) return;
  worker_.wait(newest_->leaving);
  newest_->on_device.clear();
  count(-newest_->bytes, 0);
  newest_.reset();
}

StashedFrame Stash::put(std::vector<at::Tensor> tensors) {
  let_go_of_newest();
  auto frame = std::make_shared<Stashed>();
  frame->stash = this;
  frame->on_host = room_for(tensors);
  frame->on_device = std::move(tensors);
  for (const at::Tensor& tensor : frame->on_device) {
    if (tensor.defined()) frame->bytes += static_cast<std::int64_t>(tensor.nbytes());
  }
  count(frame->bytes, frame->bytes);
  frame->leaving = worker_.post([frame] { copy_all(frame->on_device, frame->on_host); });
  newest_ = frame;
  return frame;
}

void Stash::call_back(const StashedFrame& frame) {
  if (frame == newest_ || frame->returning != 0) return;
  frame->on_device = room_for(frame->on_host);
  count(frame->bytes, 0);
  frame->returning = worker_.post([frame] { copy_all(frame->on_host, frame->on_device); });
}

std::vector<at::Tensor> Stash::take(const StashedFrame& frame) {
  call_back(frame);
  worker_.wait(frame == newest_ ? frame->leaving : frame->returning);
  if (frame == newest_) newest_.reset();
  frame->on_host.clear();
  count(-frame->bytes, -frame->bytes);
  return std::exchange(frame->on_device, {});
}

void Stash::drop(const StashedFrame& frame) {
  if (frame == newest_ || frame->returning != 0) {
    take(frame);
    return;
  }
  frame->on_host.clear();
  count(0, -frame->bytes);
}

}  // namespace trireme::nn
