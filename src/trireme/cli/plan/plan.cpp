// trireme plan: the best layout for a model on a cluster, and why the others lost.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/base/new_file.h"
#include "trireme/base/print.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/plan/commands.h"
#include "trireme/cli/plan/options.h"
#include "trireme/cli/plan/print.h"
#include "trireme/cli/plan/recipe.h"
#include "trireme/cli/program.h"
#include "trireme/plan/explain.h"
#include "trireme/plan/goodput.h"
#include "trireme/plan/sizes.h"

namespace trireme::cli {
namespace {

using plan::Estimate;
using plan::Sized;

constexpr const char* kPlanExamples = R"(Examples:
  trireme plan llama3-405b --cluster llama3-h100-16k --global-batch-size 2048
  trireme plan gpt3-175b --cluster selene --gpus 1024 --tokens 300G --write gpt3.toml
  trireme plan llama3-70b --cluster dgx-h100 --objective smallest --tokens 15T --days 60)";

struct PlanCommandOptions {
  PlanOptions plan;
  std::string objective = "time", tokens, write, html;
  double days = 0;
  std::size_t top = 5, pareto = 10;
  bool json = false;
};

/// Nothing fits: what is needed, what there is, and the nearest that would do.
[[noreturn]] void throw_too_small(const PlanTask& task) {
  const plan::SearchOptions search{.given = task.given, .top = 1, .replay = false};
  const plan::SearchResult found = plan::search(task.hardware, task.job, task.gpus, search);
  const plan::Memory& memory = found.smallest->memory;
  std::string hint = "take devices with more memory, or a smaller model or batch";
  if (const auto larger = plan::nearest_that_fits(task.hardware, task.job, task.gpus, search))
    hint =
        fmt::format("nearest that fits: --gpus {} with {}", larger->gpus, to_text(larger->found.best.front().config));
  throw ConfigError(fmt::format("needs at least {}; your {} x {} hold {} (of {} layouts the smallest is {}, {} a "
                                "device: {})",
                                short_bytes(memory.peak() * task.gpus), task.gpus, short_bytes(memory.device),
                                short_bytes(memory.device * task.gpus), found.tried, to_text(found.smallest->config),
                                short_bytes(memory.peak()), memory.why()),
                    hint);
}

Sized find(const PlanTask& task, const PlanCommandOptions& options) {
  const auto names = plan::enum_names(std::type_identity<plan::Objective>{});
  std::vector<std::string> known;
  for (const auto& entry : names) {
    known.emplace_back(entry.name);
    if (entry.name != options.objective) continue;
    const double tokens = options.tokens.empty() ? 0 : static_cast<double>(parse_count(options.tokens));
    const bool deadline = entry.value == plan::Objective::kSmallest;
    if (deadline && (tokens <= 0 || options.days <= 0))
      throw ConfigError("--objective smallest needs a deadline",
                        "give --tokens and --days, e.g. --tokens 1T --days 30");
    const plan::SearchOptions search{.given = task.given, .top = options.top, .decisions = true};
    // Contradictions are told as such before sizes are tried.
    plan::for_each_config(task.hardware, task.job, task.gpus, task.given, [](const spec::ParallelConfig&, bool) {});
    if (auto found = plan::choose_size(task.hardware, task.job, task.gpus, search, entry.value, tokens, options.days))
      return std::move(*found);
    const auto all = plan::choose_size(task.hardware, task.job, task.gpus, search, plan::Objective::kTime);
    if (deadline && all)
      throw ConfigError(fmt::format("{} tokens take {:.1f} days on all {} devices, longer than {}", options.tokens,
                                    plan::days_for(tokens, all->tokens_per_second(task.job)), task.gpus, options.days),
                        "give more devices with --gpus, or more days");
    throw_too_small(task);
  }
  throw ConfigError(
      fmt::format("--objective \"{}\" is unknown{}", options.objective, did_you_mean(options.objective, known)),
      fmt::format("it is one of {}", listed(known)));
}

std::string table_of(const std::vector<Estimate>& estimates) {
  constexpr auto kRight = TextTable::Align::kRight;
  TextTable table({{"step s", kRight}, {"TFLOP/s", kRight}, {"MFU %", kRight}, {"GiB", kRight}, {"layout"}});
  for (const Estimate& one : estimates)
    table.add({fmt::format("{:.4g}", one.step_seconds()), fmt::format("{:.1f}", one.tflops_per_gpu()),
               fmt::format("{:.1f}", 100 * one.mfu()), fmt::format("{:.1f}", one.memory.peak() / 1073741824.0),
               to_text(one.config)});
  return table.text("  ");
}

/// At most so many rows of the front, its ends among them.
std::vector<Estimate> thinned(const std::vector<Estimate>& front, std::size_t most) {
  if (front.size() <= most || most < 2) return front;
  std::vector<Estimate> rows;
  for (std::size_t row = 0; row < most; ++row) rows.push_back(front[row * (front.size() - 1) / (most - 1)]);
  return rows;
}

std::string report(const PlanTask& task, const Sized& sized, const PlanCommandOptions& options) {
  const plan::SearchResult& found = sized.found;
  const Estimate& best = found.best.front();
  std::string out = breakdown(task, best);
  const double rate = sized.tokens_per_second(task.job);
  const plan::Goodput goodput = plan::estimate_goodput(task.hardware, task.job, sized.gpus);
  out += fmt::format(
      "\n  a failure every {}; with a checkpoint of {} written in {} every {} training moves on {:.1f} % of the time\n",
      short_seconds(goodput.mtbf_seconds), short_bytes(goodput.checkpoint_bytes),
      short_seconds(goodput.checkpoint_seconds), short_seconds(goodput.interval_seconds), 100 * goodput.share);
  if (!options.tokens.empty()) {
    const double tokens = static_cast<double>(parse_count(options.tokens));
    const double days = plan::days_for(tokens, rate * goodput.share);
    out += fmt::format("  {} tokens: {:.1f} days with failures, {} device hours", options.tokens, days,
                       short_count(days * 24 * sized.gpus));
    if (const double price = task.hardware.cluster.price_per_gpu_hour; price > 0)
      out += fmt::format(", {} at {} an hour", short_count(days * 24 * sized.gpus * price), price);
    out += '\n';
  }
  out += fmt::format("\nthe best of {} layouts, {} of which fit\n", found.tried, found.fitting);
  out += table_of(found.best);
  out += "\nwhy the others lost\n";
  for (std::size_t index = 1; index < found.best.size(); ++index)
    out += fmt::format("  {}: {}\n", to_text(found.best[index].config), plan::why_slower(best, found.best[index]));
  for (const auto& [reason, left] : found.left_out) {
    if (reason != "does not fit in memory") continue;
    out += fmt::format("  {}: {}", counted(left.count, "layout"), reason);
    if (left.best)
      out +=
          fmt::format("; the fastest of them, {}, would take {:.4g} s and needs {:.1f} GiB", to_text(left.best->config),
                      left.best->step_seconds(), left.best->memory.peak() / 1073741824.0);
    out += '\n';
  }
  if (found.pareto.size() > 1) {
    const std::vector<Estimate> rows = thinned(found.pareto, options.pareto);
    out += fmt::format("\nless memory for more time{}\n{}",
                       rows.size() < found.pareto.size()
                           ? fmt::format(" ({} of {} layouts; --pareto N shows more)", rows.size(), found.pareto.size())
                           : "",
                       table_of(rows));
  }
  return out;
}

nlohmann::ordered_json to_json(const PlanTask& task, const Sized& sized) {
  nlohmann::ordered_json out = cli::to_json(task, sized.found.best.front());
  const auto rows = [](const std::vector<Estimate>& estimates) {
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    for (const Estimate& one : estimates)
      all.push_back({{"step_seconds", one.step_seconds()},
                     {"memory_bytes_peak", one.memory.peak()},
                     {"layout", cli::to_json(one.config)}});
    return all;
  };
  out["tried"] = sized.found.tried;
  out["fitting"] = sized.found.fitting;
  out["best"] = rows(sized.found.best);
  out["pareto"] = rows(sized.found.pareto);
  return out;
}

int run_plan(const PlanCommandOptions& options, Context& context) {
  PlanTask task = options.plan.resolve();
  const Sized sized = find(task, options);
  task.gpus = sized.gpus;
  if (!options.write.empty()) {
    const std::string text = recipe_text(task, sized.found.best.front(), options.tokens);
    write_text_file(options.write, text);
  }
  if (!options.html.empty()) write_text_file(options.html, plan_page(task, sized));
  if (options.json) {
    context.out << to_json(task, sized).dump(2) << '\n';
  } else {
    context.out << report(task, sized, options);
    if (!options.html.empty()) fmt::print(context.out, "\nwritten: {}\n", options.html);
    if (!options.write.empty()) fmt::print(context.out, "\nwritten: {}\n", options.write);
  }
  return kExitFine;
}

}  // namespace

