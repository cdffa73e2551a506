// plan/makespan.h -- how long a table takes, and nothing else of it.
//
// What schedule::replay() says of the same times (tests/plan/makespan_test.cpp holds them against each other, kind by
// kind), without writing transfers and waits down first: a search times thousands of tables.
// Depends on: schedule.
#pragma once

#include <vector>

#include "trireme/schedule/schedule.h"
#include "trireme/schedule/times.h"

namespace trireme::plan {

/// Of one instruction; 0 for what is no pass. Of a pair, the backward half is another chunk's.
double pass_seconds(const std::vector<schedule::Times>& chunks, const schedule::Instruction& instruction);

/// What an instruction of a pass in parts computes: `chunks` have its exchanges in their passes, where it waits for
/// them.
double part_seconds(const std::vector<schedule::Times>& chunks, const schedule::Instruction& part, bool backward);
/// Where rows of experts travel, overlapped pairs in parts (schedule/interleave.h), with transfers: as the executor has
/// them. Any other table as it is.
schedule::Schedule pairs_in_parts(const schedule::Schedule& table, const std::vector<schedule::Times>& chunks);

/// `chunks`: the times of passes through each chunk; `link`: of a message. A table of several steps, or one that says
/// itself when it sends, is replayed as it is written.
double makespan(const schedule::Schedule& table, const std::vector<schedule::Times>& chunks, double link);

}  // namespace trireme::plan
