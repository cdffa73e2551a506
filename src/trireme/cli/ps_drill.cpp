// trireme ps drill: parameter servers as processes, of this machine or of other hosts, that are killed under load.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <memory>

#include "trireme/base/env.h"
#include "trireme/base/error.h"
#include "trireme/base/print.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/program.h"
#include "trireme/comm/control.h"
#include "trireme/launch/host_list.h"
#include "trireme/launch/job.h"
#include "trireme/ps/drill.h"

namespace trireme::cli {
namespace {

struct PsDrillOptions {
  ps::DrillOptions drill;
  std::string hosts, ssh = std::string(launch::kSsh);
  double heartbeat_s = 10;
  int rank = 0;
  bool join = false;
};

/// Servers of other hosts are scripts that take signals from their input (launch/job.h).
void signal_server(const ChildProcess& server, int signal) {
  if (server.input() < 0) return server.tell(signal);
  const std::string_view line = signal == SIGSTOP ? "STOP\n" : signal == SIGCONT ? "CONT\n" : "KILL\n";
  if (::write(server.input(), line.data(), line.size()) != static_cast<ssize_t>(line.size())) server.tell(SIGKILL);
}

/// Server after server on host after host.
void start_on_hosts(PsDrillOptions& options, const std::vector<std::string>& command) {
  const std::vector<launch::Host> hosts = launch::parse_hosts(options.hosts);
  const auto file = env("TRIREME_TOKEN_FILE");
  if (!file || options.drill.plane.host == ps::DrillPlane{}.host)
    throw ConfigError("servers of other hosts need an address of this machine that they reach, and the job's secret",
                      "give --host, and set TRIREME_TOKEN_FILE to a file of mode 0600 that all hosts see");
  options.drill.start = [hosts, command, token_file = *file, ssh = options.ssh](int rank,
                                                                                std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), command.begin(), command.end());
    const std::string script =
        launch::guarded_script(std::filesystem::current_path(), arguments, {{"TRIREME_TOKEN_FILE", token_file}});
    return std::make_unique<ChildProcess>(
        launch::words_on(hosts[static_cast<std::size_t>(rank) % hosts.size()], script, ssh),
        ChildProcess::Streams::kPipedInput);
  };
}

int run_ps_drill(PsDrillOptions& options, std::ostream& out) {
  ps::DrillOptions& drill = options.drill;
  drill.plane.token = comm::control_token();
  drill.plane.heartbeat_timeout = std::chrono::milliseconds(std::llround(1e3 * options.heartbeat_s));
  if (options.rank != 0) {
    ps::run_drill_server(options.rank, drill.plane, drill.keys, options.join);
    return kExitFine;
  }
  const std::vector<std::string> command = {std::filesystem::read_symlink("/proc/self/exe").string(), "ps", "drill"};
  if (options.hosts.empty()) {
    drill.start = [command](int, std::vector<std::string> arguments) {
      arguments.insert(arguments.begin(), command.begin(), command.end());
      return std::make_unique<ChildProcess>(arguments);
    };
  } else {
    start_on_hosts(options, command);
  }
  drill.signal = signal_server;
  drill.tell = [&](const std::string& line) { fmt::print(out, "{}\n", line); };
  const ps::DrillResult result = ps::run_drill(drill);
  fmt::print(out,
             "{} kills in {:.1f} s, {} epochs; {} pushes acknowledged; {} messages sent again\n"
             "a step took {:.1f} ms (median), {:.2f} s (the slowest); all copies again {:.2f} s after a kill (mean)\n",
             drill.kills, result.seconds, result.epochs, result.acknowledged, result.again, 1e3 * result.median_step,
             result.slowest_step, result.recovery);
  if (drill.frozen > 0)
    fmt::print(out, "{} of them froze (SIGSTOP): all copies again {:.2f} s after it (mean)\n", drill.frozen,
               result.frozen_recovery);
  fmt::print(out, "weights {} {} serial steps\n",
             result.same_bits ? "equal, bit for bit, those of" : "DIFFER from those of", result.acknowledged);
  return result.same_bits ? kExitFine : kExitFailed;
}

}  // namespace

void add_ps_drill(Command& ps, Context& context) {
  Command& command = ps.add_subcommand(
      "drill", "Kill server processes under load, one after the other, and compare the weights with one thread's");
  const auto options = std::make_shared<PsDrillOptions>();  // shared with the callback, which outlives this function
  ps::DrillOptions& drill = options->drill;
  command.add_option("--kills", drill.kills, "Servers that are killed (SIGKILL)").not_negative();
  command
      .add_option("--frozen", drill.frozen, "The last of them are frozen instead (SIGSTOP): only their heartbeat tells")
      .not_negative();
  command.add_option("--servers", drill.servers, "Server processes, over UCX").positive();
  command.add_option("--copies", drill.copies, "Servers that have each range").positive();
  command.add_option("--keys", drill.keys, "Weights").positive();
  command.add_option("--seed", drill.seed, "Of victims, times and gradients");
  command.add_option("--heartbeat", options->heartbeat_s, "Seconds: a server that is silent for so long is lost")
      .within(0.1, 3600);
  command.add_option("--hosts", options->hosts, "Servers on these hosts, one after the other, over ssh: a,b,user@c");
  command
      .add_option("--ssh", options->ssh, "What reaches a host, with its options; the host and a line of sh are added")
      .type_name("COMMAND");
  command.add_option("--host", drill.plane.host, "An address of this machine, where servers meet");
  command.add_option("--rank", options->rank, "A server of a drill: started by it");
  command.add_option("--port", drill.plane.port, "A server of a drill: the control plane's");
  command.add_flag("--join", options->join, "A server of a drill: comes later");
  command.callback(
      [&context, options] { context.run = [&context, options] { return run_ps_drill(*options, context.out); }; });
}

}  // namespace trireme::cli
