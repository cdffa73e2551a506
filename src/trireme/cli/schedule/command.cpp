// trireme schedule: look at pipeline schedules without running them.

#include "trireme/cli/commands.h"
#include "trireme/cli/schedule/options.h"

namespace trireme::cli {

namespace {

constexpr const char* kScheduleExamples = R"(Examples:
  trireme schedule compare --stages 8 --microbatches 32
  trireme schedule draw --kind zb-v --stages 4 --microbatches 8 -o zb-v.svg
  trireme schedule show --kind 1f1b > mine.txt     a file to edit ...
  trireme schedule check mine.txt                  ... and to check
  trireme schedule draw --kind file:mine.txt)";

}  // namespace

void add_schedule_command(Command& app, Context& context) {
  Command& schedule = app.add_subcommand("schedule", "Show, draw, compare and check pipeline schedules");
  schedule.require_subcommand(1);
  add_schedule_list(schedule, context);
  add_schedule_show(schedule, context);
  add_schedule_draw(schedule, context);
  add_schedule_compare(schedule, context);
  add_schedule_check(schedule, context);
  schedule.footer(kScheduleExamples);  // last: commands made after it would repeat it
}

}  // namespace trireme::cli
