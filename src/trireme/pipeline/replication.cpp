#include "trireme/pipeline/replication.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "trireme/base/error.h"

namespace trireme::pipeline {
namespace {

/// The best pipeline of entries [i, j) on m components of a level: how long it takes, and its last stage.
struct BestPlan {
  double seconds = std::numeric_limits<double>::infinity();
  int stages = 0;         // of this level
  std::size_t begin = 0;  // of the last one
  int components = 0;     // of the last one
};

class ReplicationPlanner {
 public:
  ReplicationPlanner(std::span<const EntryProfile> entries, std::span<const LinkLevel> levels)
      : entries_(entries), levels_(levels), seconds_(entries.size() + 1), weights_(entries.size() + 1) {
    for (std::size_t i = 0; i < entries.size(); ++i) {
      seconds_[i + 1] = seconds_[i] + entries[i].seconds;
      weights_[i + 1] = weights_[i] + entries[i].weight_bytes;
    }
    workers_.push_back(1);
    for (const LinkLevel& level : levels) workers_.push_back(workers_.back() * level.count);
    for (std::size_t level = 0; level < levels.size(); ++level) solve(level);
  }

  ReplicationPlan plan() const {
    const std::size_t top = levels_.size() - 1;
    return {.stages = stages(levels_.size(), 0, entries_.size(), levels_[top].count, 0),
            .seconds = best(top, 0, entries_.size(), levels_[top].count).seconds};
  }

 private:
  std::size_t cell(std::size_t level, std::size_t i, std::size_t j, int m) const {
    const std::size_t row = i * (entries_.size() + 1) + j;
    return row * (static_cast<std::size_t>(levels_[level].count) + 1) + static_cast<std::size_t>(m);
  }
  const BestPlan& best(std::size_t level, std::size_t i, std::size_t j, int m) const {
    return best_[level][cell(level, i, j, m)];
  }
  /// A^(k-1)(i..j) on one component of level k: all of its workers.
  double of_component(std::size_t level, std::size_t i, std::size_t j) const {
    if (level == 0) return seconds_[j] - seconds_[i];
    return best(level - 1, i, j, levels_[level - 1].count).seconds;
  }

  void solve(std::size_t level) {
    const auto [count, bandwidth] = levels_[level];
    best_.emplace_back(cell(level, entries_.size(), entries_.size(), count) + 1);
    // Only the outermost level begins at the first entry alone; what is inside may begin anywhere.
    const std::size_t starts = level + 1 == levels_.size() ? 1 : entries_.size();
    for (std::size_t i = 0; i < starts; ++i) {
      best_[level][cell(level, i, i, 0)].seconds = 0;
      for (std::size_t j = i + 1; j <= entries_.size(); ++j) {
        for (std::size_t s = i; s < j; ++s) {
          const double component = of_component(level, s, j), weights = weights_[j] - weights_[s];
          // Activations go forward and their gradients back over the link between the stages.
          const double link = s == i ? 0 : 2 * entries_[s - 1].activation_bytes / bandwidth;
          for (int last = 1; last <= count; ++last) {
            const double here = std::max(link, stage_seconds(component, weights, last, bandwidth));
            for (int m = last; m <= count; ++m) {
              const BestPlan& before = best(level, i, s, m - last);
              const double seconds = std::max(before.seconds, here);
              BestPlan& found = best_[level][cell(level, i, j, m)];
              if (seconds < found.seconds || (seconds == found.seconds && before.stages + 1 < found.stages)) {
                found = {seconds, before.stages + 1, s, last};
              }
            }
          }
        }
      }
    }
  }

  /// The stages of entries [i, j) on the m components of a level that begin at worker `first`. Level 0 is a worker.
  std::vector<ReplicatedStage> stages(std::size_t level, std::size_t i, std::size_t j, int m, int first) const {
    if (level == 0) return {{.stretch = {i, j}, .workers = {first}}};
    const BestPlan& last = best(level - 1, i, j, m);
    std::vector<ReplicatedStage> all;
    if (last.begin > i) all = stages(level, i, last.begin, m - last.components, first);
    const int begin = first + (m - last.components) * workers_[level - 1];
    const int inner = level == 1 ? 1 : levels_[level - 2].count;
    std::vector<ReplicatedStage> merged;
    for (int component = 0; component < last.components; ++component) {
      const auto of_one = stages(level - 1, last.begin, j, inner, begin + component * workers_[level - 1]);
      if (merged.empty()) merged.resize(of_one.size());
      for (std::size_t stage = 0; stage < of_one.size(); ++stage) {
        ReplicatedStage& to = merged[stage];
        to.stretch = of_one[stage].stretch;
        // Components take turns first, then the workers of one: a micro stays in one component through its stages.
        to.workers.resize(of_one[stage].workers.size() * static_cast<std::size_t>(last.components));
        for (std::size_t turn = 0; turn < of_one[stage].workers.size(); ++turn) {
          to.workers[turn * static_cast<std::size_t>(last.components) + static_cast<std::size_t>(component)] =
              of_one[stage].workers[turn];
        }
      }
    }
    all.insert(all.end(), merged.begin(), merged.end());
    return all;
  }

  std::span<const EntryProfile> entries_;
  std::span<const LinkLevel> levels_;
  std::vector<double> seconds_, weights_;    // of the first so many entries
  std::vector<int> workers_;                 // of a component of each level, a worker first
  std::vector<std::vector<BestPlan>> best_;  // by level
};

}  // namespace

double stage_seconds(double of_component, double weight_bytes, int components, double bytes_per_second) {
  return std::max(of_component, 2.0 * (components - 1) * weight_bytes / bytes_per_second) / components;
}

ReplicationPlan plan_replication(std::span<const EntryProfile> entries, std::span<const LinkLevel> levels) {
  for (const LinkLevel& level : levels) {
    if (level.count < 1 || !(level.bytes_per_second > 0)) {
      throw ConfigError(fmt::format("a level of {} components with links of {} bytes a second cannot be planned for",
                                    level.count, level.bytes_per_second));
    }
  }
  if (entries.empty() || levels.empty()) {
    throw ConfigError(
        fmt::format("{} entries cannot be planned for {} levels of links", entries.size(), levels.size()));
  }
  return ReplicationPlanner(entries, levels).plan();
}

}  // namespace trireme::pipeline
