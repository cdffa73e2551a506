// trireme supervise: a run that is started again when it ends or hangs.
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>

#include "trireme/base/error.h"
#include "trireme/base/print.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/program.h"
#include "trireme/observe/supervisor.h"
#include "trireme/spec/recipe.h"

namespace trireme::cli {
namespace {

namespace fs = std::filesystem;

struct SuperviseFlags {
  observe::SuperviseOptions options;
  std::string hang = "10min", start = "30min", wait = "1s";
};

std::optional<std::string> value_after(const std::vector<std::string>& words, const std::string& option) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == option && i + 1 < words.size()) return words[i + 1];
    if (words[i].starts_with(option + "=")) return words[i].substr(option.size() + 1);
  }
  return std::nullopt;
}

/// Where the word `train` stands, behind the program's name.
std::size_t train_at(const std::vector<std::string>& words) {
  const auto found = std::ranges::find(words, "train");
  if (found == words.end()) {
    throw ConfigError(fmt::format("\"{}\" is no `trireme train`", fmt::join(words, " ")),
                      "write: trireme supervise -- trireme train RECIPE --out RUN");
  }
  return static_cast<std::size_t>(found - words.begin());
}

/// What `trireme train` will take as its folder: --out, or what the recipe says.
fs::path folder_of(const std::vector<std::string>& words, std::size_t train) {
  if (const auto out = value_after(words, "--out")) return *out;
  std::vector<std::string> sets;
  for (std::size_t i = 0; i + 1 < words.size(); ++i) {
    if (words[i] == "--set") sets.push_back(words[i + 1]);
  }
  std::optional<std::string> file;
  for (std::size_t i = train + 1; i < words.size() && !file; ++i) {
    if (words[i].ends_with(".toml")) file = words[i];
  }
  const spec::Recipe recipe = spec::load_recipe({.file = file, .sets = sets}).value;
  return fs::path(recipe.run.out) / recipe.run.name;
}

int run_supervised(SuperviseFlags& flags, Context& context) {
  observe::SuperviseOptions& options = flags.options;
  const std::size_t train = train_at(options.command);
  options.run = folder_of(options.command, train);
  const auto duration = [](const std::string& text) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(parse_duration(text));
  };
  options.hang = duration(flags.hang);
  options.start = duration(flags.start);
  options.first_wait = duration(flags.wait);
  const bool asks_ranks = std::ranges::any_of(
      options.command, [](const std::string& word) { return word.find("{ranks}") != std::string::npos; });
  if (asks_ranks && options.ranks.empty()) {
    throw ConfigError("the command asks for {ranks}, but --ranks does not say how many", "add --ranks 4");
  }
  if (!asks_ranks && !options.ranks.empty()) {
    throw ConfigError("--ranks is given, but the command has no {ranks}", "write {ranks} where the number belongs");
  }
  // Without a checkpoint --resume begins at the beginning, so that every life is started the same way.
  if (std::ranges::find(options.command, "--resume") == options.command.end()) options.command.emplace_back("--resume");
  if (options.ranks.size() > 1) options.command.emplace_back("--elastic");
  const observe::Supervised result = observe::supervise(options);
  if (result.finished) {
    fmt::print(context.out, "the run in {} is finished after {}, {}\n", options.run.string(),
               result.lives == 1 ? std::string("one attempt") : fmt::format("{} attempts", result.lives),
               result.hangs == 0 ? std::string("no hang") : counted(static_cast<std::size_t>(result.hangs), "hang"));
    return kExitFine;
  }
  fmt::print(context.out, "the run in {} is not finished: {}\n", options.run.string(), result.why);
  return result.why == "interrupted" || result.status == kExitUsage ? result.status : kExitFailed;
}

}  // namespace

void add_supervise_command(Command& app, Context& context) {
  Command& command = app.add_subcommand("supervise", "Restart a run when it exits or hangs, until it is finished");
  command.footer(
      "Each restart resumes from the newest complete checkpoint. One that brings a new checkpoint resets the limit.\n"
      "All events, of every rank, are in RUN/timeline.jsonl.\n"
      "\n"
      "Examples:\n"
      "  trireme supervise -- trireme train recipes/tiny.toml --out runs/tiny --ranks 2\n"
      "  trireme supervise --restarts 10 --ranks 4 -- mpirun -n {ranks} trireme train recipes/tiny.toml --out "
      "runs/tiny\n"
      "  trireme supervise --ranks 4,2 -- mpirun -n {ranks} trireme train recipes/tiny.toml --out runs/tiny");
  const auto flags = std::make_shared<SuperviseFlags>();  // shared with the callback
  command.add_option("--restarts", flags->options.restarts, "restarts in a row that may bring no new checkpoint")
      .not_negative()
      .show_default();
  command
      .add_option(
          "--ranks", flags->options.ranks,
          "what {ranks} stands for; several, largest first: after two restarts without progress the next is used")
      .one_at_a_time()  // else it would take the -- that ends our options
      .delimiter(',')
      .positive();
  command.add_option("--hang", flags->hang, "how long the heartbeat may stop before the run counts as hanging")
      .show_default();
  command.add_option("--start", flags->start, "how long a start may take until its first step").show_default();
  command
      .add_option("--wait", flags->wait,
                  "wait before the first restart; doubled for each without progress, up to 5 min")
      .show_default();
  command.add_option("COMMAND", flags->options.command, "after --: the command to run").required();
  command.callback([flags, &context] { context.run = [flags, &context] { return run_supervised(*flags, context); }; });
}

}  // namespace trireme::cli
