// base/queue_meter.h -- how long a queue is and how long things stay in it: Little's law, L = lambda W, measured.
//
// Whoever owns a queue owns a meter and calls it under the queue's own lock. Length is integrated over time, sojourn is
// summed thing by thing: two measurements of their own, which agree exactly over any time that begins and ends with an
// empty queue. What a reading holds adds up, so readings of steps can be summed; means are computed at the end.
// Depends on: std.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <mutex>

namespace trireme {

/// Sums over a stretch of time.
struct QueueReading {
  std::int64_t arrivals = 0, departures = 0;
  double seconds = 0;    ///< of the stretch
  double occupancy = 0;  ///< integral of the length over it, in things x seconds
  double sojourn = 0;    ///< seconds from arrival to departure, of all that departed
  double blocked = 0;    ///< seconds for which the caller stood still at the queue: empty, or full

  double length() const { return seconds > 0 ? occupancy / seconds : 0; }                         ///< L
  double rate() const { return seconds > 0 ? static_cast<double>(departures) / seconds : 0; }     ///< lambda
  double wait() const { return departures > 0 ? sojourn / static_cast<double>(departures) : 0; }  ///< W, seconds
  double blocked_share() const { return seconds > 0 ? blocked / seconds : 0; }

  QueueReading& operator+=(const QueueReading& other) {
    arrivals += other.arrivals, departures += other.departures, seconds += other.seconds;
    occupancy += other.occupancy, sojourn += other.sojourn, blocked += other.blocked;
    return *this;
  }
  /// Since an earlier reading of the same meter; of another meter, this one as a whole.
  QueueReading since(const QueueReading& earlier) const {
    if (earlier.arrivals > arrivals || earlier.seconds > seconds) return *this;
    return {.arrivals = arrivals - earlier.arrivals,
            .departures = departures - earlier.departures,
            .seconds = seconds - earlier.seconds,
            .occupancy = occupancy - earlier.occupancy,
            .sojourn = sojourn - earlier.sojourn,
            .blocked = blocked - earlier.blocked};
  }
  bool operator==(const QueueReading&) const = default;
};

/// Times in nanoseconds of the steady clock. Not locked.
class QueueMeter {
 public:
  using Nanoseconds = std::int64_t;

  static Nanoseconds now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  explicit QueueMeter(Nanoseconds begin = now()) : begin_(begin), last_(begin) {}

  void arrive(Nanoseconds at = now()) {
    advance(at);
    ++inside_;
    ++arrivals_;
  }
  /// `arrived`: when this thing did.
  void depart(Nanoseconds arrived, Nanoseconds at = now()) {
    advance(at);
    --inside_;
    ++departures_;
    sojourn_ += std::max<Nanoseconds>(0, at - arrived);
  }
  void block(Nanoseconds duration) { blocked_ += duration; }
  std::int64_t inside() const { return inside_; }

  QueueReading read(Nanoseconds at = now()) const {
    const Nanoseconds until = std::max(at, last_);
    const double open = static_cast<double>(inside_) * static_cast<double>(until - last_);
    return {.arrivals = arrivals_,
            .departures = departures_,
            .seconds = static_cast<double>(until - begin_) * 1e-9,
            .occupancy = (occupancy_ + open) * 1e-9,
            .sojourn = static_cast<double>(sojourn_) * 1e-9,
            .blocked = static_cast<double>(blocked_) * 1e-9};
  }

 private:
  /// Threads take their stamps before the lock: one may come a little late, never early.
  void advance(Nanoseconds at) {
    if (at <= last_) return;
    occupancy_ += static_cast<double>(inside_) * static_cast<double>(at - last_);
    last_ = at;
  }

  Nanoseconds begin_, last_;
  std::int64_t inside_ = 0, arrivals_ = 0, departures_ = 0;
  double occupancy_ = 0;
  Nanoseconds sojourn_ = 0, blocked_ = 0;
};

/// For queues without a lock of their own around both ends.
class SharedQueueMeter {
 public:
  using Nanoseconds = QueueMeter::Nanoseconds;

  /// When it arrived: what depart() takes.
  Nanoseconds arrive() {
    const Nanoseconds now = QueueMeter::now();
    const std::lock_guard lock(mutex_);
    meter_.arrive(now);
    return now;
  }
  void depart(Nanoseconds arrived) {
    const std::lock_guard lock(mutex_);
    meter_.depart(arrived);
  }
  void block(Nanoseconds duration) {
    const std::lock_guard lock(mutex_);
    meter_.block(duration);
  }
  QueueReading read() const {
    const std::lock_guard lock(mutex_);
    return meter_.read();
  }

 private:
  mutable std::mutex mutex_;
  QueueMeter meter_;
};

}  // namespace trireme
