// pipeline/speculation_window.h -- what ranks can do of the next step before anything depends on its backward passes.
//
// Where an update is validated after the fact (zero-bubble schedules), ranks go on with these forwards meanwhile. When
// it turns out wrong, all of them go back to where their opening begins: nobody has used a gradient yet, so nothing
// else has to be undone. Messages that only one end has posted by then are evened out first; both ends know them from
// the table.
// Depends on: base, schedule. No tensors.
#pragma once

#include <cstddef>
#include <vector>

#include "trireme/schedule/schedule.h"

namespace trireme::pipeline {

/// By rank, positions [begin, end) in its list: behind an optimizer step, up to the first instruction that depends on a
/// backward pass of the next step, on whatever rank.
struct SpeculationWindow {
  std::vector<std::size_t> begin, end;
};

/// After each optimizer step of the table, in order.
std::vector<SpeculationWindow> find_openings(const schedule::Schedule& table);

/// What this rank must still send, and receive, so that every transfer of the step after update `step` that some rank
/// has posted by the end of its opening has its other end.
struct Unmatched {
  std::vector<schedule::Instruction> sends, receives;
  /// Posted before the opening began, while the last step was ending: to be posted again.
  std::vector<schedule::Instruction> early_receives;
};
Unmatched find_unmatched(const schedule::Schedule& table, const SpeculationWindow& opening, int step, int rank);

}  // namespace trireme::pipeline
