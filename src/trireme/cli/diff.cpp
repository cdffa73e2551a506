// trireme diff: the first step and tensor in which two runs differ.
#include "trireme/observe/diff.h"

#include <fmt/format.h>

#include <memory>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/print.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/program.h"

namespace trireme::cli {
namespace {

/// Exit code 1 says "they differ": what goes wrong must not look like it.
observe::RunFiles read(const std::string& folder) {
  try {
    return observe::read_run(folder);
  } catch (const IoError& error) {
    throw ConfigError(error.message(), error.hint());
  }
}

}  // namespace

void add_diff_command(Command& app, Context& context) {
  Command& diff = app.add_subcommand(
      "diff",
      "Find the first step and tensor in which two runs differ; exit code 0 when none does, 1 when they differ");
  struct Options {
    std::string left, right;
    bool json = false;
  };
  const auto options = std::make_shared<Options>();  // shared with the callback, which outlives this function
  diff.add_option("RUN", options->left, "Folder of a run").required();
  diff.add_option("OTHER", options->right, "Folder of the run to compare it with").required();
  diff.add_flag("--json", options->json, "As JSON, with all tensors");
  diff.callback([&context, options] {
    context.run = [&context, options] {
      const observe::RunFiles left = read(options->left), right = read(options->right);
      for (const observe::RunFiles* run : {&left, &right}) {
        for (const std::string& note : run->notes) log_debug("{}: {}", run->dir.string(), note);
      }
      const observe::RunDifference found = observe::difference(left, right);
      if (options->json) {
        fmt::print(context.out, "{}\n", observe::to_json(found, options->left, options->right).dump(2));
      } else {
        context.out << observe::to_text(found, options->left, options->right);
      }
      return found.equal() ? kExitFine : kExitFailed;
    };
  });
}

}  // namespace trireme::cli
