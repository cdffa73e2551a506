// comm/control/listener.h -- the callbacks of one rank, and the notices they are owed.
//
// Notices are called one at a time and in order, each once per listener, on whichever thread brings them; no lock is
// held meanwhile, so a callback may use the plane freely, announce included. A listener that comes late first hears
// everything that was said before it came: a rank must not miss the last words of one that failed early.
// Depends on: base.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "trireme/comm/control.h"

namespace trireme::comm::control {

/// How many notices are kept for late listeners. The first ones are kept: they are the causes, the rest consequences.
inline constexpr std::size_t kMaxNotices = 4096;

class Listener {
 public:
  using OnNotice = std::function<void(const Notice&)>;
  using OnQuestion = std::function<std::string(const std::string&)>;

  /// Returns when no call of the previous callbacks is in progress (other than one this thread is in) and the new ones
  /// have heard every earlier notice.
  void listen(OnNotice on_notice, OnQuestion on_question);
  /// Calls on_notice, now or (when a call is in progress) right after it on that thread.
  void deliver(Notice::Kind kind, int rank, const std::string& text) noexcept;
  /// Nothing when nobody listens or the callback threw.
  std::optional<std::string> answer(const std::string& question) noexcept;

 private:
  struct Callbacks {
    OnNotice on_notice;
    OnQuestion on_question;
  };
  struct Call {
    std::thread::id thread;
    std::uint64_t generation;  // of the callbacks it runs
  };

  void deliver_due(std::unique_lock<std::mutex>& lock);
  void end_call();

  std::mutex mutex_;
  std::condition_variable changed_;
  // Shared by this object and the calls in progress, which go on with the callbacks they began with.
  std::shared_ptr<const Callbacks> callbacks_ = std::make_shared<Callbacks>();
  std::uint64_t generation_ = 0;
  std::vector<Call> calls_;      // in progress
  std::vector<Notice> notices_;  // all so far
  std::size_t heard_ = 0;        // how many of them the current callbacks have heard
  std::thread::id deliverer_;    // who is in deliver_due(); none by default
};

}  // namespace trireme::comm::control
