// train/engine/work_stealing.h -- micro-batches of a step that ranks take from each other: FlexRR (Harlap), made exact.
//
// Each rank has the micro-batches that its share of the step gives it. It takes them one by one; when none is left it
// takes from the rank with most left, first 2.5 % of them at once, then 5 %, and at least one. Any rank can read any
// sample and a gradient is a sum over micro-batches, so who computes them changes the order of additions and nothing
// else. Who has which is a counter for each rank in the control plane, which answers while that rank computes. A rank's
// first micro-batch of a step is always its own: the noise scale is measured on it. Ranks that share rows (tp, cp) take
// what the first of them takes.
// Depends on: comm (control plane), data, step_plan.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/data/samples.h"
#include "trireme/train/engine/train_state.h"

namespace trireme::train {

class WorkStealing {
 public:
  /// Of ranks that have the same rows: whether this one chooses, and how it tells the others what.
  struct SharedRows {
    bool leads = true;
    std::function<void(std::span<std::int64_t> numbers)> tell = nullptr;  ///< null: there are no others
  };
  /// Both borrowed. The ranks of `group` share out each step.
  WorkStealing(comm::Group& group, const data::Samples& samples, SharedRows rows)
      : group_(group), samples_(samples), rows_(std::move(rows)) {}

  /// A step of which this rank has `fetched`; borrowed until end(). On all ranks together.
  void begin(const spec::Recipe& recipe, const Fetched& fetched, const Share& share);
  /// The next micro-batch that is this rank's to compute; nothing: all are taken.
  std::optional<data::Batch> next();
  /// When every rank has got nothing more, as gradients that are summed over all of them show.
  void end();
  /// Of the step, micro-batches of others that this rank took.
  std::int64_t stolen() const { return stolen_; }

 private:
  std::string key(int rank) const;
  /// Claims `count` micro-batches of a rank; the first of them.
  std::int64_t claim(int rank, std::int64_t count);
  struct Taken {
    std::int64_t rank = -1, micro = 0;  ///< -1: there is none left
  };
  bool steal();
  Taken choose();
  const StepPlan& plan_of(int rank);

  comm::Group& group_;
  const data::Samples& samples_;
  const SharedRows rows_;
  const spec::Recipe* recipe_ = nullptr;
  const Fetched* fetched_ = nullptr;
  Share share_;
  std::uint64_t round_ = 0;
  std::vector<std::optional<StepPlan>> plans_;  // of others, as they are needed
  std::deque<Taken> taken_;                     // claimed and not handed out
  bool first_left_ = false, own_left_ = false;
  std::int64_t stolen_ = 0;
};

/// How many of `left` micro-batches are taken at once: the first time from anybody in a step, then.
std::int64_t stolen_at_once(std::int64_t left, bool first);

}  // namespace trireme::train
