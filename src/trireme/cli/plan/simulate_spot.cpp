// trireme simulate spot: training and serving on machines that may be taken away, and what it costs beside on-demand
// ones.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/base/mapped_file.h"
#include "trireme/base/print.h"
#include "trireme/base/text.h"
#include "trireme/cli/plan/commands.h"
#include "trireme/cli/program.h"
#include "trireme/plan/asynchronous/bidbrain.h"
#include "trireme/plan/asynchronous/tributary.h"

namespace trireme::cli {
namespace {

using nlohmann::ordered_json;

constexpr std::uint64_t kMostTraceBytes = std::uint64_t{1} << 30;

struct SpotOptions {
  std::string trace;
  double days = 30, on_demand = 1;
  std::int64_t seed = 0;
  plan::SpotJob job;
  bool serve = false, json = false;
  int markets = 4;
  plan::ServingGoal goal;
};

plan::PriceTrace trace_of(const SpotOptions& options) {
  if (options.trace.empty())
    return plan::make_price_trace(options.days, options.on_demand, static_cast<std::uint64_t>(options.seed));
  return plan::read_price_trace(read_text_file(options.trace, kMostTraceBytes), options.on_demand);
}

int serve_on_spot(const SpotOptions& options, Context& context) {
  std::vector<plan::PriceTrace> markets;
  if (!options.trace.empty()) markets.push_back(trace_of(options));
  for (int market = static_cast<int>(markets.size()); market < options.markets; ++market)
    markets.push_back(
        plan::make_price_trace(options.days, options.on_demand,
                               static_cast<std::uint64_t>(options.seed) + 100 + static_cast<std::uint64_t>(market)));
  const plan::ServingRun run = plan::run_tributary(markets, options.goal);
  if (options.json) {
    const ordered_json json{{"served", run.served},       {"goal", options.goal.probability},
                            {"dollars", run.dollars},     {"on_demand_dollars", run.on_demand_dollars},
                            {"evictions", run.evictions}, {"released", run.released}};
    context.out << json.dump(2) << '\n';
    return kExitFine;
  }
  fmt::print(context.out,
             "{:.3f} % of the minutes had the capacity that was asked for (goal {:.3f} %)\n"
             "{:.2f} dollars, {:.2f} on demand: {:.1f} % less; {} evictions, {} allocations released\n",
             100 * run.served, 100 * options.goal.probability, run.dollars, run.on_demand_dollars,
             100 * (1 - run.dollars / run.on_demand_dollars), run.evictions, run.released);
  return kExitFine;
}

int run_spot_command(const SpotOptions& given, Context& context) {
  if (given.serve) return serve_on_spot(given, context);
  SpotOptions options = given;
  const plan::PriceTrace trace = trace_of(options);
  options.job.begin_seconds = trace.seconds() / 2;  // what lies before is the past that bids go by
  const std::pair<const char*, plan::SpotRun> runs[] = {
      {"on demand", plan::run_on_demand(trace, options.job)},
      {"bid the on-demand price", plan::run_standard_bidding(trace, options.job)},
      {"BidBrain", plan::run_bidbrain(trace, options.job)}};
  if (options.json) {
    ordered_json json = ordered_json::array();
    for (const auto& [name, run] : runs)
      json.push_back({{"how", name},
                      {"dollars", run.dollars},
                      {"hours", run.hours},
                      {"evictions", run.evictions},
                      {"free_machine_hours", run.free_machine_hours},
                      {"committed_clocks_lost", run.clocks_lost},
                      {"stages", run.stages}});
    context.out << json.dump(2) << '\n';
    return kExitFine;
  }
  constexpr auto kRight = TextTable::Align::kRight;
  TextTable table({{"how"},
                   {"dollars", kRight},
                   {"less %", kRight},
                   {"hours", kRight},
                   {"evictions", kRight},
                   {"free machine-hours", kRight},
                   {"stages 1/2/3", kRight}});
  for (const auto& [name, run] : runs)
    table.add({name, fmt::format("{:.2f}", run.dollars),
               fmt::format("{:.1f}", 100 * (1 - run.dollars / runs[0].second.dollars)),
               fmt::format("{:.2f}", run.hours), fmt::format("{}", run.evictions),
               fmt::format("{:.1f}", run.free_machine_hours),
               fmt::format("{}/{}/{}", run.stages[0], run.stages[1], run.stages[2])});
  fmt::print(context.out, "{:g} machine-hours of work on {} reliable and up to {} spot machines\n{}",
             options.job.machine_hours, options.job.reliable, options.job.most_spot, table.text("  "));
  return kExitFine;
}

}  // namespace

void add_simulate_spot(Command& simulate, Context& context) {
  Command& command = simulate.add_subcommand(
      "spot", "Training or serving on spot machines by a price trace: BidBrain's and Tributary's costs");
  const auto options = std::make_shared<SpotOptions>();  // shared with the callback, which outlives this function
  command.add_option("--trace", options->trace, "CSV of seconds,price; default: one made from the seed")
      .type_name("FILE");
  command.add_option("--days", options->days, "Of a trace that is made").within(1.0, 3650.0).type_name("N");
  command.add_option("--on-demand", options->on_demand, "Dollars of a machine and hour").positive().type_name("PRICE");
  command.add_option("--seed", options->seed, "Of the trace").not_negative().type_name("N");
  command.add_option("--machine-hours", options->job.machine_hours, "Of work").positive().type_name("N");
  command.add_option("--reliable", options->job.reliable, "Machines on demand").within(1, 100000).type_name("N");
  command.add_option("--spot", options->job.most_spot, "Spot machines, at most").within(1, 1000000).type_name("N");
  command.add_option("--allocation", options->job.allocation, "Machines that are bought and lost together")
      .within(1, 100000)
      .type_name("N");
  command.add_flag("--serve", options->serve, "Serve within a goal (Tributary) instead of training");
  command.add_option("--goal", options->goal.probability, "With --serve: probability that capacity suffices")
      .within(0.0, 1.0)
      .type_name("P");
  command.add_option("--markets", options->markets, "With --serve: markets whose evictions are independent")
      .within(1, 100)
      .type_name("N");
  command.add_option("--serve-days", options->goal.days, "With --serve: how long").within(0.1, 1000.0).type_name("N");
  command.add_flag("--json", options->json, "As JSON, and nothing else");
  command.footer(R"(Examples:
  trireme simulate spot --seed 1
  trireme simulate spot --serve --goal 0.95 --serve-days 1)");
  command.callback(
      [&context, options] { context.run = [&context, options] { return run_spot_command(*options, context); }; });
}

}  // namespace trireme::cli
