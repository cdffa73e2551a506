#include "trireme/comm/progress_engine.h"

#include <algorithm>
#include <utility>

#include "trireme/comm/group.h"
#include "trireme/comm/recorder.h"

namespace trireme::comm {
namespace {

using std::chrono::nanoseconds;
using namespace std::chrono_literals;

// After work was seen, the background thread looks again this often for this long before it sleeps for good: waking it
// costs the caller microseconds, which calls in quick succession should not pay each time. While callers wait for their
// calls themselves it is not needed, and each look takes a core from somebody.
constexpr nanoseconds kLookAgain = 1ms;
constexpr nanoseconds kLinger = 5ms;
// Without an event count, what others do is found only by polling.
constexpr nanoseconds kAskEvery = 50us;
// A notification cannot be lost; this only bounds how late a deadline or an alarm is noticed.
constexpr nanoseconds kLongestSleep = 20ms;
// Giving the core to whoever else wants it, before sleeping: being woken costs both sides microseconds.
constexpr nanoseconds kYieldFor = 100us;
// Spinning is cut down to this when it does not pay: the rank waited for is late, or waits for this very core.
constexpr nanoseconds kLeastSpin = 2us;
constexpr nanoseconds kDrainEvery = 200us;

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ProgressEngine::ProgressEngine(Transport& transport, Watch& watch, nanoseconds spin)
    : transport_(transport), watch_(watch), spin_(spin), spin_now_(spin) {}

ProgressEngine::~ProgressEngine() {
  {
    const std::lock_guard lock(background_mutex_);
    stop_ = true;
  }
  background_wake_.notify_all();
  if (background_.joinable()) background_.join();
  for (Operation* operation : pending_) {
    if (!operation->adopted_) continue;
    operation->abandon();
    delete operation;
  }
}

void ProgressEngine::submit(Operation& operation) {
  bool background = false;
  {
    const std::lock_guard lock(mutex_);
    if (operation.group_->is_poisoned()) {
      operation.error_ = operation.group_->poison();
      settle(operation, Operation::Status::kFailed);
      return;
    }
    advance_one(operation, Effort::kPost);
    if (operation.status() == Operation::Status::kPending) {
      pending_.push_back(&operation);
      operation.queued_ = true;
      meter_.arrive(operation.started_ns_);
      background = operation.needs_background();
      if (background) ++in_background_;
    }
  }
  report_failures();
  if (background) wake_background();
}

void ProgressEngine::wait(Operation& operation) {
  if (operation.status() != Operation::Status::kPending) return;
  waiting_.fetch_add(1, std::memory_order_relaxed);
  const std::int64_t began = now_ns();
  int rounds = 0;
  std::int64_t idle_since = 0;
  nanoseconds spin = spin_now_.load(std::memory_order_relaxed);
  bool yielded = false;
  while (true) {
    bool moved = false;
    {
      const std::unique_lock lock(mutex_, std::try_to_lock);
      if (lock) moved = advance_all();
    }
    if (operation.status() != Operation::Status::kPending) break;
    if (moved) {
      rounds = 0;
      idle_since = 0;
      continue;
    }
    relax();
    if (++rounds % 32 != 0 && spin_ > 0ns && !yielded) continue;  // reading the clock costs as much as several looks

    report_failures();
    const std::int64_t now = now_ns();
    if (idle_since == 0) idle_since = now;
    if (alarmed_.load(std::memory_order_relaxed)) handle_alarm(/*adopted_only=*/false);
    if (now >= operation.deadline_ns_) {
      const std::exception_ptr verdict = watch_.timed_out(operation);
      fail(operation, verdict);
      break;
    }
    if (now - idle_since < spin.count()) continue;
    if (!yielded) {
      yielded = true;
      spin = std::min(spin_, std::max(kLeastSpin, spin / 2));
      spin_now_.store(spin, std::memory_order_relaxed);
    }
    if (now - idle_since < (spin + kYieldFor).count()) {
      std::this_thread::yield();
      continue;
    }
    sleep_until_event(std::min<nanoseconds>(kLongestSleep, nanoseconds(operation.deadline_ns_ - now)));
  }
  waiting_.fetch_sub(1, std::memory_order_relaxed);
  blocked_ns_.fetch_add(std::max<std::int64_t>(0, operation.ended_ns_ - began), std::memory_order_relaxed);
  if (!yielded && spin < spin_) spin_now_.store(std::min(spin_, spin * 2), std::memory_order_relaxed);
  report_failures();
}

void ProgressEngine::poll() {
  {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (lock) advance_all();
  }
  if (alarmed_.load(std::memory_order_relaxed)) handle_alarm(/*adopted_only=*/false);
  report_failures();
}

void ProgressEngine::adopt(std::unique_ptr<Operation> operation) {
  operation->adopted_ = operation->queued_ = true;
  ++adopted_;
  ++in_background_;
  meter_.arrive(operation->started_ns_);
  pending_.push_back(operation.release());  // landed_ takes it back
  wake_background();
}

void ProgressEngine::drain(const Group& group) {
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      if (adopted_ == 0 && examined_ != &group) return;
      advance_all();
      const bool some = std::ranges::any_of(
          pending_, [&](const Operation* operation) { return operation->adopted_ && operation->group_ == &group; });
      if (!some && examined_ != &group) return;
    }
    report_failures();
    std::this_thread::sleep_for(kDrainEvery);
  }
}

