// schedule/interleave.h -- overlapped pairs of passes in parts, where mixtures of experts send rows between ranks
// (DeepSeek-V3, 2412.19437, section 3.2.1): while rows of one micro are on their way, the rank computes the other.
//
//   F3.0+B1.1    ->    FA3.0 D3.0  BA1.1 D1.1  E3.0  E1.1  C3.0 D3.0  C1.1 D1.1  E3.0  E1.1  C3.0  C1.1
//
// FA and BA begin a forward and a whole backward and go up to where the first mixture sends; D posts rows to the ranks
// of their experts, E waits for them, computes the experts and posts what they give, C waits for that and goes on to
// the next mixture or to the pass's end. A chunk with m mixtures has m of each. All ranks that share experts execute
// lists with the same passes, so that their exchanges match.
// Depends on: schedule, times.
#pragma once

#include <vector>

#include "trireme/schedule/schedule.h"
#include "trireme/schedule/times.h"

namespace trireme::schedule {

/// `table` has its updates and transfers, or needs none. `mixtures` [chunk]: those whose rows travel. Pairs without any
/// stay as they are, and so does every other pass, which waits for its rows.
Schedule interleave_pairs(const Schedule& table, std::vector<int> mixtures);

/// What an instruction in parts takes of the computing time of its pass: `seconds` in all, of which `experts` is the
/// share of the experts; the rest is shared evenly by what lies between them. Dispatches take none.
double part_time(Op op, double seconds, double experts, int mixtures);

/// Which passes of a rank are in parts and not over yet, as its list is executed.
class OpenPasses {
 public:
  explicit OpenPasses(const Schedule& schedule) : schedule_(&schedule) {}
  struct Open {
    int chunk = 0, micro = 0;
    bool backward = false;
    Op next = Op::kDispatch;
    int mixtures_left = 0;
  };
  /// The pass that a begin or a part belongs to, as it was before; null: a part of no open pass.
  const Open* find(const Instruction& it) const;
  /// After a begin or a part.
  void step(const Instruction& it);
  bool empty() const { return open_.empty(); }
  const std::vector<Open>& open() const { return open_; }

 private:
  const Schedule* schedule_;
  std::vector<Open> open_;
};

int mixtures_of(const Schedule& schedule, int chunk);
bool has_parts(const Schedule& schedule);

}  // namespace trireme::schedule
