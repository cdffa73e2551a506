// data/prefetch.h -- reads the batches of a rank ahead, in the background, so that a step never waits for data.
//
//   Prefetch prefetch(*samples, [&](std::int64_t step) { return my_samples(step); }, {.first_step = resumed_at});
//   auto [batch, waited_s] = prefetch.next();       // micro-batch by micro-batch, step by step
//
// Which samples come is asked step by step, no further ahead than batches are read: a plan may depend on what is known
// only a few batches before. Batches come in the order of the plan however many threads read.
// Depends on: data/samples.h.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "trireme/base/queue_meter.h"
#include "trireme/data/samples.h"

namespace trireme::data {

class Prefetch {
 public:
  /// The samples of each micro-batch of a step. No micro-batches: the plan ends before this step.
  using Plan = std::function<std::vector<std::vector<std::int64_t>>(std::int64_t step)>;
  struct Options {
    std::int64_t first_step = 0;
    int ahead = 4;  ///< batches; 0: none, next() reads
    int threads = 1;
  };

  /// `samples` stays borrowed. The plan is called by one thread at a time.
  Prefetch(const Samples& samples, Plan plan, const Options& options);
  ~Prefetch();
  Prefetch(const Prefetch&) = delete;
  Prefetch& operator=(const Prefetch&) = delete;

  struct Next {
    Batch batch;
    double waited_s = 0;  ///< how long this call took until the batch was there
  };
  /// An error of the plan or of reading comes out where its batch would have, and again in every later call. Not to be
  /// called after the plan's end.
  Next next();
  /// Batches from the time their reading begins until they are taken; blocked: next() waited.
  QueueReading queue();

 private:
  struct Slot {
    std::vector<std::int64_t> samples;
    Batch batch;
    std::exception_ptr error;
    bool done = false;
    QueueMeter::Nanoseconds arrived = 0;
  };
  /// The next micro-batch of the plan as a slot at the end of the line; false at its end. Called with the lock held.
  bool plan_one();
  void read(Slot& slot) const;
  void work();

  const Samples& samples_;
  Plan plan_;
  std::size_t ahead_;

  std::mutex mutex_;
  std::condition_variable room_, ready_;         // for the threads; for next()
  std::deque<std::shared_ptr<Slot>> slots_;      // shared with the thread that fills one
  std::vector<std::vector<std::int64_t>> step_;  // micro-batches of the step that is being planned
  std::size_t micro_ = 0;
  std::int64_t next_step_;
  bool ended_ = false, stopping_ = false;
  QueueMeter meter_;
  std::vector<std::thread> threads_;
};

}  // namespace trireme::data
