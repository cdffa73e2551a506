#include "trireme/base/worker.h"

#include <utility>

namespace trireme {

Worker::Worker() : thread_([this] { run(); }) {}

Worker::~Worker() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  posted_.notify_one();
  thread_.join();
}

Worker::Job Worker::post(std::function<void()> work) {
  Job job = 0;
  {
    const std::lock_guard lock(mutex_);
    const QueueMeter::Nanoseconds now = QueueMeter::now();
    meter_.arrive(now);
    jobs_.push_back({std::move(work), now});
    job = ++last_;
  }
  posted_.notify_one();
  return job;
}

void Worker::wait(Job job) {
  std::unique_lock lock(mutex_);
  if (done_ < job) {
    const QueueMeter::Nanoseconds start = QueueMeter::now();
    ended_.wait(lock, [&] { return done_ >= job; });
    meter_.block(QueueMeter::now() - start);
  }
  if (error_ && job >= failed_) std::rethrow_exception(error_);
}

void Worker::wait() {
  Job last = 0;
  {
    const std::lock_guard lock(mutex_);
    last = last_;
  }
  wait(last);
}

QueueReading Worker::queue() {
  const std::lock_guard lock(mutex_);
  return meter_.read();
}

void Worker::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    posted_.wait(lock, [&] { return closing_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    auto [work, posted] = std::move(jobs_.front());
    jobs_.pop_front();
    std::exception_ptr error;
    if (!error_) {
      lock.unlock();
      try {
        work();
      } catch (...) {
        error = std::current_exception();
      }
      work = nullptr;  // before anybody is told: what it held is then the waiter's alone
      lock.lock();
    }
    ++done_;
    meter_.depart(posted);
    if (error) {
      error_ = error;
      failed_ = done_;
    }
    ended_.notify_all();
  }
}

}  // namespace trireme
