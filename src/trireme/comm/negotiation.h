// comm/negotiation.h -- which tensors all ranks have ready, decided by a coordinator (Sergeev, Del Balso 2018,
// Horovod).
//
// Ranks may finish tensors in different orders. Each tells the coordinator, rank 0, the names of those that are ready;
// one that all ranks have told of is summed next, by all of them in the coordinator's order. What ranks tell
// differently (type, size) is an error on every rank, and who keeps others waiting is named. All of it plain values;
// negotiator.h carries it out.
// Depends on: base, types.h.
#pragma once

#include <chrono>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "trireme/comm/types.h"

namespace trireme::comm {

/// A tensor that a rank has ready.
struct ReadyTensor {
  std::string name;
  DType type = DType::kF32;
  std::size_t count = 0;
  bool operator==(const ReadyTensor&) const = default;
  std::size_t bytes() const { return count * size_of(type); }
};

/// What a rank tells in a cycle.
struct ReadyReport {
  std::vector<ReadyTensor> ready;
  bool stops = false;  ///< it has nothing left, and will have nothing
  bool operator==(const ReadyReport&) const = default;
};

/// What all ranks do next.
struct Agreement {
  struct Refused {
    std::string name, why;
    bool operator==(const Refused&) const = default;
  };
  std::vector<ReadyTensor> sums;  ///< in this order
  std::vector<Refused> refused;
  bool forget = false;           ///< remembered names are no longer valid: tell everything by name
  bool stop = false;             ///< all ranks have nothing left
  std::size_t fusion_bytes = 0;  ///< from now on
  std::chrono::nanoseconds cycle{0};
  bool operator==(const Agreement&) const = default;
};

/// As they travel.
std::vector<std::byte> to_bytes(const ReadyReport& report);
std::vector<std::byte> to_bytes(const Agreement& agreement);
ReadyReport report_from(std::span<const std::byte> bytes);
Agreement agreement_from(std::span<const std::byte> bytes);

/// Neighbours of one type that are summed in one call, by their indices: each group at most `fusion_bytes`, or one.
std::vector<std::vector<std::size_t>> fuse(std::span<const ReadyTensor> tensors, std::size_t fusion_bytes);

/// The coordinator's table of who has told what.
class Coordinator {
 public:
  using Clock = std::chrono::steady_clock;
  explicit Coordinator(int ranks) : stopped_(static_cast<std::size_t>(ranks), false) {}

  void report(int rank, const ReadyReport& report, Clock::time_point now);
  /// What is complete, in the order in which it became so. `fusion_bytes` and `cycle` are left to the caller.
  Agreement agree();
  /// One line for each tensor that somebody has waited for so long: "... for 61 s: rank 2 has not; 0 and 1 have".
  std::vector<std::string> stalled(Clock::time_point now, std::chrono::nanoseconds after) const;

 private:
  struct Entry {
    ReadyTensor tensor;
    int first = 0;           // rank that told of it first
    std::vector<bool> told;  // by rank
    std::string mismatch;    // how ranks differ; empty: they do not
    Clock::time_point since = {};
  };
  std::map<std::string, Entry> entries_;
  std::vector<std::string> complete_;
  std::vector<bool> stopped_;
};

/// Tries fusion thresholds and cycle times in turn while work goes on, and stays with the fastest (Horovod's autotune,
/// on a grid). Rank 0 has one, and tells the others.
class CycleTuner {
 public:
  struct Setting {
    std::size_t fusion_bytes;
    std::chrono::nanoseconds cycle;
    bool operator==(const Setting&) const = default;
  };
  /// `samples` scores of each setting are taken; their median counts.
  CycleTuner(std::vector<Setting> settings, int samples) : settings_(std::move(settings)), samples_(samples) {}

  const Setting& setting() const { return settings_[at_]; }
  bool done() const { return done_; }
  /// Bytes summed in so many seconds with the present setting. True: the setting is another one now.
  bool score(double bytes, double seconds);

 private:
  std::vector<Setting> settings_;
  int samples_;
  std::vector<double> rates_;  // of the present setting
  std::size_t at_ = 0, best_ = 0;
  double best_rate_ = 0;
  bool done_ = false;
};
/// 1, 4, 16 and 64 MiB with cycles of 0.5, 1, 2.5 and 5 ms.
std::vector<CycleTuner::Setting> usual_settings();

}  // namespace trireme::comm
