#include "trireme/data/prefetch.h"

#include <algorithm>
#include <utility>

#include "trireme/base/error.h"

namespace trireme::data {

Prefetch::Prefetch(const Samples& samples, Plan plan, const Options& options)
    : samples_(samples),
      plan_(std::move(plan)),
      ahead_(static_cast<std::size_t>(std::max(options.ahead, 0))),
      next_step_(options.first_step) {
  if (ahead_ == 0) return;
  const int threads = std::clamp(options.threads, 1, options.ahead);
  try {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  } catch (...) {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    room_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    throw;
  }
}

Prefetch::~Prefetch() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  room_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool Prefetch::plan_one() {
  if (ended_) return false;
  auto slot = std::make_shared<Slot>();
  try {
    if (micro_ == step_.size()) {
      step_ = plan_(next_step_++);
      micro_ = 0;
    }
    if (step_.empty()) {
      ended_ = true;
      return false;
    }
    slot->samples = std::move(step_[micro_++]);
  } catch (...) {
    slot->error = std::current_exception();
    slot->done = true;
    ended_ = true;
  }
  slot->arrived = QueueMeter::now();
  meter_.arrive(slot->arrived);
  slots_.push_back(std::move(slot));
  return true;
}

void Prefetch::read(Slot& slot) const {
  try {
    slot.batch = samples_.read(slot.samples);
  } catch (...) {
    slot.error = std::current_exception();
  }
}

void Prefetch::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    room_.wait(lock, [&] { return stopping_ || ended_ || slots_.size() < ahead_; });
    if (stopping_) return;
    if (!plan_one()) {
      ready_.notify_all();
      return;
    }
    const std::shared_ptr<Slot> slot = slots_.back();
    if (!slot->done) {
      lock.unlock();
      read(*slot);
      lock.lock();
      slot->done = true;
      ended_ |= slot->error != nullptr;  // what would come after an error is never asked for
    }
    ready_.notify_all();
    if (ended_) room_.notify_all();
  }
}

Prefetch::Next Prefetch::next() {
  const QueueMeter::Nanoseconds start = QueueMeter::now();
  std::unique_lock lock(mutex_);
  if (ahead_ == 0 && slots_.empty() && plan_one() && !slots_.front()->done) {
    read(*slots_.front());
    slots_.front()->done = true;
  }
  ready_.wait(lock, [&] { return slots_.empty() ? ended_ : slots_.front()->done; });
  TRIREME_CHECK(!slots_.empty(), "a batch was asked for after the plan's last, step {}", next_step_ - 1);
  const std::shared_ptr<Slot> slot = slots_.front();
  if (slot->error) std::rethrow_exception(slot->error);
  slots_.pop_front();
  const QueueMeter::Nanoseconds now = QueueMeter::now();
  meter_.depart(slot->arrived, now);
  meter_.block(now - start);
  lock.unlock();
  room_.notify_one();
  return {std::move(slot->batch), static_cast<double>(now - start) * 1e-9};
}

QueueReading Prefetch::queue() {
  const std::lock_guard lock(mutex_);
  return meter_.read();
}

}  // namespace trireme::data
