// ps/portions.h -- a batch in portions: fast replicas take more, and the slowest portions are taken twice.
//
// Sandblaster's load balancing (Dean et al. 2012, section 4.2): a batch is cut into portions much smaller than 1 / N of
// it, and whoever is free gets the next. When none is left, what is still out goes to a second replica too (a backup
// task, as in MapReduce), the oldest first; the first answer counts.
// Depends on: base.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

namespace trireme::ps {

inline constexpr int kPortionsPerReplica = 50;

class PortionScheduler {
 public:
  PortionScheduler(int portions, bool backup) : portions_(static_cast<std::size_t>(portions)), backup_(backup) {}

  /// What a free replica computes next; nothing: it waits for the next batch.
  std::optional<int> next(int replica);
  /// An answer; whether it is the portion's first.
  bool done(int portion);
  bool complete() const { return done_ == portions_.size(); }
  std::int64_t backups() const { return backups_; }

 private:
  struct Portion {
    std::set<int> replicas;  // that have it
    std::uint64_t issued = 0;
    bool done = false;
  };
  std::vector<Portion> portions_;
  bool backup_;
  std::size_t untouched_ = 0, done_ = 0;
  std::uint64_t issues_ = 0;
  std::int64_t backups_ = 0;
};

/// The time of a batch whose portions take `seconds[replica]` each, by the scheduler; with `shares`, each replica has
/// its 1 / N of the portions and nobody helps.
double batch_seconds(int portions, const std::vector<double>& seconds, bool backup);
double batch_seconds_in_shares(int portions, const std::vector<double>& seconds);

}  // namespace trireme::ps
