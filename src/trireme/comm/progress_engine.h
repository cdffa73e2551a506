// comm/progress_engine.h -- pushes a rank's pending operations on: from whoever waits, and from a background thread
// while nobody does.
//
// Operations are state machines; one pass advances each of them, so a receive posted early never holds up a later call
// of another group. Whoever waits spins briefly, then yields, then sleeps on the rank's event count, so ranks may
// outnumber cores.
// Depends on: operation.h, transport.h.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "trireme/base/queue_meter.h"
#include "trireme/comm/operation.h"
#include "trireme/comm/transport.h"

namespace trireme::comm {

/// That operations of a group failed, in words: the exception belongs to whoever waits for them.
struct FailureReport {
  std::string group, reason;
  bool own = true;  // not a consequence of another rank's failure
};

/// What the engine asks when an operation does not end.
class Watch {
 public:
  virtual ~Watch() = default;
  /// The deadline has passed: finds out who is missing. Called without the engine's lock.
  virtual std::exception_ptr timed_out(const Operation& operation) = 0;
  /// Whether this operation can no longer end, because a rank it needs failed, is lost, or has left; null when it still
  /// may.
  virtual std::exception_ptr peer_lost(const Operation& operation) = 0;
  virtual FailureReport report(const Group& group, const std::exception_ptr& error) = 0;
  /// Called without the engine's lock, once per group, which may be gone by then: its owner saw the failure too.
  virtual void failed(const FailureReport& report) = 0;
};

class ProgressEngine {
 public:
  /// `spin`: how long a waiting thread keeps its core before it yields.
  ProgressEngine(Transport& transport, Watch& watch, std::chrono::nanoseconds spin);
  ~ProgressEngine();
  ProgressEngine(const ProgressEngine&) = delete;
  ProgressEngine& operator=(const ProgressEngine&) = delete;

  /// Starts the operation; does what can be done at once in the caller.
  void submit(Operation& operation);
  /// Until it is no longer pending.
  void wait(Operation& operation);
  /// Pushes everything on once.
  void poll();
  /// Fails the operation (if still pending) and every other pending one of its group.
  void fail(Operation& operation, const std::exception_ptr& error);

  /// Takes over an operation that nobody will wait for; its deadline is watched in the background. The caller has the
  /// lock.
  void adopt(std::unique_ptr<Operation> operation);
  /// Until no adopted operation of the group is pending or looked at any more.
  void drain(const Group& group);

  /// Something happened beside the data path (a notice): waiting threads look at it.
  void alarm();
  /// Calls that did not end at once, from their start to their end; blocked: threads waited for one.
  QueueReading queue();
  /// For calls into the transport outside an operation.
  std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }

 private:
  bool advance_all();
  bool advance_one(Operation& operation, Effort effort);
  void settle(Operation& operation, Operation::Status status);
  void fail_group(Group& group, const std::exception_ptr& error);
  void handle_alarm(bool adopted_only);
  void report_failures();
  void watch_adopted();
  void delete_landed();
  void background();
  void wake_background();
  void sleep_until_event(std::chrono::nanoseconds at_most);

  Transport& transport_;
  Watch& watch_;
  const std::chrono::nanoseconds spin_;             // at most
  std::atomic<std::chrono::nanoseconds> spin_now_;  // as much as has paid lately

  std::mutex mutex_;
  std::vector<Operation*> pending_;
  std::vector<FailureReport> failures_;  // not told to the watch yet: the lock must be free for that
  QueueMeter meter_;
  std::atomic<std::int64_t> blocked_ns_{0};         // of threads that wait, beside the lock
  int in_background_ = 0;                           // pending operations that must go on by themselves
  int adopted_ = 0;                                 // of these, those that belong to the engine
  std::vector<std::unique_ptr<Operation>> landed_;  // adopted and over; only the background thread deletes them
  const Group* examined_ = nullptr;                 // the background thread is finding out why this one's call is late

  std::atomic<int> waiting_{0};  // threads inside wait()
  // Set for good: calls made long after a rank went must not wait for it either.
  std::atomic<bool> alarmed_{false};

  std::mutex background_mutex_;
  std::condition_variable background_wake_;
  std::atomic<bool> background_asleep_{false};
  bool stop_ = false;
  std::once_flag background_started_;
  std::thread background_;
};

}  // namespace trireme::comm
