#include "trireme/parallel/host_link.h"

#include <ATen/ops/add.h>
#include <ATen/ops/copy.h>
#include <ATen/ops/empty.h>

#include <utility>

namespace trireme::parallel {
namespace {

/// Under way at once: more would only hold memory of the device for longer, since the link takes them one by one.
constexpr std::size_t kLeaving = 4;

}  // namespace

at::Tensor HostLink::zeros(std::int64_t elements, at::ScalarType type) {
  return copies_->empty_on_host(at::empty({elements}, at::TensorOptions(type).device(at::kMeta))).zero_();
}

void HostLink::send(const at::Tensor& from, at::Tensor to, bool add, std::function<void()> arrived) {
  while (!leaving_.empty() && (leaving_.size() >= kLeaving || copies_->is_done(leaving_.front().copy))) take_oldest();
  Leaving one{.to = std::move(to), .add = add, .arrived = std::move(arrived)};
  const bool direct = !add && from.scalar_type() == one.to.scalar_type();
  if (!direct) one.staged = copies_->empty_on_host(from);
  one.copy = copies_->to_host(from, direct ? one.to : one.staged);
  leaving_.push_back(std::move(one));
}

void HostLink::take_oldest() {
  Leaving one = std::move(leaving_.front());
  leaving_.pop_front();
  wait(one.copy);
  if (one.staged.defined() && one.add) {
    one.to.add_(one.staged);
  } else if (one.staged.defined()) {
    one.to.copy_(one.staged);
  }
  if (one.arrived) one.arrived();
}

/// A late update waits on a thread of its own: training goes on.
void HostLink::wait(Copy copy) {
  const QueueMeter::Nanoseconds start = QueueMeter::now();
  copies_->wait(copy);
  if (std::this_thread::get_id() == owner_) blocked_ += QueueMeter::now() - start;
}

QueueReading HostLink::queue() {
  QueueReading reading = copies_->queue();
  reading.blocked = static_cast<double>(blocked_) * 1e-9;
  return reading;
}

void HostLink::wait_for_sent() {
  while (!leaving_.empty()) take_oldest();
}

}  // namespace trireme::parallel
