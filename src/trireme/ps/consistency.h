// ps/consistency.h -- when a worker's next clock may begin: sequential, bounded delay, eventual (Li et al. 2014, 3.2).
//
// Clock t may begin when all of the worker's clocks <= t - tau - 1 are done: tau = 0 is sequential, no bound eventual.
// A clock is done when everything that was pushed in it is acknowledged. Whatever the bound, `most` clocks may be open:
// without it a fast worker's queue of pushes would grow without end.
// Depends on: base.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <set>

namespace trireme::ps {

inline constexpr std::uint64_t kEventual = std::numeric_limits<std::uint64_t>::max();

class BoundedDelay {
 public:
  explicit BoundedDelay(std::uint64_t tau, std::uint64_t most = 16) : tau_(tau), most_(most) {}

  /// Clocks begin with 1.
  std::uint64_t next() const { return begun_ + 1; }
  bool may_begin() const {
    return open_.size() < most_ && (open_.empty() || tau_ == kEventual || next() - *open_.begin() <= tau_);
  }
  /// Before which this clock must be done for the next to begin; 0: none.
  std::uint64_t awaited() const { return may_begin() || open_.empty() ? 0 : *open_.begin(); }
  std::uint64_t begin() {
    const std::uint64_t clock = ++begun_;
    // Of the clocks before this one, the oldest that is not done: what the worker computes with lacks so many.
    staleness_ = open_.empty() ? 0 : clock - *open_.begin();
    most_stale_ = std::max(most_stale_, staleness_);
    open_.insert(clock);
    return clock;
  }
  void done(std::uint64_t clock) { open_.erase(clock); }

  std::uint64_t tau() const { return tau_; }
  std::uint64_t open() const { return open_.size(); }
  std::uint64_t staleness() const { return staleness_; }    ///< of the clock that began last
  std::uint64_t most_stale() const { return most_stale_; }  ///< of all

 private:
  std::uint64_t tau_, most_;
  std::uint64_t begun_ = 0, staleness_ = 0, most_stale_ = 0;
  std::set<std::uint64_t> open_;
};

}  // namespace trireme::ps
