// trireme report: runs as one page to look at.
#include <fmt/format.h>

#include <memory>

#include "trireme/base/new_file.h"
#include "trireme/base/print.h"
#include "trireme/base/text.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/program.h"
#include "trireme/cli/schedule/measured.h"
#include "trireme/observe/report/report.h"

namespace trireme::cli {

void add_report_command(Command& app, Context& context) {
  Command& report = app.add_subcommand("report", "Draw runs on one HTML page: curves, key figures, recipes");
  struct Options {
    std::vector<std::string> runs;
    std::string output;
  };
  const auto options = std::make_shared<Options>();  // shared with the callback, which outlives this function
  report.add_option("RUN", options->runs, "Folders of runs; several are laid over each other").required();
  report.add_option("-o,--output", options->output, "The page; report.html in the (first) run's folder when not given")
      .type_name("FILE");
  report.callback([&context, options] {
    context.run = [&context, options] {
      std::vector<observe::RunFiles> runs;
      for (const std::string& folder : options->runs) {
        runs.push_back(observe::read_run(folder, observe::Reading::kLenient));
      }
      const std::filesystem::path path =
          options->output.empty() ? runs[0].dir / "report.html" : std::filesystem::path(options->output);
      std::vector<observe::Figure> figures;
      for (const observe::RunFiles& run : runs) {
        const std::filesystem::path timeline = run.dir / "pipeline.json";
        if (!std::filesystem::exists(timeline)) continue;
        figures.push_back({.title = fmt::format("Pipeline{}: a step as it ran, above its replay",
                                                runs.size() > 1 ? " of " + run.dir.string() : ""),
                           .svg = draw_measured(timeline.string())});
      }
      write_text_file(path, observe::report_page(runs, figures));
      for (const auto& run : runs) {
        for (const std::string& note : run.notes) fmt::print(context.out, "{}: {}\n", run.dir.string(), note);
      }
      fmt::print(context.out, "{} on {}\n", counted(runs.size(), "run"), path.string());
      return kExitFine;
    };
  });
}

}  // namespace trireme::cli
