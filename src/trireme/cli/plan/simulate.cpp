// trireme simulate: a step of every rank with what disturbs it, and weeks of steps with failures.
#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/base/new_file.h"
#include "trireme/base/print.h"
#include "trireme/base/stopwatch.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/plan/commands.h"
#include "trireme/cli/plan/options.h"
#include "trireme/cli/plan/print.h"
#include "trireme/cli/program.h"
#include "trireme/cost/infiniband.h"
#include "trireme/plan/simulate.h"

namespace trireme::cli {
namespace {

using nlohmann::ordered_json;

constexpr const char* kSimulateExamples = R"(Examples:
  trireme simulate gpt3.toml --cluster selene --trace step.json
  trireme simulate --model llama3-405b --cluster llama3-h100-16k --global-batch-size 2048 --faults
  trireme simulate --model llama3-70b --cluster dgx-h100 --gpus 1024 --stragglers 0.002 --straggler-factor 1.5
  trireme simulate --model llama3-8b --cluster dgx-h100 --gpus 64 --inject "slow rank 3 by 1.5 from step 1"
  trireme simulate --model llama3-8b --cluster dgx-h100 --gpus 64 --link-loss 1e-3)";

constexpr std::int64_t kLinkPackets = 50'000;

/// With --faults, where no rates are given: one device in a thousand a quarter slower, one link in a thousand at a
/// quarter of its speed, passes that vary by 2 %.
constexpr plan::Disturbances kUsual{
    .stragglers = 0.001, .straggler_factor = 1.25, .slow_links = 0.001, .slow_link_factor = 4, .jitter = 0.02};

struct SimulateOptions {
  PlanOptions plan;
  bool faults = false, json = false;
  std::optional<double> stragglers, straggler_factor, slow_links, slow_link_factor, jitter, mtbf_hours;
  std::optional<double> link_loss, link_propagation_us;
  std::optional<int> link_blocks;
  double days = 14;
  std::int64_t seed = 0;
  std::string trace;
  std::vector<std::string> inject;
};

plan::Disturbances disturbances_of(const SimulateOptions& options) {
  const plan::Disturbances usual = options.faults ? kUsual : plan::Disturbances{};
  plan::Disturbances out;
  out.stragglers = options.stragglers.value_or(usual.stragglers);
  out.straggler_factor = options.straggler_factor.value_or(kUsual.straggler_factor);
  out.slow_links = options.slow_links.value_or(usual.slow_links);
  out.slow_link_factor = options.slow_link_factor.value_or(kUsual.slow_link_factor);
  out.jitter = options.jitter.value_or(usual.jitter);
  out.seed = static_cast<std::uint64_t>(options.seed);
  return out;
}

/// An InfiniBand link of the cluster's rate with what was given of it; nothing when nothing was.
std::optional<cost::IbLink> link_of(const SimulateOptions& options, const cost::Cluster& cluster) {
  if (!options.link_loss && !options.link_propagation_us && !options.link_blocks) return std::nullopt;
  const double adapter = cluster.topology.nic_gbit_per_s;
  const double gbit = adapter > 0 ? adapter : 8 * cluster.network.gb_per_s;
  if (gbit <= 0)
    throw ConfigError(
        fmt::format("--link-loss and the like are about links between nodes, and {} has none", cluster.name),
        "name a --cluster with a network");
  return cost::IbLink{.gbit_per_s = gbit,
                      .propagation_us = options.link_propagation_us.value_or(0.5),
                      .loss = options.link_loss.value_or(0),
                      .seed = static_cast<std::uint64_t>(options.seed)};
}

struct Result {
  PlanTask task;
  plan::Estimate estimate;
  plan::Disturbances disturbances;
  std::optional<cost::IbLink> link;
  plan::SimulatedStep step;
  plan::Goodput goodput;
  plan::SimulatedRun run;
  double took = 0;
};

Result simulate(const SimulateOptions& options) {
  Result result;
  result.task = options.plan.resolve();
  PlanTask& task = result.task;
  if (options.mtbf_hours) task.hardware.cluster.reliability.device_mtbf_hours = *options.mtbf_hours;
  const plan::SearchResult found = plan::search(task.hardware, task.job, task.gpus, {.given = task.given, .top = 3});
  result.estimate = found.best.empty() ? *found.smallest : found.best.front();
  result.disturbances = disturbances_of(options);
  if ((result.link = link_of(options, task.hardware.cluster))) {
    const cost::IbLane lane{.buffer_blocks = options.link_blocks.value_or(cost::kIbMostBlocks),
                            .packets = kLinkPackets};
    result.disturbances.network_share = std::min(1.0, cost::simulated_share(*result.link, lane));
  }
  const auto begin = std::chrono::steady_clock::now();
  plan::StepSimulator simulator(task.hardware, task.job, result.estimate.config, result.disturbances);
  const std::vector<spec::Fault> faults = spec::parse_faults(options.inject);
  for (const spec::Fault& fault : faults) {
    if (fault.kind != spec::Fault::Kind::kKill && fault.kind != spec::Fault::Kind::kHang) simulator.inject(fault);
  }
  result.step = simulator.run();
  result.took = seconds_since(begin);
  if (!options.trace.empty()) {
    std::vector<int> copies{0};
    if (result.step.slowest != 0) copies.push_back(result.step.slowest);
    write_text_file(options.trace, simulator.trace(result.step, copies));
  }
  result.goodput = plan::estimate_goodput(task.hardware, task.job, task.gpus);
  result.run = plan::simulate_run({.step_seconds = result.step.seconds,
                                   .days = options.days,
                                   .reliability = result.goodput,
                                   .restart_seconds = task.hardware.cluster.reliability.restart_seconds,
                                   .seed = static_cast<std::uint64_t>(options.seed),
                                   .faults = faults});
  return result;
}

std::string step_text(const Result& result) {
  const plan::SimulatedStep& step = result.step;
  std::vector<double> sorted = step.pipelines;
  std::ranges::sort(sorted);
  std::string out = fmt::format("{} on {} x {} ({})\n", to_text(result.estimate.config), result.task.gpus,
                                result.task.hardware.device.name, result.task.hardware.cluster.name);
  out +=
      fmt::format("\none step, {} instructions of {} replayed in {}\n", short_count(static_cast<double>(step.events)),
                  counted(step.pipelines.size(), "pipeline"), short_seconds(result.took));
  TextTable table({{""}, {"", TextTable::Align::kRight}, {""}});
  table.add({"step", short_seconds(step.seconds),
             fmt::format("{:.1f} % longer than without disturbances ({})", 100 * (step.seconds / step.undisturbed - 1),
                         short_seconds(step.undisturbed))});
  table.add({"fastest pipeline", short_seconds(sorted.front()), ""});
  table.add({"median pipeline", short_seconds(sorted[sorted.size() / 2]), ""});
  table.add({"slowest pipeline", short_seconds(sorted.back()),
             fmt::format("replica {}: all others wait for it", step.slowest)});
  table.add({"replicas, optimizer", short_seconds(step.tail), "after the last pipeline"});
  table.add({"slow devices", fmt::format("{}", step.slow_devices),
             fmt::format("{} of {} drawn, {} x as long", result.disturbances.stragglers, result.task.gpus,
                         result.disturbances.straggler_factor)});
  table.add({"slow links", fmt::format("{}", step.slow_links),
             fmt::format("{} of those between stages, {} x as long", result.disturbances.slow_links,
                         result.disturbances.slow_link_factor)});
  if (result.link)
    table.add({"network", fmt::format("{:.1f} %", 100 * result.disturbances.network_share),
               fmt::format("of its rate: a simulated link of {:.4g} Gbit/s that loses {:.3g} of its packets",
                           result.link->gbit_per_s, result.link->loss)});
  return out + table.text("  ");
}

std::string run_text(const Result& result, double days) {
  const plan::SimulatedRun& run = result.run;
  const plan::Goodput& goodput = result.goodput;
  std::string out = fmt::format("\n{} days with failures\n", days);
  TextTable table({{""}, {"", TextTable::Align::kRight}, {"%", TextTable::Align::kRight}, {""}});
  const auto row = [&](const char* name, double seconds, std::string note) {
    table.add({name, short_seconds(seconds), fmt::format("{:.2f}", 100 * seconds / run.seconds), std::move(note)});
  };
  row("training", run.training,
      fmt::format("{} steps, {} tokens", run.steps,
                  short_count(static_cast<double>(run.steps) * result.task.job.tokens())));
  row("checkpoints", run.checkpoints,
      fmt::format("{} in {} each", short_bytes(goodput.checkpoint_bytes), short_seconds(goodput.checkpoint_seconds)));
  row("lost work", run.lost, "since the last checkpoint");
  row("restarts", run.restarts,
      fmt::format("{} failures, one every {} expected", run.failures, short_seconds(goodput.mtbf_seconds)));
  out += table.text("  ");
  out += fmt::format(
      "  a checkpoint every {} (Daly; Young: {}); Daly's model expects {:.2f} % of the time to be training\n",
      short_seconds(goodput.interval_seconds),
      short_seconds(plan::young_interval(goodput.checkpoint_seconds, goodput.mtbf_seconds)), 100 * goodput.share);
  return out;
}

ordered_json to_json(const Result& result, double days) {
  const plan::SimulatedStep& step = result.step;
  const plan::SimulatedRun& run = result.run;
  const plan::Goodput& goodput = result.goodput;
  return {{"layout", cli::to_json(result.estimate.config)},
          {"gpus", result.task.gpus},
          {"fits", result.estimate.memory.fits},
          {"step",
           {{"seconds", step.seconds},
            {"undisturbed_seconds", step.undisturbed},
            {"pipelines", step.pipelines.size()},
            {"slowest_copy", step.slowest},
            {"slow_devices", step.slow_devices},
            {"slow_links", step.slow_links},
            {"network_share", result.disturbances.network_share},
            {"instructions", step.events},
            {"simulated_in_seconds", result.took}}},
          {"run",
           {{"days", days},
            {"steps", run.steps},
            {"failures", run.failures},
            {"goodput", run.goodput()},
            {"expected_goodput", goodput.share},
            {"training_seconds", run.training},
            {"checkpoint_seconds", run.checkpoints},
            {"lost_seconds", run.lost},
            {"restart_seconds", run.restarts},
            {"mtbf_seconds", goodput.mtbf_seconds},
            {"daly_interval_seconds", goodput.interval_seconds},
            {"young_interval_seconds", plan::young_interval(goodput.checkpoint_seconds, goodput.mtbf_seconds)}}}};
}

int run_simulate(const SimulateOptions& options, Context& context) {
  const Result result = simulate(options);
  if (options.json) {
    context.out << to_json(result, options.days).dump(2) << '\n';
    return kExitFine;
  }
  context.out << step_text(result);
  if (options.faults || options.mtbf_hours || !options.inject.empty()) context.out << run_text(result, options.days);
  if (!options.trace.empty()) fmt::print(context.out, "\nwritten: {} (open it at ui.perfetto.dev)\n", options.trace);
  return kExitFine;
}

}  // namespace

