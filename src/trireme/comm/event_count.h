// comm/event_count.h -- how a rank that has nothing to do sleeps until another rank has done something for it.
//
// The notifier first makes its change visible, then notifies; the sleeper first says that it is about to sleep, then
// looks once more for changes, then sleeps. So no notification is lost, and one costs a fence and a load while nobody
// sleeps.
// Works between threads and, in shared memory, between processes.
// Depends on: Linux futexes.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>
#include <vector>

namespace trireme::comm {

class alignas(64) EventCount {
 public:
  void notify() {
    if (sleepers_after_my_change() != 0) {
      epoch_.fetch_add(1, std::memory_order_release);
      futex(FUTEX_WAKE, INT_MAX, nullptr);
    }
  }

  /// Notifies all but the one at `except`, after one fence for all.
  static void notify_all(const std::vector<EventCount*>& event_counts, int except) {
#if !defined(TRIREME_TSAN)
    std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
    for (std::size_t i = 0; i < event_counts.size(); ++i) {
      if (static_cast<int>(i) == except || event_counts[i] == nullptr) continue;
#if defined(TRIREME_TSAN)
      event_counts[i]->notify();
#else
      if (event_counts[i]->sleepers_.load(std::memory_order_relaxed) != 0) event_counts[i]->notify();
#endif
    }
  }

  /// Says that this thread is about to sleep. Look for changes after this, then call sleep() or stay_awake().
  std::uint32_t about_to_sleep() {
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    return epoch_.load(std::memory_order_acquire);
  }
  void sleep(std::uint32_t ticket, std::chrono::nanoseconds at_most) {
    timespec timeout{.tv_sec = at_most.count() / 1'000'000'000, .tv_nsec = at_most.count() % 1'000'000'000};
    futex(FUTEX_WAIT, ticket, &timeout);
    stay_awake();
  }
  void stay_awake() { sleepers_.fetch_sub(1, std::memory_order_relaxed); }

 private:
  std::uint32_t sleepers_after_my_change() {
#if defined(TRIREME_TSAN)
    return sleepers_.fetch_add(0, std::memory_order_seq_cst);  // the sanitizer does not know fences
#else
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return sleepers_.load(std::memory_order_relaxed);
#endif
  }
  long futex(int operation, std::uint32_t value, const timespec* timeout) {
    static_assert(sizeof epoch_ == sizeof(std::uint32_t));
    return syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&epoch_), operation, value, timeout, nullptr, 0);
  }

  std::atomic<std::uint32_t> epoch_{0};
  std::atomic<std::uint32_t> sleepers_{0};
};

}  // namespace trireme::comm