void ProgressEngine::fail(Operation& operation, const std::exception_ptr& error) {
  {
    const std::lock_guard lock(mutex_);
    if (operation.status() != Operation::Status::kPending) return;
    fail_group(*operation.group_, error);
  }
  report_failures();
}

void ProgressEngine::alarm() {
  alarmed_.store(true, std::memory_order_release);
  if (EventCount* event_count = transport_.event_count()) event_count->notify();
}

bool ProgressEngine::advance_all() {
  bool moved = transport_.progress();
  for (std::size_t i = 0; i < pending_.size();) {
    Operation& operation = *pending_[i];
    moved |= advance_one(operation, Effort::kWork);
    // One that ended has been taken out, and maybe others of its group with it: look at this place again.
    if (i < pending_.size() && pending_[i] == &operation) ++i;
  }
  return moved;
}

bool ProgressEngine::advance_one(Operation& operation, Effort effort) {
  try {
    const Progress progress = operation.advance(effort);
    if (progress == Progress::kDone) settle(operation, Operation::Status::kDone);
    return progress != Progress::kStuck;
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    Group& group = *operation.group_;
    if (!operation.queued_) {  // being submitted: not in the list that fail_group() goes through
      operation.abandon();
      operation.error_ = error;
      settle(operation, Operation::Status::kFailed);
    }
    fail_group(group, error);
    return true;
  }
}

QueueReading ProgressEngine::queue() {
  const std::lock_guard lock(mutex_);
  QueueReading reading = meter_.read(now_ns());
  reading.blocked = static_cast<double>(blocked_ns_.load(std::memory_order_relaxed)) * 1e-9;
  return reading;
}

void ProgressEngine::settle(Operation& operation, Operation::Status status) {
  const bool queued = operation.queued_;
  if (operation.queued_) {
    std::erase(pending_, &operation);
    operation.queued_ = false;
    if (operation.needs_background()) --in_background_;
    if (operation.adopted_) --adopted_;
  }
  operation.group_->settled(operation, status == Operation::Status::kDone);
  if (queued) meter_.depart(operation.started_ns_, operation.ended_ns_);
  const bool adopted = operation.adopted_;
  // Last: the caller may take the operation back as soon as it sees this.
  operation.status_.store(status, std::memory_order_release);
  if (adopted) landed_.emplace_back(&operation);
}

void ProgressEngine::fail_group(Group& group, const std::exception_ptr& error) {
  group.poison(error);
  failures_.push_back(watch_.report(group, error));
  const std::vector<Operation*> pending = pending_;
  for (Operation* operation : pending) {
    if (operation->group_ != &group) continue;
    operation->abandon();
    operation->error_ = error;
    settle(*operation, Operation::Status::kFailed);
  }
}

void ProgressEngine::handle_alarm(bool adopted_only) {
  const std::lock_guard lock(mutex_);
  const std::vector<Operation*> pending = pending_;
  for (Operation* operation : pending) {
    if (std::ranges::find(pending_, operation) == pending_.end()) continue;  // failed with its group a moment ago
    if (adopted_only && !operation->adopted_) continue;
    if (const std::exception_ptr error = watch_.peer_lost(*operation)) fail_group(*operation->group_, error);
  }
}

