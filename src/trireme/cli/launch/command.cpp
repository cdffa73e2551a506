// trireme launch: a recipe handed to Slurm or Kubernetes, or started on hosts.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>

#include "trireme/base/env.h"
#include "trireme/base/log.h"
#include "trireme/base/print.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/launch/fit.h"
#include "trireme/cli/program.h"
#include "trireme/cli/recipe_options.h"
#include "trireme/launch/launcher.h"

namespace trireme::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLaunchExamples =
    R"(The layout must suit the ranks, and, where --cluster says what a node has, the run must fit into its memory; else
nothing is submitted. Without a number of ranks the fewest nodes of --cluster are taken in which it fits.
docs/machines.md says which launchers were run and which only validated.

Examples:
  trireme launch recipes/tiny.toml --slurm --ranks 4 --nodes 2 --time 4h --dry-run
  trireme launch recipes/tiny.toml --slurm --sweep optim.learning_rate=1e-3,3e-3 --out runs/rates --dry-run
  trireme launch recipes/tiny.toml --hosts a:2,b:2 --env NCCL_SOCKET_IFNAME=eth0 --dry-run
  trireme launch recipes/tiny.toml --node-rank 0 --ranks 1
  trireme launch recipes/tiny.toml --jobset --ranks 4 --nodes 2 --image registry/trireme:1 --claim runs \
    --token-secret trireme-token --out /runs/tiny --dry-run)";

/// What ranks on other machines must have as it is here: settings of ours and of the libraries that carry data.
constexpr std::string_view kForwarded[] = {"TRIREME_", "NCCL_", "UCX_"};

struct LaunchOptions {
  RecipeOptions recipe;
  FitRequest fit;
  std::string out, program;
  std::vector<std::string> environment, sweep;
  int port = 29500, cores = 0;
  bool dry_run = false, resume = false;
  std::map<std::string, std::string> given;  // settings of launchers, and the flag that chose one
  std::map<std::string, bool> flags;         // launchers that are chosen without a value
};

const launch::Launcher& chosen_launcher(LaunchOptions& options) {
  std::vector<std::string> all;
  const launch::Launcher* chosen = nullptr;
  for (const auto& launcher : launch::launchers()) {
    all.push_back("--" + launcher->name());
    if (!options.flags[launcher->name()] && !options.given.contains(launcher->name())) continue;
    if (chosen != nullptr) {
      throw ConfigError(fmt::format("--{} and --{} both say who starts the ranks", chosen->name(), launcher->name()),
                        "give one of them");
    }
    chosen = launcher.get();
  }
  if (chosen == nullptr)
    throw ConfigError("nothing says who is to start the ranks", fmt::format("add one of {}", listed(all)));
  const auto settings = chosen->settings();
  for (const auto& [name, value] : options.given) {
    if (name == chosen->name() || std::ranges::find(settings, name, &launch::Setting::name) != settings.end()) continue;
    throw ConfigError(fmt::format("--{} means nothing with --{}", name, chosen->name()),
                      fmt::format("leave out --{}", name));
  }
  return *chosen;
}

