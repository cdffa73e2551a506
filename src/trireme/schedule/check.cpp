#include "trireme/schedule/check.h"

#include <fmt/format.h>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/schedule/check_parts.h"
#include "trireme/schedule/memory.h"
#include "trireme/schedule/passes.h"

namespace trireme::schedule {

std::string where(int rank, std::size_t position, const Instruction& instruction) {
  return fmt::format("rank {}, position {}, {} ({})", rank, position, to_text(instruction, true),
                     info(instruction.op).words);
}

Report check(const Schedule& schedule) {
  // Each part may rely on what the ones before it have found fine.
  Report report;
  check_computation(schedule, report);
  if (report.fine()) check_parts(schedule, report);
  if (report.fine()) check_updates(schedule, report);
  if (report.fine()) check_versions(schedule, report);
  if (report.fine()) check_transfers(has_transfers(schedule) ? schedule : add_transfers(schedule), report);
  if (report.fine()) report.peak_in_flight = peak_in_flight(schedule);
  return report;
}

void require_fine(const Schedule& schedule) {
  const Report report = check(schedule);
  if (report.fine()) return;
  throw ConfigError(fmt::format("schedule {} cannot run ({}):\n{}", schedule.name,
                                counted(report.faults.size(), "problem"), fmt::join(report.faults, "\n")),
                    "positions count from 0 in the list of the rank");
}

}  // namespace trireme::schedule
