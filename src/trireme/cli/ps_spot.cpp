// trireme ps spot: Proteus on processes, whose spot machines are killed all at once.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <numeric>

#include "trireme/agile/spot_drill.h"
#include "trireme/base/print.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/program.h"

namespace trireme::cli {
namespace {

struct PsSpotOptions {
  agile::SpotDrillOptions drill;
  int machine = -1, rank = 0, port = 0;
};

int run_ps_spot(PsSpotOptions& options, std::ostream& out) {
  agile::SpotDrillOptions& drill = options.drill;
  if (options.port != 0) {
    agile::run_spot_machine(drill, options.machine, options.rank, options.port);
    return kExitFine;
  }
  drill.machine_command = {std::filesystem::read_symlink("/proc/self/exe").string(), "ps", "spot"};
  for (const auto& [name, value] : {std::pair{"--reliable", drill.reliable},
                                    {"--spot", drill.spot},
                                    {"--evictions", drill.evictions},
                                    {"--every", drill.every},
                                    {"--weights", drill.weights}}) {
    drill.machine_command.emplace_back(name);
    drill.machine_command.push_back(std::to_string(value));
  }
  drill.machine_command.emplace_back("--seed");
  drill.machine_command.push_back(std::to_string(drill.seed));
  drill.tell = [&](const std::string& line) { fmt::print(out, "{}\n", line); };
  const agile::SpotDrillResult result = agile::run_spot_drill(drill);
  const std::vector<double>& pauses = result.run.pauses;
  const double longest = pauses.empty() ? 0 : *std::ranges::max_element(pauses);
  const double mean =
      pauses.empty() ? 0 : std::accumulate(pauses.begin(), pauses.end(), 0.0) / static_cast<double>(pauses.size());
  fmt::print(out,
             "{} clocks in {:.1f} s, {} epochs; {} spot machines killed (SIGKILL) in {} evictions; {} clocks that were "
             "not committed begun again\n"
             "the next commit came {:.2f} s after a change of machines (mean), {:.2f} s (the longest)\n"
             "{}\nweights {} those of one machine\n",
             result.clocks, result.seconds, result.run.epochs, result.killed, drill.evictions, result.run.redone, mean,
             longest,
             result.each_clock_once ? "every clock was committed once, in order"
                                    : "clocks were LOST, or committed more than once",
             result.same_bits ? "equal, bit for bit," : "DIFFER from");
  return result.same_bits && result.each_clock_once ? kExitFine : kExitFailed;
}

}  // namespace

void add_ps_spot(Command& ps, Context& context) {
  Command& command = ps.add_subcommand(
      "spot", "Proteus on processes: all spot machines are killed at once, and no committed clock may be lost");
  const auto options = std::make_shared<PsSpotOptions>();  // shared with the callback, which outlives this function
  agile::SpotDrillOptions& drill = options->drill;
  command.add_option("--evictions", drill.evictions, "Of all spot machines at once (SIGKILL)").within(0, 1000);
  command.add_option("--reliable", drill.reliable, "Reliable machines: processes, over UCX").within(1, 64);
  command.add_option("--spot", drill.spot, "Spot machines, likewise").within(1, 256);
  command.add_option("--every", drill.every, "Clocks between an eviction and the machines that come after it")
      .within(1, 10000);
  command.add_option("--weights", drill.weights, "Of the model").within(drill.shards, 100'000'000);
  command.add_option("--seed", drill.seed, "Of gradients");
  command.add_option("--machine", options->machine, "A machine of a drill: started by it");
  command.add_option("--rank", options->rank, "A machine of a drill: its rank in the control plane");
  command.add_option("--port", options->port, "A machine of a drill: the control plane's");
  command.callback(
      [&context, options] { context.run = [&context, options] { return run_ps_spot(*options, context.out); }; });
}

}  // namespace trireme::cli
