#include <fmt/format.h>

#include <algorithm>

#include "trireme/schedule/check_parts.h"

namespace trireme::schedule {

namespace {

/// Executes one rank: each step's gradients of a chunk, then their reduction, then one optimizer step for all chunks.
class RankUpdates {
 public:
  RankUpdates(const Schedule& schedule, int rank, Faults& faults)
      : schedule_(schedule), rank_(rank), faults_(faults), held_(chunks_of(schedule, rank)) {
    chunks_.resize(held_.size());
    for (std::size_t i = 0; i < held_.size(); ++i)
      chunks_[i].gradients.assign(static_cast<std::size_t>(schedule.steps()), 0);
    // Which of the micros of a step meet a chunk here depends on their routes.
    for (int micro = 0; micro < schedule.micros; ++micro) {
      for (std::size_t i = 0; i < held_.size(); ++i) {
        if (schedule.rank_of(held_[i], micro) == rank)
          ++chunks_[i].gradients[static_cast<std::size_t>(schedule.step_of(micro))];
      }
    }
  }

  void run() {
    const auto& list = schedule_.ranks[static_cast<std::size_t>(rank_)];
    for (position_ = 0; position_ < list.size(); ++position_) {
      now_ = &list[position_];
      if (does_weight_gradient(*now_)) gradient();
      if (now_->op == Op::kReduceGradients) reduce();
      if (now_->op == Op::kOptimizerStep) update();
    }
    if (updates_ != schedule_.steps())
      faults_.add(
          fmt::format("rank {}: {} optimizer steps, but the micros make {}", rank_, updates_, schedule_.steps()));
  }

 private:
  struct Chunk {
    std::vector<int> gradients;  // by step: still to come
    int reduced = 0;             // steps whose gradients were reduced
  };
  Chunk& chunk(int index) { return chunks_[static_cast<std::size_t>(std::ranges::find(held_, index) - held_.begin())]; }
  void fault(const std::string& why) { faults_.at(rank_, position_, *now_, why); }

  void gradient() {
    const int step = schedule_.step_of(backward_micro(*now_));
    Chunk& mine = chunk(backward_chunk(*now_));
    if (step < mine.reduced)
      fault(fmt::format("the gradients of step {} of chunk {} were reduced before", step, backward_chunk(*now_)));
    --mine.gradients[static_cast<std::size_t>(step)];
  }

  void reduce() {
    Chunk& mine = chunk(now_->chunk);
    const int step = mine.reduced++;
    if (step >= schedule_.steps()) return fault(fmt::format("there are {} steps only", schedule_.steps()));
    if (const int missing = mine.gradients[static_cast<std::size_t>(step)]; missing > 0)
      fault(fmt::format("{} of the gradients of step {} are still to come", missing, step));
    // Waves are pushed while those before them are still under way, within the clock distance.
    const int under_way = schedule_.weights == WeightChoice::kWaves ? schedule_.clock_distance + 1 : 0;
    if (step > updates_ + under_way) fault(fmt::format("the optimizer step {} has not been made before", updates_));
  }

  void update() {
    for (std::size_t i = 0; i < held_.size(); ++i) {
      const bool waves = schedule_.weights == WeightChoice::kWaves;
      if (waves ? chunks_[i].reduced <= updates_ : chunks_[i].reduced != updates_ + 1)
        fault(fmt::format("the gradients of chunk {} were not reduced for it", held_[i]));
    }
    ++updates_;
  }

  const Schedule& schedule_;
  int rank_;
  Faults& faults_;
  std::vector<int> held_;
  std::vector<Chunk> chunks_;
  int updates_ = 0;
  const Instruction* now_ = nullptr;
  std::size_t position_ = 0;
};

/// Ranks that share chunks are a group, and the calls of a group come in one order.
void check_order(const Schedule& schedule, Faults& faults) {
  const auto calls = [&](int rank, int other) {
    std::vector<int> chunks;
    for (const Instruction& it : schedule.ranks[static_cast<std::size_t>(rank)]) {
      if (it.op != Op::kReduceGradients) continue;
      const auto holders = holders_of(schedule, it.chunk);
      if (std::ranges::find(holders, other) != holders.end()) chunks.push_back(it.chunk);
    }
    return chunks;
  };
  for (int chunk = 0; chunk < schedule.chunks(); ++chunk) {
    const auto holders = holders_of(schedule, chunk);
    for (std::size_t i = 1; i < holders.size(); ++i) {
      const auto mine = calls(holders[0], holders[i]), theirs = calls(holders[i], holders[0]);
      const auto [left, right] = std::ranges::mismatch(mine, theirs);
      if (left == mine.end() && right == theirs.end()) continue;
      faults.add(
          fmt::format("rank {} and rank {} share chunks, but do not reduce them in the same order: reduction {} "
                      "is of chunk {} and of chunk {}",
                      holders[0], holders[i], left - mine.begin(), left == mine.end() ? -1 : *left,
                      right == theirs.end() ? -1 : *right));
      return;
    }
  }
}

}  // namespace

void check_updates(const Schedule& schedule, Report& report) {
  const auto is_update = [](const Instruction& it) {
    return it.op == Op::kReduceGradients || it.op == Op::kOptimizerStep;
  };
  // A table may leave updates to whoever runs it, but not on some ranks only.
  const bool any =
      std::ranges::any_of(schedule.ranks, [&](const auto& list) { return std::ranges::any_of(list, is_update); });
  if (!any) return;
  Faults faults(report);
  for (int rank = 0; rank < static_cast<int>(schedule.ranks.size()); ++rank) {
    if (!chunks_of(schedule, rank).empty()) RankUpdates(schedule, rank, faults).run();
  }
  if (report.fine() && schedule.routes.size() > 1) check_order(schedule, faults);
}

}  // namespace trireme::schedule
