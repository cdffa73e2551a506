// trireme ampnet: asynchronous model parallelism on lists, trees and graphs.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include <memory>

#include "trireme/base/permutation.h"
#include "trireme/base/print.h"
#include "trireme/base/random.h"
#include "trireme/base/stopwatch.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/program.h"
#include "trireme/dataflow/tasks.h"

namespace trireme::cli {
namespace {

struct AmpNetOptions {
  std::string task = "lists", backend = "virtual";
  int instances = 500, epochs = 10, keys = 8;
  dataflow::ModelOptions model;
  std::int64_t seed = 0;
};

std::unique_ptr<dataflow::Task> task_of(const AmpNetOptions& options) {
  const auto seed = static_cast<std::uint64_t>(options.seed);
  if (options.task == "lists")
    return dataflow::make_list_task(dataflow::make_list_reduction(options.instances, seed), options.model);
  if (options.task == "trees")
    return dataflow::make_tree_task(dataflow::make_trees(options.instances, seed), options.model);
  if (options.task == "graphs")
    return dataflow::make_deduction_task(dataflow::make_deductions(options.instances, seed), options.model);
  return dataflow::make_mixed_task(dataflow::make_list_reduction(options.instances / 2, seed),
                                   dataflow::make_trees(options.instances - options.instances / 2, seed),
                                   options.model);
}

int run_ampnet_command(const AmpNetOptions& given, Context& context) {
  AmpNetOptions options = given;
  options.model.seed = static_cast<std::uint64_t>(options.seed);
  const auto task = task_of(options);
  // Cells take long beside what only sends on, as on machines that compute with vectors.
  const dataflow::VirtualTimes times = dataflow::times_by_flops(1e9, 2e-7, 1e-6);
  const auto count = task->instances();
  constexpr auto kRight = TextTable::Align::kRight;
  TextTable table({{"epoch", kRight},
                   {"loss", kRight},
                   {"right %", kRight},
                   {"instances/s", kRight},
                   {"busiest worker %", kRight}});
  QueueReading longest;  // in the mean
  for (int epoch = 0; epoch < options.epochs; ++epoch) {
    const Permutation order(Random(options.model.seed, fmt::format("ampnet/epoch {}", epoch)), count);
    dataflow::RunOptions run{.instances = {}, .max_active_keys = options.keys};
    for (std::size_t i = 0; i < count; ++i) run.instances.push_back(static_cast<int>(order.at(i)));
    task->loss->clear();
    double seconds = 0, busiest = -1;
    dataflow::DataflowResult ran;
    const auto begin = std::chrono::steady_clock::now();
    if (options.backend == "virtual") {
      const auto result = dataflow::run_virtual(task->graph, task->source, run, times);
      seconds = result.seconds;
      busiest = result.busiest();
      ran = result;
    } else if (options.backend == "mailbox") {
      ran =
          dataflow::run_seeded(task->graph, task->source, run, options.model.seed + static_cast<std::uint64_t>(epoch));
    } else {
      ran = dataflow::run_threads(task->graph, task->source, run);
    }
    if (seconds == 0) seconds = seconds_since(begin);
    dataflow::average_replicas(*task);
    for (const QueueReading& queue : ran.queues) {
      if (queue.length() >= longest.length()) longest = queue;
    }
    const dataflow::Scores scores = dataflow::scores_of(*task);
    table.add({fmt::format("{}", epoch + 1), fmt::format("{:.4f}", scores.loss),
               fmt::format("{:.1f}", 100 * scores.accuracy),
               fmt::format("{:.4g}", static_cast<double>(count) / seconds),
               busiest < 0 ? std::string("-") : fmt::format("{:.1f}", 100 * busiest)});
  }
  fmt::print(context.out, "{}", table.text());
  std::int64_t updates = 0, staleness = 0;
  for (const dataflow::Transform* node : task->graph.transforms()) {
    updates += node->updates();
    staleness = std::max(staleness, node->staleness());
  }
  fmt::print(context.out,
             "{} forward messages, each with its backward one; {} updates, the stalest gradient lacked {}\n",
             task->graph.forwards(), updates, staleness);
  fmt::print(context.out, "the longest queue of a worker: L {:.2f} messages, lambda {:.4g} /s, W {}\n",
             longest.length(), longest.rate(), short_seconds(longest.wait()));
  return kExitFine;
}

}  // namespace

void add_ampnet_command(Command& app, Context& context) {
  Command& command = app.add_subcommand("ampnet", "Train on lists, trees or graphs in a graph of messages (AMPNet)");
  const auto options = std::make_shared<AmpNetOptions>();  // shared with the callback, which outlives this function
  command
      .add_option("--task", options->task,
                  "lists: a recurrent network reduces lists of digits; trees: a tree LSTM says the sentiment; both: "
                  "one graph for both; graphs: a gated graph network answers what somebody fears")
      .one_of({"lists", "trees", "both", "graphs"})
      .type_name("TASK");
  command
      .add_option(
          "--backend", options->backend,
          "virtual: discrete events; mailbox: threads, deliveries drawn from the seed; threads: of this machine")
      .one_of({"virtual", "mailbox", "threads"})
      .type_name("HOW");
  command.add_option("--instances", options->instances, "Made from the seed").within(2, 1000000).type_name("N");
  command.add_option("--epochs", options->epochs, "Passes over them").within(1, 100000).type_name("N");
  command.add_option("--max-active-keys", options->keys, "Instances in flight at once")
      .within(1, 100000)
      .type_name("N");
  command
      .add_option("--min-update-frequency", options->model.update.min_update_frequency,
                  "Gradients of a node that make an update")
      .within(1, 1000000)
      .type_name("N");
  command.add_option("--learning-rate", options->model.update.learning_rate, "Of plain SGD")
      .positive()
      .type_name("RATE");
  command
      .add_option("--replicas", options->model.replicas,
                  "Of each cell, each on a worker of its own; averaged after every epoch")
      .within(1, 64)
      .type_name("N");
  command.add_option("--hidden-size", options->model.hidden, "Hidden size").within(1, 4096).type_name("N");
  command.add_option("--seed", options->seed, "Of instances, parameters and order").not_negative().type_name("N");
  command.footer(R"(Examples:
  trireme ampnet --task trees --max-active-keys 8 --epochs 3 --instances 100
  trireme ampnet --task graphs --max-active-keys 8 --epochs 5 --instances 200
  trireme ampnet --task both --backend threads --epochs 2 --instances 100
  trireme ampnet --task lists --replicas 2 --max-active-keys 32 --epochs 2 --instances 100)");
  command.callback(
      [&context, options] { context.run = [&context, options] { return run_ampnet_command(*options, context); }; });
}

}  // namespace trireme::cli
