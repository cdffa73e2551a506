#include "trireme/comm/control/listener.h"

#include <algorithm>
#include <utility>

#include "trireme/base/log.h"

namespace trireme::comm::control {

void Listener::listen(OnNotice on_notice, OnQuestion on_question) {
  auto callbacks = std::make_shared<Callbacks>(Callbacks{std::move(on_notice), std::move(on_question)});
  std::unique_lock lock(mutex_);
  // Kept until the end of this function: what the old callbacks captured must not be destroyed under the lock.
  std::shared_ptr<const Callbacks> old = std::exchange(callbacks_, std::move(callbacks));
  const std::uint64_t generation = ++generation_;
  heard_ = 0;
  const std::thread::id self = std::this_thread::get_id();
  changed_.wait(lock, [&] {
    return std::ranges::none_of(calls_,
                                [&](const Call& call) { return call.generation < generation && call.thread != self; });
  });
  deliver_due(lock);
  // Another thread may be delivering already; this one is not done before the backlog is.
  changed_.wait(lock, [&] {
    return deliverer_ == std::thread::id{} || deliverer_ == self || generation_ != generation ||
           heard_ == notices_.size();
  });
  lock.unlock();
}

void Listener::deliver(Notice::Kind kind, int rank, const std::string& text) noexcept {
  try {
    std::unique_lock lock(mutex_);
    if (notices_.size() >= kMaxNotices) return;
    notices_.push_back({kind, rank, text});
    deliver_due(lock);
  } catch (const std::exception& error) {
    log_error("a notice about rank {} could not be delivered: {}", rank, error.what());
  }
}

void Listener::deliver_due(std::unique_lock<std::mutex>& lock) {
  // One deliverer at a time keeps the order; it takes along what others add meanwhile. That also ends the recursion
  // of a callback that announces to a rank whose callback announces back.
  if (deliverer_ != std::thread::id{}) return;
  while (callbacks_->on_notice && heard_ < notices_.size()) {
    const auto callbacks = callbacks_;
    const std::uint64_t generation = generation_;
    const Notice notice = notices_[heard_];
    deliverer_ = std::this_thread::get_id();
    calls_.push_back({deliverer_, generation});
    lock.unlock();
    try {
      callbacks->on_notice(notice);
    } catch (const std::exception& error) {
      log_error("the listener for notices failed at the one about rank {}: {}", notice.rank, error.what());
    } catch (...) {
      log_error("the listener for notices failed at the one about rank {}", notice.rank);
    }
    lock.lock();
    end_call();
    deliverer_ = std::thread::id{};
    if (generation_ == generation) ++heard_;
    changed_.notify_all();
  }
}

std::optional<std::string> Listener::answer(const std::string& question) noexcept {
  std::optional<std::string> answer;
  try {
    std::unique_lock lock(mutex_);
    const auto callbacks = callbacks_;
    if (!callbacks->on_question) return std::nullopt;
    calls_.push_back({std::this_thread::get_id(), generation_});
    lock.unlock();
    try {
      answer = callbacks->on_question(question);
    } catch (const std::exception& error) {
      log_error("the listener for questions failed at \"{}\": {}", question, error.what());
    } catch (...) {
      log_error("the listener for questions failed at \"{}\"", question);
    }
    lock.lock();
    end_call();
    changed_.notify_all();
  } catch (const std::exception& error) {
    log_error("the question \"{}\" could not be answered: {}", question, error.what());
  }
  return answer;
}

// Calls of one thread nest, so the one that ends is that thread's last.
void Listener::end_call() {
  const auto last = std::find_if(calls_.rbegin(), calls_.rend(),
                                 [](const Call& call) { return call.thread == std::this_thread::get_id(); });
  calls_.erase(std::next(last).base());
}

}  // namespace trireme::comm::control