std::vector<launch::Variable> environment_of(const LaunchOptions& options, const launch::Launcher& launcher) {
  std::map<std::string, std::string> variables;
  for (const auto& [name, value] : env_with_prefixes(kForwarded)) {
    if (!env_is_secret(name)) {
      variables[name] = value;
    } else if (name == "TRIREME_TOKEN" && !launcher.passes_environment_on()) {
      log_warn(
          "TRIREME_TOKEN is not forwarded: others could read it in the command; put it in a file of mode 0600 that the "
          "hosts share, and set TRIREME_TOKEN_FILE");
    }
  }
  for (const std::string& entry : options.environment) {
    const auto equals = entry.find('=');
    const std::string name = entry.substr(0, equals);
    const bool is_name = !name.empty() && std::isdigit(static_cast<unsigned char>(name[0])) == 0 &&
                         std::ranges::all_of(name, [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
    if (!is_name)
      throw ConfigError(fmt::format("\"{}\" is no name of a variable", name), "write --env NAME=VALUE or --env NAME");
    if (equals != entry.npos) {
      variables[name] = entry.substr(equals + 1);
    } else if (const auto value = env_by_name(name)) {
      variables[name] = *value;
    } else {
      throw ConfigError(fmt::format("{} is to be forwarded, but is not set here", name),
                        fmt::format("write --env {}=VALUE", name));
    }
  }
  return {variables.begin(), variables.end()};
}

/// Every combination of the values, the last key's changing fastest.
std::vector<std::vector<std::string>> sweep_of(const std::vector<std::string>& sweep) {
  std::vector<std::vector<std::string>> points = {{}};
  for (const std::string& entry : sweep) {
    const auto equals = entry.find('=');
    if (equals == entry.npos || equals == 0 || equals + 1 == entry.size())
      throw ConfigError(fmt::format("\"{}\" is no sweep", entry), "write --sweep SECTION.KEY=VALUE,VALUE");
    std::vector<std::vector<std::string>> next;
    for (const auto& point : points) {
      for (const std::string& value : split(entry.substr(equals + 1), ',')) {
        next.push_back(point);
        next.back().push_back(fmt::format("{}={}", entry.substr(0, equals), value));
      }
    }
    points = std::move(next);
    constexpr std::size_t kMostRuns =
        1000;  // Slurm's own limit of an array is 1,001 unless its administrator says otherwise
    if (points.size() > kMostRuns)
      throw ConfigError(fmt::format("the sweep has more than {} runs", kMostRuns), "sweep fewer values at a time");
  }
  if (sweep.empty()) points.clear();
  return points;
}

launch::Job job_of(LaunchOptions& options, const launch::Launcher& launcher, const spec::Recipe& recipe,
                   const Fit& fit) {
  launch::Job job{.name = recipe.run.name,
                  .program = options.program.empty() ? launcher.program() : options.program,
                  .recipe = options.recipe.file(),
                  .sets = options.recipe.sets(),
                  .folder = fs::current_path(),
                  .out = options.out.empty() ? fs::path(recipe.run.out) / recipe.run.name : fs::path(options.out),
                  .resume = options.resume,
                  .ranks = fit.ranks,
                  .nodes = fit.nodes,
                  .ranks_per_node = fit.ranks_per_node,
                  .gpus = recipe.run.device == spec::DeviceKind::kCuda,
                  .cores_per_rank = options.cores,
                  .grace_seconds = std::chrono::duration<double>(recipe.checkpoint.grace).count(),
                  .environment = environment_of(options, launcher),
                  .sweep = {},
                  .port = options.port};
  if (job.program.empty()) job.program = fs::read_symlink("/proc/self/exe").string();
  const auto points = sweep_of(options.sweep);
  for (std::size_t i = 0; i < points.size(); ++i)
    job.sweep.push_back({.sets = points[i], .out = job.out / std::to_string(i)});
  return job;
}

int run_launch(LaunchOptions& options, Context& context) {
  const launch::Launcher& launcher = chosen_launcher(options);
  const launch::Settings settings(launcher, options.given);
  const spec::LoadedRecipe loaded = options.recipe.load(context);
  options.fit.slots = launcher.slots(settings);
  options.fit.named_nodes = launcher.nodes(settings);
  const Fit fit = fit_recipe(loaded, options.fit, options.recipe.file());
  const launch::Job job = job_of(options, launcher, loaded.value, fit);
  for (const launch::SweepPoint& point : job.sweep) {  // a value that is wrong would be told by a node, hours later
    RecipeOptions recipe = options.recipe;
    for (const std::string& set : point.sets) recipe.set(set);
    FitRequest request = options.fit;
    request.ranks = fit.ranks;
    fit_recipe(recipe.load(context), request, fmt::format("{} with {}", recipe.file(), fmt::join(point.sets, " ")));
  }
  if (auto problems = launcher.find_problems(job, settings); !problems.empty())
    throw config::ProblemsError(fmt::format("trireme launch --{}", launcher.name()), std::move(problems));
  for (const std::string& note : fit.checkup.notes) log_info("{}", note);
  log_info("{} on {} ({}){}", counted(static_cast<std::size_t>(fit.ranks), "rank"),
           counted(static_cast<std::size_t>(fit.nodes), "node"), fit.why,
           fit.checkup.estimate && !options.fit.cluster.empty()
               ? fmt::format("; {} a step predicted, {} of memory a rank",
                             short_seconds(fit.checkup.estimate->step_seconds()),
                             short_bytes(fit.checkup.estimate->memory.peak()))
               : "");
  const launch::Submission submission = launcher.prepare(job, settings);
  if (options.dry_run) {
    context.out << launch::to_text(submission);
    return kExitFine;
  }
  // sbatch's output file is in the run's directory, which must be there before the job starts.
  if (!submission.command.empty() && launcher.program().empty()) fs::create_directories(job.out);
  return launch::submit(submission);
}

/// --NAME of each launcher, and its settings; those that several have are one option.
void add_launchers(Command& command, LaunchOptions& options) {
  std::vector<std::string> added;
  for (const auto& launcher : launch::launchers()) {
    const std::string name = launcher->name();
    if (launcher->value().empty()) {
      command.add_flag("--" + name, options.flags[name], launcher->meaning());
    } else {
      command
          .add_option_with(
              "--" + name, [&options, name](const std::string& text) { options.given[name] = text; },
              launcher->meaning())
          .type_name(launcher->value());
    }
  }
  for (const auto& launcher : launch::launchers()) {
    for (const launch::Setting& setting : launcher->settings()) {
      if (std::ranges::find(added, setting.name) != added.end()) continue;
      added.push_back(setting.name);
      std::vector<std::string> of;
      for (const auto& other : launch::launchers()) {
        const auto theirs = other->settings();
        if (std::ranges::find(theirs, setting.name, &launch::Setting::name) != theirs.end())
          of.push_back("--" + other->name());
      }
      Option option = command.add_option_with(
          "--" + setting.name, [&options, name = setting.name](const std::string& text) { options.given[name] = text; },
          fmt::format("with {}: {}", listed(of), setting.meaning));
      option.type_name(setting.value);
      if (!setting.standard.empty() && of.size() == 1) option.show_default(setting.standard);
    }
  }
}

}  // namespace

void add_launch_command(Command& app, Context& context) {
  Command& command = app.add_subcommand("launch", "Start a recipe on a cluster: Slurm, Kubernetes, or hosts over ssh");
  command.footer(kLaunchExamples);
  const auto options = std::make_shared<LaunchOptions>();  // shared with the callback, which outlives this function
  options->recipe.add_to(command, RecipeOptions::File::kRequired);
  add_launchers(command, *options);
  command.add_option("--ranks", options->fit.ranks, "number of ranks (world size)").positive();
  command.add_option("--nodes", options->fit.nodes, "number of nodes").positive();
  command.add_option("--ranks-per-node", options->fit.ranks_per_node, "ranks of each node").positive();
  command
      .add_option(
          "--cluster", options->fit.cluster,
          "what it will run on, by name (dgx-h100, ...) or the path of a file: whether the run fits is judged by it")
      .type_name("NAME");
  command.add_option("--out", options->out, "the run's directory; default: run.out/run.name of the recipe");
  command.add_flag("--resume", options->resume, "the first start already resumes, as later ones do");
  command
      .add_option("--sweep", options->sweep,
                  "one run for each of these values of a key; given several times, for each combination")
      .one_at_a_time()
      .type_name("SECTION.KEY=VALUE,...");
  command
      .add_option(
          "--env", options->environment,
          "a variable that ranks get: NAME=VALUE, or NAME as it is here; TRIREME_*, NCCL_* and UCX_* are forwarded "
          "in any case")
      .one_at_a_time()
      .type_name("NAME[=VALUE]");
  command.add_option("--cpus-per-rank", options->cores, "cores of each rank; 0: as the launcher gives them")
      .not_negative();
  command.add_option("--port", options->port, "port of rank 0's host, where ranks meet").within(1024, 65535);
  command.add_option("--program", options->program,
                     "where the nodes find trireme; default: where this one lies, in pods `trireme`");
  command.add_flag("--dry-run", options->dry_run, "print what would be submitted or run, and do nothing");
  command.callback(
      [options, &context] { context.run = [options, &context] { return run_launch(*options, context); }; });
}

}  // namespace trireme::cli