void add_simulate_command(Command& app, Context& context) {
  Command& command = app.add_subcommand(
      "simulate", "Simulate a step of every rank with stragglers and slow links, and weeks of steps with failures");
  const auto options = std::make_shared<SimulateOptions>();  // shared with the callback, which outlives this function
  options->plan.add_to(command, PlanOptions::Positional::kRecipe);
  command.add_flag("--faults", options->faults,
                   "With failures at the cluster's rate, and with disturbances: a slow device and a slow link in a "
                   "thousand, and passes that vary by 2 %, unless other rates are given");
  const auto share = [&](const char* flag, std::optional<double>& value, const char* meaning) {
    command.add_option(flag, value, meaning).within(0.0, 1.0).type_name("SHARE");
  };
  const auto factor = [&](const char* flag, std::optional<double>& value, const char* meaning) {
    command.add_option(flag, value, meaning).within(1.0, 1e6).type_name("FACTOR");
  };
  share("--stragglers", options->stragglers, "Share of the devices that are slow");
  factor("--straggler-factor", options->straggler_factor, "How much longer they take; default 1.25");
  share("--slow-links", options->slow_links, "Share of the links between stages that are slow");
  factor("--slow-link-factor", options->slow_link_factor, "How much longer their messages take; default 4");
  share("--jitter", options->jitter, "Standard deviation of each pass's time");
  command
      .add_option(
          "--link-loss", options->link_loss,
          "Share of packets that links between nodes lose to bit errors: an InfiniBand link is simulated packet "
          "by packet, as by `trireme cluster link`, and the network carries what arrives")
      .within(0.0, 0.5)
      .type_name("SHARE");
  command.add_option("--link-blocks", options->link_blocks, "Credits of that link, in blocks of 64 bytes; default 2048")
      .within(1, cost::kIbMostBlocks)
      .type_name("N");
  command
      .add_option("--link-propagation-us", options->link_propagation_us,
                  "One way of that link, switches included; default 0.5")
      .not_negative()
      .type_name("US");
  command
      .add_option("--mtbf", options->mtbf_hours, "Mean time between failures of one device, instead of the cluster's")
      .positive()
      .type_name("H");
  command.add_option("--days", options->days, "How long the run goes on; default 14")
      .within(0.001, 36500.0)
      .type_name("N");
  command.add_option("--seed", options->seed, "From which all draws follow; default 0").not_negative().type_name("N");
  command
      .add_option("--trace", options->trace,
                  "Write the step of the first and the slowest replica as a trace for ui.perfetto.dev")
      .type_name("FILE");
  command
      .add_option("--inject", options->inject,
                  "A fault, in the words of `trireme train --inject`: slow and stall count in the step, kill, hang and "
                  "stall in the days after it")
      .take_all()
      .type_name("FAULT");
  command.add_flag("--json", options->json, "As JSON, and nothing else");
  command.footer(kSimulateExamples);
  command.require_subcommand(0, 1);
  add_simulate_asynchronous(command, context);
  add_simulate_spot(command, context);
  command.callback([&context, options, &command] {
    if (command.has_chosen_subcommand()) return;  // that one has left what is to be done
    context.run = [&context, options] { return run_simulate(*options, context); };
  });
}

}  // namespace trireme::cli
