// trireme schedule show: a schedule as text or JSON, and what it takes.
#include <fmt/format.h>

#include <memory>

#include "trireme/base/text.h"
#include "trireme/cli/program.h"
#include "trireme/cli/schedule/options.h"
#include "trireme/schedule/check.h"
#include "trireme/schedule/compare.h"
#include "trireme/schedule/passes.h"
#include "trireme/schedule/replay.h"

namespace trireme::cli {
namespace {

struct ShowOptions {
  ScheduleOptions schedule;
  bool json = false, transfers = false, timing = false;
  std::string output;
};

/// What each rank does with its time and memory, and the chain of passes that decides how long it all takes.
std::string timing_text(const schedule::Schedule& table, const schedule::Times& times) {
  const schedule::ReplayOptions options{.times = times.scaled(schedule::pass_share(table)), .keep_path = true};
  const schedule::Timing timing = schedule::replay(table, options);
  const schedule::Report report = schedule::check(table);
  constexpr auto kRight = TextTable::Align::kRight;
  TextTable ranks({{"rank", kRight}, {"busy", kRight}, {"idle", kRight}, {"holds", kRight}, {"versions", kRight}});
  for (std::size_t rank = 0; rank < timing.ranks.size(); ++rank)
    ranks.add({fmt::format("{}", rank), fmt::format("{:.6g}", timing.ranks[rank].busy),
               fmt::format("{:.6g}", timing.idle(static_cast<int>(rank))),
               fmt::format("{}", report.peak_in_flight[rank]), fmt::format("{}", report.peak_versions[rank])});
  double on_links = 0;
  std::string path;
  int rank = -1;
  for (const schedule::PathStep& step : timing.path) {
    if (schedule::is_send(step.instruction.op)) on_links += step.end - step.start;
    if (step.rank != rank) path += fmt::format("{}rank {}:", rank < 0 ? "" : " -> ", step.rank);
    rank = step.rank;
    path += ' ' + to_text(step.instruction, true);
  }
  return fmt::format(
      "takes {:.6g}, idle {:.1f} %; messages that wait for their receive: {} a channel\n\n{}\n"
      "critical path ({:.6g} of it messages):\n{}\n",
      timing.makespan, 100 * timing.bubble(), report.slots, ranks.text(), on_links,
      fmt::join(wrapped(path, 100), "\n"));
}

}  // namespace

void add_schedule_show(Command& schedule, Context& context) {
  Command& show = schedule.add_subcommand(
      "show", "Print a schedule: the instructions of each rank, in a form that can be edited and read back");
  const auto options = std::make_shared<ShowOptions>();  // shared with the callback, which outlives this function
  options->schedule.add_to(show, ScheduleOptions::Kind::kOne);
  show.add_flag("--transfers", options->transfers, "With posted sends and receives and their waits");
  show.add_flag("--json", options->json, "As JSON");
  show.add_flag("--timing", options->timing, "Instead: what each rank does with its time, and the critical path");
  show.add_option("-o,--output", options->output, "Write to this file").type_name("FILE");
  show.callback([&context, options] {
    context.run = [&context, options] {
      schedule::Schedule table = options->schedule.build();
      if (options->transfers && !schedule::has_transfers(table)) table = schedule::add_transfers(table);
      const std::string text = options->timing ? timing_text(table, options->schedule.times())
                               : options->json ? to_json(table)
                                               : to_text(table);
      write_result(text, options->output, context);
      return kExitFine;
    };
  });
}

}  // namespace trireme::cli
