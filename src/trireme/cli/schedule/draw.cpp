// trireme schedule draw: a schedule as a picture.
#include <fmt/format.h>
#include <unistd.h>

#include <memory>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/cli/program.h"
#include "trireme/cli/schedule/measured.h"
#include "trireme/cli/schedule/options.h"
#include "trireme/schedule/compare.h"
#include "trireme/schedule/draw.h"

namespace trireme::cli {
namespace {

struct DrawOptions {
  ScheduleOptions schedule;
  std::string output, format, color = "auto", measured;
  int width = 120;
};

/// As asked for, else by the name of the file.
std::string format_of(const DrawOptions& options) {
  const std::vector<std::string> formats{"svg", "terminal", "trace"};
  if (!options.format.empty()) {
    if (std::ranges::find(formats, options.format) == formats.end())
      throw ConfigError(
          fmt::format("--format \"{}\" is unknown{}", options.format, did_you_mean(options.format, formats)),
          fmt::format("formats are {}", listed(formats)));
    return options.format;
  }
  if (options.output.empty() || options.output == "-") return "terminal";
  if (options.output.ends_with(".svg")) return "svg";
  if (options.output.ends_with(".json")) return "trace";
  throw ConfigError(fmt::format("cannot tell from \"{}\" what to draw", options.output),
                    "name it .svg or .json (a trace for Perfetto), or say --format");
}

bool wants_colors(const DrawOptions& options) {
  if (options.color == "always") return true;
  return options.color == "auto" && options.output.empty() && isatty(STDOUT_FILENO) != 0;
}

void draw(const DrawOptions& options, Context& context) {
  if (!options.measured.empty()) {
    if (options.output.empty() || format_of(options) != "svg")
      throw ConfigError("what was measured is drawn as SVG", "add -o measured.svg");
    return write_result(draw_measured(options.measured), options.output, context);
  }
  const std::string format = format_of(options);
  const schedule::Schedule table = options.schedule.build();
  const schedule::Times times = options.schedule.times();
  const schedule::Timing timing =
      schedule::replay(table, {.times = times.scaled(schedule::pass_share(table)), .keep_spans = true});
  const schedule::Drawing drawing{table, timing, fmt::format("times of a rank's share: {}", to_text(times))};
  const std::string text = format == "svg" ? to_svg(drawing)
                           : format == "trace"
                               ? to_chrome_trace(drawing)
                               : to_terminal(drawing, static_cast<std::size_t>(options.width), wants_colors(options));
  write_result(text, options.output, context);
}

}  // namespace

void add_schedule_draw(Command& schedule, Context& context) {
  Command& command = schedule.add_subcommand(
      "draw",
      "Draw a schedule with its times: on the terminal, as SVG, or as a trace for Perfetto and chrome://tracing");
  const auto options = std::make_shared<DrawOptions>();  // shared with the callback, which outlives this function
  options->schedule.add_to(command, ScheduleOptions::Kind::kOne);
  const Option kind = command.get_option("--kind").required(false);
  command.add_option("-o,--output", options->output, "Write to this file: .svg, or .json for a trace")
      .type_name("FILE");
  command
      .add_option("--measured", options->measured,
                  "Draw the last step of this run (its folder, or its pipeline.json) above its replay")
      .type_name("RUN")
      .excludes(kind);
  command.add_option("--format", options->format, "svg, terminal or trace; default: by the name of the file");
  command.add_option("--width", options->width, "Columns of the terminal; default 120")
      .within(40, 10000)
      .type_name("N");
  command.add_option("--color", options->color, "auto, always or never; default auto")
      .one_of({"auto", "always", "never"})
      .type_name("WHEN");
  command.callback([&context, options, kind] {
    if (!kind.given() && options->measured.empty()) {
      throw ConfigError("--kind or --measured is required", "see trireme schedule draw --help");
    }
    context.run = [&context, options] {
      draw(*options, context);
      return kExitFine;
    };
  });
}

}  // namespace trireme::cli
