// trireme simulate asynchronous: training without barriers on a thousand workers, and its time to loss beside
// synchronous training's.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/base/html.h"
#include "trireme/base/new_file.h"
#include "trireme/base/print.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/cli/plan/commands.h"
#include "trireme/cli/plan/plot.h"
#include "trireme/cli/program.h"
#include "trireme/observe/report/page.h"
#include "trireme/plan/asynchronous/async_run.h"

namespace trireme::cli {
namespace {

using nlohmann::ordered_json;

struct AsyncCommandOptions {
  std::vector<std::string> modes;
  plan::AsyncCluster cluster;
  plan::AsyncOptions run;
  std::int64_t seed = 0;
  std::string report;
  bool json = false;
};

std::string mode_name(plan::AsyncMode mode) {
  return std::string(name_in(plan::enum_names(std::type_identity<plan::AsyncMode>{}), mode));
}

std::string staleness_text(const plan::AsyncResult& result) {
  if (result.bound < 0) return fmt::format("{} (no bound)", result.max_staleness);
  return fmt::format("{} of {}", result.max_staleness, result.bound);
}

std::string model_text(const AsyncCommandOptions& options) {
  const plan::LossModel& loss = options.run.loss;
  return fmt::format(
      "a gradient whose weights lacked s others is worth 1/(s + 1 + {:g}); the loss falls from {:g} to {:g} as "
      "exp(-sum/{:g}), target {:g}",
      loss.critical_batch, loss.first_loss, loss.last_loss, loss.progress_per_e, options.run.target_loss);
}

std::string async_page(const AsyncCommandOptions& options, const std::vector<plan::AsyncResult>& results) {
  Plot plot{.x_title = "seconds", .y_title = "loss"};
  std::string rows;
  int color = 0;
  for (const plan::AsyncResult& result : results) {
    PlotLine line{.name = mode_name(result.mode), .color = color++ % observe::kColors};
    for (const plan::LossPoint& point : result.curve) line.points.emplace_back(point.seconds, point.loss);
    plot.lines.push_back(std::move(line));
    rows += fmt::format(
        "<tr><th>{}</th><td>{:.4g}</td><td>{:.2f}</td><td>{:.4g}</td><td>{:.1f}</td><td>{}</td><td>{:.1f} %</td></tr>",
        escaped(mode_name(result.mode)), result.seconds, results.front().seconds / result.seconds, result.throughput,
        result.mean_staleness, escaped(staleness_text(result)), 100 * result.waiting);
  }
  return observe::page(
      "Asynchronous training",
      fmt::format("<h1>Asynchronous training, {} workers</h1><p>{}</p><figure class=\"chart wide\">{}</figure>"
                  "<table><thead><tr><th>mode</th><th>seconds to target</th><th>times as fast</th><th>minibatches a "
                  "second</th><th>mean staleness</th><th>most steps behind</th><th>waiting</th></tr></thead>"
                  "<tbody>{}</tbody></table>",
                  options.cluster.workers, escaped(model_text(options)), to_svg(plot), rows));
}

int run_async(const AsyncCommandOptions& given, Context& context) {
  AsyncCommandOptions options = given;
  options.cluster.seed = static_cast<std::uint64_t>(given.seed);
  std::vector<plan::AsyncMode> modes{plan::AsyncMode::kSynchronous};  // what the others are compared with
  for (const auto& named : plan::enum_names(std::type_identity<plan::AsyncMode>{})) {
    const bool wanted = options.modes.empty() || std::ranges::find(options.modes, named.name) != options.modes.end();
    if (wanted && named.value != plan::AsyncMode::kSynchronous) modes.push_back(named.value);
  }
  std::vector<plan::AsyncResult> results;
  std::size_t events = 0;
  for (const plan::AsyncMode mode : modes) {
    options.run.mode = mode;
    results.push_back(plan::simulate_async(options.cluster, options.run));
    events += results.back().events;
  }
  if (!options.report.empty()) write_text_file(options.report, async_page(options, results));
  if (options.json) {
    ordered_json json = ordered_json::array();
    for (const plan::AsyncResult& result : results)
      json.push_back(
          {{"mode", mode_name(result.mode)},
           {"seconds_to_loss", std::isfinite(result.seconds) ? ordered_json(result.seconds) : ordered_json()},
           {"minibatches", result.minibatches},
           {"throughput", result.throughput},
           {"mean_staleness", result.mean_staleness},
           {"max_staleness", result.max_staleness},
           {"bound", result.bound},
           {"waiting", result.waiting}});
    context.out << json.dump(2) << '\n';
    return kExitFine;
  }
  constexpr auto kRight = TextTable::Align::kRight;
  TextTable table({{"mode"},
                   {"to target", kRight},
                   {"x", kRight},
                   {"minibatches/s", kRight},
                   {"mean staleness", kRight},
                   {"most behind", kRight},
                   {"waiting %", kRight}});
  for (const plan::AsyncResult& result : results)
    table.add({mode_name(result.mode), std::isfinite(result.seconds) ? short_seconds(result.seconds) : "never",
               fmt::format("{:.2f}", results.front().seconds / result.seconds),
               fmt::format("{:.4g}", result.throughput), fmt::format("{:.1f}", result.mean_staleness),
               staleness_text(result), fmt::format("{:.1f}", 100 * result.waiting)});
  fmt::print(context.out, "{} workers, {} events\n{}\n{}\n", options.cluster.workers,
             short_count(static_cast<double>(events)), table.text("  "), model_text(options));
  if (!options.report.empty()) fmt::print(context.out, "\nwritten: {}\n", options.report);
  return kExitFine;
}

}  // namespace

void add_simulate_asynchronous(Command& simulate, Context& context) {
  Command& command = simulate.add_subcommand(
      "asynchronous",
      "Parameter servers, Downpour, Sandblaster, HetPipe, AMPNet, FlexRR and Proteus by discrete events: time to loss");
  const auto options =
      std::make_shared<AsyncCommandOptions>();  // shared with the callback, which outlives this function
  std::vector<std::string> names;
  for (const auto& named : plan::enum_names(std::type_identity<plan::AsyncMode>{})) names.emplace_back(named.name);
  command.add_option("--mode", options->modes, "Only this one, beside synchronous training; may be given several times")
      .one_of(names)
      .take_all()
      .type_name("MODE");
  command.add_option("--workers", options->cluster.workers, "Workers; default 1000").within(1, 100000).type_name("N");
  command.add_option("--minibatch-seconds", options->cluster.minibatch_seconds, "Of a minibatch on a usual worker")
      .positive()
      .type_name("S");
  command.add_option("--exchange-seconds", options->cluster.exchange_seconds, "Of a push and pull, or an all-reduce")
      .not_negative()
      .type_name("S");
  command.add_option("--jitter", options->cluster.jitter, "Standard deviation of a minibatch's logarithmic time")
      .within(0.0, 3.0)
      .type_name("SHARE");
  command.add_option("--slow-share", options->cluster.slow_share, "Share of the workers that are always slow")
      .within(0.0, 1.0)
      .type_name("SHARE");
  command.add_option("--slow-factor", options->cluster.slow_factor, "How much longer they take")
      .within(1.0, 1e4)
      .type_name("FACTOR");
  command
      .add_option("--hiccup-share", options->cluster.hiccup_share,
                  "Share of minibatches that take long, drawn at random")
      .within(0.0, 1.0)
      .type_name("SHARE");
  command.add_option("--hiccup-factor", options->cluster.hiccup_factor, "How much longer those take")
      .within(1.0, 1e4)
      .type_name("FACTOR");
  command.add_option("--delay", options->run.delay, "Bounded delay in steps; clock distance of HetPipe in waves")
      .within(0, 100000)
      .type_name("N");
  command.add_option("--push-every", options->run.push_every, "Minibatches between pushes of Downpour")
      .within(1, 10000)
      .type_name("N");
  command.add_option("--pull-every", options->run.pull_every, "Minibatches between pulls of Downpour")
      .within(1, 10000)
      .type_name("N");
  command.add_option("--stages", options->run.stages, "Workers of a virtual worker of HetPipe")
      .within(1, 10000)
      .type_name("N");
  command.add_option("--wave", options->run.minibatches, "Minibatches of a wave of HetPipe")
      .within(1, 10000)
      .type_name("N");
  command
      .add_option("--max-active-keys", options->run.keys,
                  "Instances in flight in a graph of AMPNet; 0: as many as its nodes")
      .within(0, 1000000)
      .type_name("N");
  command.add_option("--graph-nodes", options->run.graph_nodes, "Workers of a graph of AMPNet")
      .within(1, 100000)
      .type_name("N");
  command.add_option("--portions", options->run.portions, "Of a minibatch, for Sandblaster")
      .within(1, 1000)
      .type_name("N");
  command.add_option("--evictions", options->run.evictions_per_hour, "Of a spot machine in an hour, for Proteus")
      .not_negative()
      .type_name("RATE");
  command.add_option("--critical-batch", options->run.loss.critical_batch, "Of the loss model, in minibatches")
      .not_negative()
      .type_name("N");
  command.add_option("--progress", options->run.loss.progress_per_e, "Of the loss model: until 1/e is left")
      .positive()
      .type_name("X");
  command.add_option("--target-loss", options->run.target_loss, "To which time is counted; losses go from 10 to 2")
      .positive()
      .type_name("LOSS");
  command.add_option("--seed", options->seed, "From which all draws follow").not_negative().type_name("N");
  command.add_option("--report", options->report, "Write a page with the curves").type_name("FILE");
  command.add_flag("--json", options->json, "As JSON, and nothing else");
  command.footer(R"(Examples:
  trireme simulate asynchronous --workers 1000 --slow-share 0.05 --slow-factor 2
  trireme simulate asynchronous --mode hetpipe --mode bounded --delay 4 --report async.html)");
  command.callback([&context, options] { context.run = [&context, options] { return run_async(*options, context); }; });
}

}  // namespace trireme::cli