void ProgressEngine::report_failures() {
  std::vector<FailureReport> failures;
  {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock || failures_.empty()) return;
    failures.swap(failures_);
  }
  for (const FailureReport& failure : failures) watch_.failed(failure);
}

void ProgressEngine::watch_adopted() {
  Operation* late = nullptr;
  {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock || adopted_ == 0) return;
    const std::int64_t now = now_ns();
    for (Operation* operation : pending_) {
      if (!operation->adopted_ || now < operation->deadline_ns_) continue;
      late = operation;
      examined_ = operation->group_;
      break;
    }
  }
  if (alarmed_.load(std::memory_order_relaxed)) handle_alarm(/*adopted_only=*/true);
  if (late != nullptr) {
    // Nobody else deletes it, and its group waits in drain(): both stay while the other ranks are asked.
    const std::exception_ptr verdict = watch_.timed_out(*late);
    const std::lock_guard lock(mutex_);
    if (late->status() == Operation::Status::kPending) fail_group(*late->group_, verdict);
    examined_ = nullptr;
  }
  report_failures();
}

void ProgressEngine::delete_landed() {
  std::vector<std::unique_ptr<Operation>> landed;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock) landed.swap(landed_);
}

void ProgressEngine::wake_background() {
  std::call_once(background_started_, [this] { background_ = std::thread([this] { background(); }); });
  if (!background_asleep_.load(std::memory_order_seq_cst)) return;
  {
    const std::lock_guard lock(background_mutex_);
    background_asleep_.store(false, std::memory_order_relaxed);
  }
  background_wake_.notify_all();
}

void ProgressEngine::background() {
  std::int64_t last_busy = now_ns();
  while (true) {
    bool moved = false, some = false;
    const bool driven = waiting_.load(std::memory_order_relaxed) > 0;
    {
      const std::unique_lock lock(mutex_, std::try_to_lock);
      some = !lock || in_background_ > 0;
      if (lock && some && !driven) moved = advance_all();
    }
    report_failures();
    watch_adopted();
    delete_landed();
    if (moved) {
      last_busy = now_ns();
      continue;
    }
    if (some && !driven) {
      last_busy = now_ns();
      sleep_until_event(1ms);
    } else {
      // Someone is waiting and pushes everything on, or there is nothing to do.
      std::unique_lock lock(background_mutex_);
      if (some || now_ns() - last_busy < kLinger.count()) {
        background_wake_.wait_for(lock, kLookAgain, [this] { return stop_; });
      } else {
        background_asleep_.store(true, std::memory_order_seq_cst);
        lock.unlock();
        bool still_nothing = false;
        {
          const std::lock_guard engine_lock(mutex_);
          still_nothing = in_background_ == 0;
        }
        lock.lock();
        if (still_nothing) background_wake_.wait(lock, [this] { return stop_ || !background_asleep_.load(); });
        background_asleep_.store(false);
        last_busy = now_ns();
      }
    }
    const std::lock_guard lock(background_mutex_);
    if (stop_) return;
  }
}

void ProgressEngine::sleep_until_event(nanoseconds at_most) {
  const std::int64_t event = transport_.next_event_ns();
  if (event != std::numeric_limits<std::int64_t>::max()) at_most = std::min(at_most, nanoseconds(event - now_ns()));
  EventCount* event_count = transport_.event_count();
  if (event_count == nullptr || !transport_.event_count_suffices()) at_most = std::min(at_most, kAskEvery);
  if (at_most <= 0ns) return;
  if (event_count == nullptr) {
    std::this_thread::sleep_for(at_most);
    return;
  }
  const std::uint32_t ticket = event_count->about_to_sleep();
  bool moved = true;
  {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (lock) {
      moved = advance_all() || !transport_.may_sleep();
      if (std::ranges::any_of(pending_, [](const Operation* operation) { return operation->needs_polling(); })) {
        at_most = std::min(at_most, kAskEvery);
      }
    } else if (at_most > kAskEvery) {
      at_most = kAskEvery;  // another thread is at it; it may finish what we wait for
    }
    if (!lock) moved = false;
  }
  if (moved) {
    event_count->stay_awake();
  } else {
    event_count->sleep(ticket, at_most);
  }
}

}  // namespace trireme::comm
