// schedule/replay.h -- how long a table takes, exactly, given how long each instruction and each message takes.
//
// A rank runs its list in order and stops only at waits, and at an optimizer step until the reductions it posted are
// over. A link carries the messages of one channel in the order they were posted, one at a time; a message needs no
// posted receive to start. A reduction starts when all holders of the chunk have posted it and runs beside everything
// else. The work is linear in the number of instructions.
// Depends on: schedule, times, memory.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "trireme/schedule/memory.h"
#include "trireme/schedule/schedule.h"
#include "trireme/schedule/times.h"

namespace trireme::schedule {

struct ReplayOptions {
  Times times = {};
  /// Where given, the time of each instruction that is not a transfer, in place of `times`.
  std::function<double(int rank, const Instruction& instruction)> time_of = {};
  /// Where given, the time that a rank itself takes to post a transfer or to end a wait whose message is there.
  std::function<double(int rank, const Instruction& transfer)> transfer_of = {};
  /// Where given, the time that rows of a mixture are on their way, to experts or back, in place of `times.exchange`.
  /// A pass in parts has them beside what the rank computes meanwhile, one after the other; a whole one waits for them,
  /// which `time_of`, where it is given, has in its times.
  std::function<double(int rank, int chunk)> exchange_of = {};
  /// No rank begins an update before all have come to theirs: it needs the gradient norm over all stages.
  bool updates_together = false;
  /// Where given, what a part of a pass computes (interleave.h), in place of `times` and `time_of`.
  std::function<double(int rank, const Instruction& part, bool backward)> part_of = {};
  /// Where given, the time of each message, in place of `times.link`.
  std::function<double(int from, int to, const Instruction& send)> link_of = {};
  std::optional<Sizes> sizes = {};  // to have peak memory
  bool keep_spans = false;
  bool keep_path = false;
};

struct Span {
  Instruction instruction;
  double start, end;
};

struct RankTiming {
  double busy = 0;
  double first_start = 0, last_end = 0;
  std::vector<Span> spans = {};  // of what takes time, and of every optimizer step; where asked for
};

/// One link of the chain of causes that makes the table take as long as it does: each starts when the one before ends.
struct PathStep {
  int rank;  // of a message: the sender
  Instruction instruction;
  double start, end;
};

struct Timing {
  double makespan = 0;
  std::vector<RankTiming> ranks;
  std::vector<PathStep> path;       // from the first instruction to the end of the last; where asked for
  std::vector<double> peak_memory;  // by rank; where sizes were given

  double work() const;
  double idle(int rank) const { return makespan - ranks[static_cast<std::size_t>(rank)].busy; }
  /// 1 - work / (ranks x makespan).
  double bubble() const;
};

/// For a table that check() finds fine. Transfers are added where there are none.
Timing replay(const Schedule& schedule, const ReplayOptions& options = {});

/// The idle share of what `longer` has more than `shorter`: the same kind over fewer and more steps. Filling and
/// emptying the pipeline, which happens once, drops out.
double steady_bubble(const Timing& shorter, const Timing& longer);

}  // namespace trireme::schedule
