// trireme schedule check: is this file a schedule that can run?
#include <fmt/format.h>

#include <memory>

#include "trireme/base/print.h"
#include "trireme/base/text.h"
#include "trireme/cli/program.h"
#include "trireme/cli/schedule/options.h"
#include "trireme/schedule/check.h"

namespace trireme::cli {

void add_schedule_check(Command& schedule, Context& context) {
  Command& command = schedule.add_subcommand(
      "check",
      "Say everything that is wrong with a schedule in a file: what is missing, out of order, not matched or waits for "
      "ever; exit code 2 if anything is");
  const auto path = std::make_shared<std::string>();  // shared with the callback, which outlives this function
  command.add_option("FILE", *path, "The schedule, as text or JSON").required();
  command.callback([&context, path] {
    context.run = [&context, path] {
      const schedule::Schedule table = schedule::read_file(*path);
      schedule::require_fine(table);
      const schedule::Report report = schedule::check(table);
      fmt::print(context.out,
                 "{} is fine: {}, {} in {}, {}\n"
                 "  transfers    {}\n"
                 "  slots        {} (messages stored in a channel without a posted receive)\n"
                 "  holds        {} (micros in flight at the most, by rank)\n"
                 "  versions     {} (of the weights of a chunk, by rank)\n"
                 "  delay        {} (updates that the weights of a pass lack)\n",
                 *path, counted(table.ranks.size(), "rank"), counted(static_cast<std::size_t>(table.micros), "micro"),
                 counted(static_cast<std::size_t>(table.steps()), "step"),
                 counted(static_cast<std::size_t>(table.chunks()), "chunk"),
                 schedule::has_transfers(table) ? "as written" : "none written, so as they will be added", report.slots,
                 fmt::join(report.peak_in_flight, " "), fmt::join(report.peak_versions, " "), report.delay);
      return kExitFine;
    };
  });
}

}  // namespace trireme::cli
