#include "trireme/schedule/interleave.h"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/schedule/check_parts.h"

namespace trireme::schedule {
namespace {

/// A pass as stretches without a pause: after each of them another pass may go on.
std::vector<std::vector<Instruction>> stretches_of(Op whole, int chunk, int micro, int mixtures) {
  if (mixtures == 0) return {{make(whole, chunk, micro)}};
  const Op begin = whole == Op::kForward ? Op::kBeginForward : Op::kBeginBackward;
  std::vector<std::vector<Instruction>> stretches{{make(begin, chunk, micro), make(Op::kDispatch, chunk, micro)}};
  for (int mixture = 1; mixture <= mixtures; ++mixture) {
    stretches.push_back({make(Op::kExpert, chunk, micro)});
    stretches.push_back({make(Op::kCombine, chunk, micro)});
    if (mixture < mixtures) stretches.back().push_back(make(Op::kDispatch, chunk, micro));
  }
  return stretches;
}

class PartsCheck {
 public:
  PartsCheck(const Schedule& schedule, Report& report) : schedule_(schedule), faults_(report) {}

  void run() {
    if (!schedule_.mixtures.empty() && schedule_.mixtures.size() != static_cast<std::size_t>(schedule_.chunks()))
      return faults_.add(
          fmt::format("mixtures: {} are given for {} chunks", schedule_.mixtures.size(), schedule_.chunks()));
    if (!has_parts(schedule_)) return;
    if (schedule_.ranks.size() > 1 && !has_transfers(schedule_))
      return faults_.add(
          "passes are in parts, but transfers are not written: nobody knows where they may stand; write F+B, which "
          "is cut into parts when it runs");
    for (rank_ = 0; rank_ < static_cast<int>(schedule_.ranks.size()); ++rank_) look_at_rank();
  }

 private:
  void look_at_rank() {
    OpenPasses open(schedule_);
    const auto& list = schedule_.ranks[static_cast<std::size_t>(rank_)];
    for (std::size_t position = 0; position < list.size(); ++position) {
      const Instruction& it = list[position];
      const auto fault = [&](const std::string& why) { faults_.at(rank_, position, it, why); };
      if (is_begin(it.op) || is_part(it.op)) {
        if (!fits(open, it, fault)) return;
        open.step(it);
        continue;
      }
      for (const OpenPasses::Open& other : open.open()) {
        if (!is_pass(it.op)) {
          fault(fmt::format("micro {} is in the midst of its pass through chunk {}", other.micro, other.chunk));
          return;
        }
        if (it.micro != other.micro && it.back_micro != other.micro) continue;
        fault(fmt::format("its micro is in the midst of a pass through chunk {}", other.chunk));
        return;
      }
    }
    for (const OpenPasses::Open& left : open.open())
      faults_.add(
          fmt::format("rank {}: the pass of micro {} through chunk {} never ends", rank_, left.micro, left.chunk));
  }

  template <typename Fault>
  bool fits(const OpenPasses& open, const Instruction& it, const Fault& fault) const {
    const OpenPasses::Open* pass = open.find(it);
    if (is_begin(it.op)) {
      const bool same = std::ranges::any_of(open.open(), [&](const auto& other) { return other.micro == it.micro; });
      if (mixtures_of(schedule_, it.chunk) == 0) {
        fault(fmt::format("chunk {} has no mixture that sends rows", it.chunk));
      } else if (same) {
        fault("its micro is in the midst of another pass");
      } else {
        return true;
      }
      return false;
    }
    if (pass == nullptr) {
      fault(fmt::format("micro {} is in no pass in parts through chunk {}", it.micro, it.chunk));
    } else if (pass->next != it.op) {
      fault(fmt::format("its next part is {} ({})", info(pass->next).mnemonic, info(pass->next).words));
    } else {
      return true;
    }
    return false;
  }

  const Schedule& schedule_;
  Faults faults_;
  int rank_ = 0;
};

}  // namespace

Schedule interleave_pairs(const Schedule& table, std::vector<int> mixtures) {
  TRIREME_CHECK(mixtures.size() == static_cast<std::size_t>(table.chunks()), "mixtures of {} chunks for {}",
                mixtures.size(), table.chunks());
  Schedule result = table;
  result.mixtures = std::move(mixtures);
  for (auto& list : result.ranks) {
    std::vector<Instruction> with;
    with.reserve(list.size());
    for (const Instruction& it : list) {
      const bool pair = it.op == Op::kForwardBackward;
      const int forward = pair ? mixtures_of(result, it.chunk) : 0,
                backward = pair ? mixtures_of(result, it.back_chunk) : 0;
      if (forward + backward == 0) {
        with.push_back(it);
        continue;
      }
      const auto ahead = stretches_of(Op::kForward, it.chunk, it.micro, forward),
                 back = stretches_of(Op::kBackward, it.back_chunk, it.back_micro, backward);
      for (std::size_t i = 0; i < std::max(ahead.size(), back.size()); ++i) {
        for (const auto* pass : {&ahead, &back}) {
          if (i < pass->size()) with.insert(with.end(), (*pass)[i].begin(), (*pass)[i].end());
        }
      }
    }
    list = std::move(with);
  }
  return result;
}

double part_time(Op op, double seconds, double experts, int mixtures) {
  if (op == Op::kDispatch) return 0;
  if (op == Op::kExpert) return seconds * experts / mixtures;
  return seconds * (1 - experts) / (mixtures + 1);
}

const OpenPasses::Open* OpenPasses::find(const Instruction& it) const {
  const auto found =
      std::ranges::find_if(open_, [&](const Open& open) { return open.chunk == it.chunk && open.micro == it.micro; });
  return found == open_.end() ? nullptr : &*found;
}

void OpenPasses::step(const Instruction& it) {
  if (is_begin(it.op)) {
    open_.push_back({.chunk = it.chunk,
                     .micro = it.micro,
                     .backward = it.op == Op::kBeginBackward,
                     .mixtures_left = mixtures_of(*schedule_, it.chunk)});
    return;
  }
  for (std::size_t i = 0; i < open_.size(); ++i) {
    Open& open = open_[i];
    if (open.chunk != it.chunk || open.micro != it.micro) continue;
    if (it.op == Op::kDispatch) open.next = Op::kExpert;
    if (it.op == Op::kExpert) open.next = Op::kCombine;
    if (it.op != Op::kCombine) return;
    open.next = Op::kDispatch;
    if (--open.mixtures_left == 0) open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(i));
    return;
  }
}

int mixtures_of(const Schedule& schedule, int chunk) {
  return schedule.mixtures.empty() ? 0 : schedule.mixtures[static_cast<std::size_t>(chunk)];
}

bool has_parts(const Schedule& schedule) {
  return std::ranges::any_of(schedule.ranks, [](const auto& list) {
    return std::ranges::any_of(list, [](const Instruction& it) { return is_begin(it.op) || is_part(it.op); });
  });
}

void check_parts(const Schedule& schedule, Report& report) { PartsCheck(schedule, report).run(); }

}  // namespace trireme::schedule
