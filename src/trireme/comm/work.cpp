#include "trireme/comm/work.h"

#include <exception>
#include <utility>

#include "trireme/base/log.h"
#include "trireme/comm/group.h"
#include "trireme/comm/rank.h"

namespace trireme::comm {

Work::Work(Work&& other) noexcept
    : operation_(std::exchange(other.operation_, nullptr)), elapsed_(other.elapsed_), parts_(std::move(other.parts_)) {}

Work& Work::operator=(Work&& other) noexcept {
  if (this != &other) {
    release();
    operation_ = std::exchange(other.operation_, nullptr);
    elapsed_ = other.elapsed_;
    parts_ = std::move(other.parts_);
  }
  return *this;
}

Work::~Work() { release(); }

void Work::wait() {
  // Every part is waited for, even when one fails: their memory must be free to go afterwards.
  std::exception_ptr first;
  for (Work& part : parts_) {
    try {
      part.wait();
    } catch (...) {
      if (!first) first = std::current_exception();
    }
    elapsed_ = std::max(elapsed_, part.elapsed());
  }
  parts_.clear();
  if (first) std::rethrow_exception(first);
  if (operation_ == nullptr) return;

  Operation& operation = *operation_;
  Group& group = *operation.group_;
  group.owner_.engine_.wait(operation);
  elapsed_ = std::chrono::nanoseconds(operation.ended_ns_ - operation.started_ns_);
  std::exception_ptr error = operation.error_;
  if (!error) {
    try {
      operation.after_wait();
    } catch (...) {
      error = std::current_exception();
    }
  }
  operation_ = nullptr;
  group.recycle(operation);
  if (error) std::rethrow_exception(error);
}

bool Work::test() {
  bool all = true;
  for (Work& part : parts_) all &= part.test();
  if (!all) return false;
  if (operation_ == nullptr) {
    for (Work& part : parts_) elapsed_ = std::max(elapsed_, part.elapsed());
    parts_.clear();
    return true;
  }
  if (operation_->status() == Operation::Status::kPending) operation_->group_->owner_.engine_.poll();
  // Past the deadline waiting is over at once, with the error: who only ever asks must not ask for ever.
  if (operation_->status() == Operation::Status::kPending && now_ns() < operation_->deadline_ns_) return false;
  wait();
  return true;
}

std::chrono::nanoseconds Work::elapsed() const {
  std::chrono::nanoseconds longest = elapsed_;
  for (const Work& part : parts_) longest = std::max(longest, part.elapsed());
  if (operation_ == nullptr) return longest;
  return std::chrono::nanoseconds(now_ns() - operation_->started_ns_);
}

void Work::release() noexcept {
  parts_.clear();
  if (operation_ == nullptr) return;
  Operation& operation = *operation_;
  Group& group = *operation.group_;
  if (std::uncaught_exceptions() > 0 && operation.status() == Operation::Status::kPending) {
    // The caller is on its way out and so is its memory: the others must not wait for it, nor touch that memory.
    const auto gave_up = std::make_exception_ptr(CommError(
        fmt::format("rank {} gave up {}: an exception passed through it", group.owner_.rank(), describe(operation))));
    group.owner_.engine_.fail(operation, gave_up);
    operation_ = nullptr;
    group.recycle(operation);
    return;
  }
  try {
    wait();
  } catch (const std::exception& error) {
    log_error("a call nobody waited for failed: {}", error.what());
  }
}

}  // namespace trireme::comm
