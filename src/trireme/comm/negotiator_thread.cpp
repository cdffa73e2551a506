#include "trireme/comm/negotiator_thread.h"

#include <vector>

#include "trireme/base/error.h"

namespace trireme::comm {
namespace {

NegotiatorOptions without_pause(NegotiatorOptions options) {
  options.cycles_when_idle = true;
  return options;
}

}  // namespace

NegotiatorThread::NegotiatorThread(Group& group, NegotiatorOptions options)
    : sums_(group, without_pause(std::move(options))), thread_([this] { run(); }) {}

NegotiatorThread::~NegotiatorThread() {
  {
    const std::lock_guard lock(mutex_);
    abandoned_ = true;
  }
  thread_.join();
}

void NegotiatorThread::all_reduce(const std::string& name, Buffer data) {
  TRIREME_CHECK(data.device.kind == DeviceKind::kCpu, "{} is not in host memory", name);
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  TRIREME_CHECK(!stops_, "{} comes after finish()", name);
  TRIREME_CHECK(tensors_.try_emplace(name).second, "{} is already under way", name);
  arrived_.emplace_back(name, data);
}

bool NegotiatorThread::is_done(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto found = tensors_.find(name);
  TRIREME_CHECK(found != tensors_.end(), "{} is not under way", name);
  return found->second.done || failure_;
}

void NegotiatorThread::wait(const std::string& name) {
  std::unique_lock lock(mutex_);
  const auto found = tensors_.find(name);
  TRIREME_CHECK(found != tensors_.end(), "{} is not under way", name);
  settled_.wait(lock, [&] { return found->second.done || failure_; });
  if (!found->second.done) std::rethrow_exception(failure_);
  const std::exception_ptr refused = found->second.refused;
  tensors_.erase(found);
  if (refused) std::rethrow_exception(refused);
}

void NegotiatorThread::wait_all() {
  while (true) {
    std::string next;
    {
      const std::lock_guard lock(mutex_);
      if (tensors_.empty()) return;
      next = tensors_.begin()->first;
    }
    wait(next);
  }
}

void NegotiatorThread::finish() {
  wait_all();
  std::unique_lock lock(mutex_);
  stops_ = true;
  settled_.wait(lock, [&] { return over_ || failure_; });
  if (failure_) std::rethrow_exception(failure_);
}

/// What the rank has handed over since.
void NegotiatorThread::take_arrived() {
  std::deque<std::pair<std::string, Buffer>> arrived;
  {
    const std::lock_guard lock(mutex_);
    arrived.swap(arrived_);
  }
  for (const auto& [name, data] : arrived) sums_.all_reduce(name, data);
}

void NegotiatorThread::tell_done() {
  for (const std::string& name : sums_.done()) {
    std::exception_ptr refused;
    try {
      sums_.wait(name);
    } catch (const CommError&) {
      refused = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    tensors_.at(name) = {.done = true, .refused = refused};
    settled_.notify_all();
  }
}

void NegotiatorThread::run() {
  try {
    while (true) {
      bool stops = false;
      {
        const std::lock_guard lock(mutex_);
        if (abandoned_) return;
        stops = stops_ && arrived_.empty();
      }
      if (stops) break;  // finish() has waited for all tensors
      take_arrived();
      sums_.go_on();
      tell_done();
    }
    sums_.finish();
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
  }
  const std::lock_guard lock(mutex_);
  over_ = true;
  settled_.notify_all();
}

}  // namespace trireme::comm
