// comm/work.h -- what every call on a group returns: wait for it, ask about it, see how long it took.
#pragma once

#include <chrono>
#include <vector>

namespace trireme::comm {

class Operation;

/// A call under way. The memory given to the call stays borrowed until wait() returns or the Work is destroyed, which
/// waits too (while an exception unwinds the stack it gives the call up instead, and the other ranks are told why). The
/// group must outlive its works.
class [[nodiscard]] Work {
 public:
  Work() = default;
  explicit Work(Operation& operation) : operation_(&operation) {}
  /// One work for several: done when all are.
  explicit Work(std::vector<Work> parts) : parts_(std::move(parts)) {}
  Work(Work&& other) noexcept;
  Work& operator=(Work&& other) noexcept;
  ~Work();

  /// Until done; rethrows what made it fail. Pushes this rank's pending works on while it waits.
  void wait();
  /// Whether it is done, without waiting; rethrows what made it fail.
  bool test();
  /// From the call to its completion; so far, while it is pending.
  std::chrono::nanoseconds elapsed() const;

 private:
  void release() noexcept;

  Operation* operation_ = nullptr;  // null: done and already told
  std::chrono::nanoseconds elapsed_{0};
  std::vector<Work> parts_;
};

}  // namespace trireme::comm
