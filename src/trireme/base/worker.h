// base/worker.h -- a thread of its own, for work that goes on beside the caller's.
//
//   Worker worker;
//   const Worker::Job job = worker.post([&] { copy(a, b); });
//   ...
//   worker.wait(job);
//
// Jobs run one at a time, in the order in which they were posted. What a job wrote is seen by whoever waited for it.
// Depends on: queue_meter.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "trireme/base/queue_meter.h"

namespace trireme {

class Worker {
 public:
  using Job = std::uint64_t;  ///< numbers from 1; 0 is over from the beginning

  Worker();
  /// Does what was posted first.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  Job post(std::function<void()> work);
  /// Until the job is over and everything it held is let go of. Throws what a job threw: from then on no later job
  /// runs, and every wait for one throws the same.
  void wait(Job job);
  /// For all that was posted.
  void wait();
  /// Jobs, from post() until they are over; blocked: threads waited for one.
  QueueReading queue();

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable posted_, ended_;
  struct Posted {
    std::function<void()> work;
    QueueMeter::Nanoseconds at = 0;
  };
  std::deque<Posted> jobs_;
  QueueMeter meter_;
  Job last_ = 0, done_ = 0, failed_ = 0;  // numbers of jobs; failed_ 0: none
  std::exception_ptr error_;
  bool closing_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace trireme
