// trireme ps lbfgs: Sandblaster L-BFGS on a libsvm file.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <memory>
#include <thread>

#include "trireme/base/error.h"
#include "trireme/base/print.h"
#include "trireme/base/stopwatch.h"
#include "trireme/base/units.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/program.h"
#include "trireme/cli/ps_nodes.h"
#include "trireme/ps/logistic.h"

namespace trireme::cli {
namespace {

struct PsLbfgsOptions {
  std::filesystem::path data, save;
  double lambda = 1, slow = 1;
  bool no_backup = false, serial = false;
  ps::SandblasterOptions solver;
  PsNodeOptions nodes;
};

int run_ps_lbfgs(PsLbfgsOptions& options, std::ostream& out) {
  const formats::SparseSamples samples = formats::read_libsvm(options.data);
  ps::SandblasterOptions& solver = options.solver;
  solver.backup = !options.no_backup;
  if (solver.portions == 0) solver.portions = ps::kPortionsPerReplica * solver.replicas;
  if (static_cast<std::size_t>(solver.portions) > samples.count())
    throw ConfigError(fmt::format("{} samples are no {} portions", samples.count(), solver.portions),
                      fmt::format("set --portions {} or fewer", samples.count()));
  const ps::PortionLoss loss = ps::logistic_portions(samples, options.lambda, solver.portions);
  const std::vector<double> start(samples.feature_count);
  ps::SandblasterResult result;
  const int slowed = 1 + solver.servers;  // the first replica's address
  const auto begin = std::chrono::steady_clock::now();
  run_ps_nodes(ps::sandblaster_mailboxes(solver), options.nodes, [&](comm::Mailbox& mailbox) {
    const bool is_slow = mailbox.address() == slowed && options.slow > 1;
    const auto slow_loss = [&](int portion, std::span<const double> weights, std::span<double> gradient) {
      const auto from = std::chrono::steady_clock::now();
      const double value = loss(portion, weights, gradient);
      if (is_slow) std::this_thread::sleep_for(std::chrono::duration<double>((options.slow - 1) * seconds_since(from)));
      return value;
    };
    ps::run_sandblaster(mailbox, solver, start, slow_loss, result);
  });
  if (result.weights.empty()) return kExitFine;  // the coordinator was on another rank
  const double seconds = seconds_since(begin);
  const ps::LbfgsReport& report = result.report;
  fmt::print(out, "{} samples, {} features; {} shards, {} replicas, {} portions a batch\n", samples.count(),
             samples.feature_count, solver.servers, solver.replicas, solver.portions);
  fmt::print(out, "loss {:.12g} after {} iterations and {} batches, {}; gradient norm {:.1e}; {:.1f} % right\n",
             report.loss, report.iterations, report.evaluations, report.converged ? "converged" : "NOT converged",
             report.gradient_norm, 100 * ps::logistic_accuracy(samples, result.weights));
  fmt::print(out, "a batch took {}; portions by replica {}; {} backup tasks\n",
             short_seconds(seconds / std::max(1, report.evaluations)), fmt::join(result.portions_of, " "),
             result.backups);
  if (options.serial) {
    ps::LocalVectors local(samples.feature_count, ps::lbfgs_slots(solver.lbfgs.history), solver.portions, loss);
    const ps::LbfgsReport serial = ps::minimize_lbfgs(local, solver.lbfgs);
    double most = 0;
    for (std::size_t i = 0; i < result.weights.size(); ++i)
      most = std::max(most, std::abs(local.slot(ps::kWeightSlot)[i] - result.weights[i]));
    fmt::print(out, "one process: loss {:.12g} after {} iterations, weights differ by {:.1e} at most\n", serial.loss,
               serial.iterations, most);
  }
  if (!options.save.empty()) save_weights(result.weights, options.save, out);
  return report.converged ? kExitFine : kExitFailed;
}

}  // namespace

void add_ps_lbfgs(Command& ps, Context& context) {
  Command& command = ps.add_subcommand(
      "lbfgs", "L2-regularised logistic regression on a libsvm file, by L-BFGS on shards (Sandblaster)");
  const auto options = std::make_shared<PsLbfgsOptions>();  // shared with the callback, which outlives this function
  ps::SandblasterOptions& solver = options->solver;
  solver.lbfgs.tolerance =
      1e-5;  // of a sum over thousands of samples: below it rounding of the loss is all that is left
  command.add_option("DATA", options->data, "libsvm file: LABEL INDEX:VALUE ... a line, two labels").required();
  command.add_option("--lambda", options->lambda, "Of the norm: lambda / 2 |w|^2; the loss is summed over samples")
      .positive();
  command.add_option("--servers", solver.servers, "Shards of every vector").within(1, 4096);
  command.add_option("--replicas", solver.replicas, "That compute portions of a batch").within(1, 4096);
  command.add_option("--portions", solver.portions, "Of a batch; 0: 50 for each replica").not_negative();
  command.add_flag("--no-backup", options->no_backup, "Nobody takes over a portion that is out");
  command.add_option("--slow", options->slow, "How many times as long the first replica takes over a portion")
      .within(1.0, 1000.0)
      .type_name("FACTOR");
  command.add_option("--history", solver.lbfgs.history, "Pairs of steps and gradients that are kept").within(1, 1000);
  command.add_option("--iterations", solver.lbfgs.iterations, "At most").positive();
  command.add_option("--tolerance", solver.lbfgs.tolerance, "Of the gradient's norm").positive();
  add_ps_node_options(command, options->nodes);
  command.add_flag("--serial", options->serial, "Compare with one process");
  command.add_option("--save", options->save, "Write INDEX WEIGHT of features that are not 0").type_name("FILE");
  command.callback(
      [&context, options] { context.run = [&context, options] { return run_ps_lbfgs(*options, context.out); }; });
}

}  // namespace trireme::cli
