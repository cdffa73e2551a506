// comm/negotiator_thread.h -- a negotiator whose cycles go on by themselves (Horovod's background loop).
//
//   NegotiatorThread sums(group, {});
//   sums.all_reduce("layer2.weight", gradient);   // handed over; the rank goes on computing
//   sums.wait("layer2.weight");
//   sums.finish();
//
// A thread takes part in every cycle, whether this rank has something ready or not: a rank that computes for long holds
// up nobody, and the stall check names it. Each cycle is one small all-reduce, also while nothing is under way.
// Depends on: negotiator.h.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "trireme/comm/negotiator.h"

namespace trireme::comm {

class NegotiatorThread {
 public:
  /// On all ranks of the group together; the group is the thread's alone from now on.
  NegotiatorThread(Group& group, NegotiatorOptions options);
  /// finish() must have been called, but for exceptions: others then learn of it by the group's deadline.
  ~NegotiatorThread();
  NegotiatorThread(const NegotiatorThread&) = delete;
  NegotiatorThread& operator=(const NegotiatorThread&) = delete;

  /// As Negotiator's: in place, `data` is borrowed until the tensor's wait().
  void all_reduce(const std::string& name, Buffer data);
  /// Whether wait() would return, or throw, at once.
  bool is_done(const std::string& name);
  void wait(const std::string& name);
  void wait_all();
  /// All ranks together: nothing will come any more.
  void finish();
  /// After finish().
  const Negotiator::Counters& counters() const { return sums_.counters(); }

 private:
  struct Tensor {
    bool done = false;
    std::exception_ptr refused;
  };
  void run();
  void take_arrived();
  void tell_done();

  Negotiator sums_;  // the thread's alone
  std::mutex mutex_;
  std::condition_variable settled_;
  std::deque<std::pair<std::string, Buffer>> arrived_;
  std::map<std::string, Tensor> tensors_;
  bool stops_ = false, abandoned_ = false, over_ = false;
  std::exception_ptr failure_;  // of the group: nothing goes on
  std::thread thread_;
};

}  // namespace trireme::comm
