#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "trireme/schedule/check_parts.h"
#include "trireme/schedule/waves.h"

namespace trireme::schedule {

namespace {

constexpr int kNone = -1;

/// Executes one rank as its executor will: what is held, and what the next pass through each chunk computes with.
class RankVersions {
 public:
  RankVersions(const Schedule& schedule, int rank, Report& report)
      : schedule_(schedule), rank_(rank), report_(report), faults_(report) {
    for (const int chunk : chunks_of(schedule, rank)) chunks_[chunk] = {};
  }

  void run() {
    const auto& list = schedule_.ranks[static_cast<std::size_t>(rank_)];
    std::size_t versions = chunks_.empty() ? 0 : 1, copies = chunks_.size(), in_flight = 0;
    for (position_ = 0; position_ < list.size(); ++position_) {
      now_ = &list[position_];
      if (is_version(now_->op)) {
        weights(chunks_[now_->chunk], next_pass_is_forward(list, position_));
        std::size_t all = 0;
        for (const auto& [chunk, held] : chunks_) {
          versions = std::max(versions, 1 + held.stashed.size());
          all += 1 + held.stashed.size() + (held.predicted[0] != kNone) + (held.predicted[1] != kNone);
        }
        copies = std::max(copies, all);
      }
      if (does_forward(*now_)) {
        const int version = taken(now_->chunk);
        for (int i = 0; i < forward_count(*now_); ++i) report_.uses.forward(now_->chunk, now_->micro + i) = version;
      }
      // By the law of waves each micro in flight has weights of its own, made at its forward.
      const bool waves = schedule_.weights == WeightChoice::kWaves;
      if (waves && does_forward(*now_)) {
        in_flight += static_cast<std::size_t>(forward_count(*now_));
        versions = std::max(versions, 1 + in_flight), copies = std::max(copies, chunks_.size() + in_flight);
      }
      if (waves && does_input_gradient(*now_)) --in_flight;
      if (does_input_gradient(*now_))
        report_.uses.backward(backward_chunk(*now_), backward_micro(*now_)) =
            waves ? report_.uses.forward(backward_chunk(*now_), backward_micro(*now_)) : taken(backward_chunk(*now_));
      if (now_->op == Op::kOptimizerStep) ++present_;
    }
    for (const auto& [chunk, held] : chunks_) {
      if (!held.stashed.empty())
        faults_.add(
            fmt::format("rank {}: version {} of chunk {} is never dropped", rank_, *held.stashed.begin(), chunk));
      if (held.next != kNone)
        faults_.add(fmt::format("rank {}: no pass through chunk {} follows to compute with version {}", rank_, chunk,
                                held.next));
    }
    report_.peak_versions.push_back(static_cast<int>(versions));
    report_.peak_weights.push_back(static_cast<int>(copies));
  }

 private:
  struct Held {
    std::set<int> stashed;
    int predicted[2] = {kNone, kNone};  // for backwards, for forwards
    int next = kNone;                   // what the next pass computes with; kNone: the present version
  };
  void fault(const std::string& why) { faults_.at(rank_, position_, *now_, why); }

  void weights(Held& held, bool forward) {
    const int version = now_->micro;
    switch (now_->op) {
      case Op::kStashWeights:
        if (version != present_) fault(fmt::format("version {} is present", present_));
        if (!held.stashed.insert(version).second) fault("this version is held already");
        return;
      case Op::kDropWeights:
        if (held.stashed.erase(version) == 0) fault("this version is not held");
        return;
      case Op::kPredictWeights:
        if (schedule_.weights != WeightChoice::kPredictMomentum && schedule_.weights != WeightChoice::kPredictAdam)
          fault(fmt::format("weights: {} predicts nothing",
                            name_in(enum_names(std::type_identity<WeightChoice>{}), schedule_.weights)));
        if (version < present_) fault(fmt::format("version {} is present: this one is in the past", present_));
        held.predicted[forward ? 1 : 0] = version;
        break;
      default:
        if (!held.stashed.contains(version) && held.predicted[forward ? 1 : 0] != version)
          fault("this version is not held");
        break;
    }
    if (held.next != kNone) fault(fmt::format("the next pass computes with version {} already", held.next));
    held.next = version;
  }