void add_plan_command(Command& app, Context& context) {
  Command& command = app.add_subcommand("plan", "Find the best layout for a model on a cluster, and say why");
  const auto options =
      std::make_shared<PlanCommandOptions>();  // shared with the callback, which outlives this function
  options->plan.add_to(command, PlanOptions::Positional::kModel);
  command
      .add_option("--objective", options->objective,
                  "time: fastest step; per-gpu: most tokens a second for each device, perhaps on fewer; smallest: "
                  "fewest devices that see --tokens within --days")
      .type_name("NAME");
  command.add_option("--tokens", options->tokens, "Tokens to train on, e.g. 300G").type_name("N");
  command.add_option("--days", options->days, "The deadline of --objective smallest").type_name("N");
  command.add_option("--top", options->top, "How many layouts to show; default 5").within(1, 1000).type_name("N");
  command.add_option("--pareto", options->pareto, "How many layouts of less memory for more time to show; default 10")
      .within(2, 100000)
      .type_name("N");
  command.add_option("--write", options->write, "Write a recipe with the best layout").type_name("FILE");
  command
      .add_option("--html", options->html,
                  "Write a page with the breakdown, and time over memory of all layouts that fit")
      .type_name("FILE");
  command.add_flag("--json", options->json, "As JSON, and nothing else");
  command.footer(kPlanExamples);
  command.require_subcommand(0, 1);
  add_plan_explain(command, context);
  add_plan_roofline(command, context);
  add_plan_scaling(command, context);
  add_plan_batch(command, context);
  add_plan_in_flight(command, context);
  add_plan_virtual_workers(command, context);
  command.callback([&context, options, &command] {
    if (command.has_chosen_subcommand()) return;  // that one has left what is to be done
    context.run = [&context, options] { return run_plan(*options, context); };
  });
}

}  // namespace trireme::cli
