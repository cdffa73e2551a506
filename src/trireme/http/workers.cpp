#include "trireme/http/workers.h"

#include <system_error>
#include <utility>

namespace trireme::http {

Workers::~Workers() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  posted_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool Workers::start(std::function<void()> job) {
  const std::lock_guard lock(mutex_);
  if (free_ <= jobs_.size()) {
    try {
      threads_.emplace_back([this] { run(); });
    } catch (const std::system_error&) {
      return false;
    }
  }
  jobs_.push_back(std::move(job));
  posted_.notify_one();
  return true;
}

void Workers::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    ++free_;
    posted_.wait(lock, [&] { return closing_ || !jobs_.empty(); });
    --free_;
    if (jobs_.empty()) return;
    std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    job = nullptr;  // what it held goes before the next wait
    lock.lock();
  }
}

}  // namespace trireme::http