  int taken(int chunk) {
    Held& held = chunks_[chunk];
    if (held.next == kNone && schedule_.weights == WeightChoice::kPredictAdam)
      fault("the micros of a step share a prediction, but none is loaded");
    if (held.next == kNone) return present_;
    if (now_->op == Op::kForwardBackward || is_begin(now_->op))
      fault("an overlapped pair computes with the present weights only");
    return std::exchange(held.next, kNone);
  }

  const Schedule& schedule_;
  int rank_;
  Report& report_;
  Faults faults_;
  std::map<int, Held> chunks_;
  int present_ = 0;
  const Instruction* now_ = nullptr;
  std::size_t position_ = 0;
};

/// Whether every pass met the version that the law of the table says.
class Law {
 public:
  Law(const Schedule& schedule, Report& report) : schedule_(schedule), uses_(report.uses), faults_(report) {}

  void run() {
    for (int chunk = 0; chunk < schedule_.chunks(); ++chunk) {
      for (int micro = 0; micro < schedule_.micros; ++micro) {
        const int forward = uses_.forward(chunk, micro), backward = uses_.backward(chunk, micro);
        expect(chunk, micro, "forward", forward, lawful(chunk, micro, /*is_forward=*/true));
        expect(chunk, micro, "backward", backward, lawful(chunk, micro, /*is_forward=*/false));
      }
    }
  }

 private:
  void expect(int chunk, int micro, std::string_view pass, int version, int wanted) {
    if (version == wanted) return;
    faults_.add(
        fmt::format("rank {}: the {} of micro {} through chunk {} computes with version {} of the weights; by "
                    "the law \"{}\" it is version {}",
                    schedule_.rank_of(chunk, micro), pass, micro, chunk, version,
                    name_in(enum_names(std::type_identity<WeightChoice>{}), schedule_.weights), wanted));
  }

  int lawful(int chunk, int micro, bool is_forward) const {
    const int step = schedule_.step_of(micro);
    const int same = is_forward ? uses_.forward(chunk, micro) : uses_.backward(chunk, micro);
    switch (schedule_.weights) {
      case WeightChoice::kFlush:
        return step;
      case WeightChoice::kStash:
      case WeightChoice::kPredictMomentum:
        return uses_.forward(chunk, micro);
      case WeightChoice::kVerticalSync:
        return uses_.forward(0, micro);
      case WeightChoice::kDoubleBuffer:
        return std::max(0, step - 1);
      case WeightChoice::kWaves:
        return WaveLaw::of(schedule_).version(own_number(schedule_, micro));
      case WeightChoice::kPredictAdam: {
        const int first = schedule_.update_every == 0 ? 0 : step * schedule_.update_every;
        return is_forward ? uses_.forward(chunk, first) : uses_.backward(chunk, first);
      }
      default:
        return same;
    }
  }

  const Schedule& schedule_;
  const VersionUses& uses_;
  Faults faults_;
};

}  // namespace

void check_versions(const Schedule& schedule, Report& report) {
  report.uses = VersionUses(schedule.chunks(), schedule.micros);
  for (int rank = 0; rank < static_cast<int>(schedule.ranks.size()); ++rank) RankVersions(schedule, rank, report).run();
  const bool updates = std::ranges::any_of(schedule.ranks, [](const auto& list) {
    return std::ranges::any_of(list, [](const Instruction& it) { return it.op == Op::kOptimizerStep; });
  });
  // Without updates there is one version only, whatever the steps are.
  if (!updates || !report.fine()) return;
  Law(schedule, report).run();
  for (int chunk = 0; chunk < schedule.chunks(); ++chunk) {
    for (int micro = 0; micro < schedule.micros; ++micro) {
      const int oldest = std::min(report.uses.forward(chunk, micro), report.uses.backward(chunk, micro));
      report.delay = std::max(report.delay, schedule.step_of(micro) - oldest);
    }
  }
}

}  // namespace trireme::schedule
