// schedule/passes.h -- what follows from a table of computation, added once for all builders.
//
// In this order: keep_micros, add_recompute, add_updates, versions (versions.h), repeat, add_transfers.
// Depends on: schedule.
#pragma once

#include "trireme/schedule/schedule.h"

namespace trireme::schedule {

/// Without the micros from `micros` on. A valid schedule stays valid: order only gets looser.
Schedule keep_micros(Schedule schedule, int micros);

/// With every forward done again before its backward, but where the backward follows its forward at once: nothing
/// would be saved there. It stands before the wait for the gradient, so it can run while that is on its way.
Schedule add_recompute(const Schedule& schedule);

/// With the reductions and the optimizer step after the last gradients of each step. A chunk's gradients are reduced
/// as soon as they are complete, but those of chunks that several ranks hold only at the end and in order of chunks:
/// such ranks complete them in different orders, and calls of a group must come in one.
Schedule add_updates(const Schedule& schedule);

bool has_updates(const Schedule& schedule);

/// The step several times over, without emptying the pipeline between: a rank begins the next step when it has ended
/// its own part of this one.
Schedule repeat(const Schedule& schedule, int steps);

/// With posted sends, posted receives and waits where data crosses ranks. A receive is posted one computation before
/// it is needed, so that it moves during that one; receives from a rank are posted in the order that rank sends. At
/// most one send from a rank to another is under way: the next is posted when the one before was waited for.
/// What has no producer gets no receive; check() then says what is missing. Every instruction must stand on the rank
/// that holds its chunk.
Schedule add_transfers(const Schedule& schedule);

/// A table as people write it, with updates where it has none and transfers where it has none.
Schedule complete(const Schedule& schedule);

}  // namespace trireme::schedule
