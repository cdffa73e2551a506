// cli/graph_options.h -- what `trireme graph` and `trireme train --plan` share: how a graph and its plan are named, and
// running them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "trireme/cli/command.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/program.h"
#include "trireme/plan/graph/staged.h"

namespace trireme::cli {

namespace pg = plan::graph;

struct GraphOptions {
  std::string graph, output, mesh, layout, annotations, strategy;
  std::int64_t batch = 0;
  bool all = false, json = false, backward = false;
  // of `graph run`
  int steps = 1, ranks = 0, random = 0;
  double learning_rate = 0.01, momentum = 0, weight_decay = 0, warmup_from = 0;
  std::int64_t warmup = 0;
  std::string decay_at, batch_norm = "exact";
  std::uint64_t seed = 0;
  bool small = false, verify = false, cuda_graphs = false, zero_gamma = false;
  std::string device = "cpu", images;
  std::string cluster, profile;   ///< to predict with
  bool measure = false;           ///< the plan's operators, before it runs
  double profile_seconds = 0.03;  ///< for one operator
  pg::DType dtype = pg::DType::kFp32;
};

std::string graph_file_text(const std::string& path);
/// Whether --strategy, --layout or --annotate is given.
bool has_strategy(const GraphOptions& options);
/// As they say; replicated where none is given.
pg::Strategy strategy_of(const GraphOptions& options, const pg::Graph& forward);
/// The file of --strategy where it has pipeline stages.
std::optional<pg::StagedPlan> staged_of(const GraphOptions& options, const pg::Graph& forward);
/// The graph that a strategy or plan is for, by its first line.
std::string graph_of_plan(const std::string& path);

void add_run_options(Command& command, GraphOptions& options);
void add_strategy_options(Command& command, GraphOptions& options);
/// A file of --profile; null where none is named.
std::optional<pg::OperatorProfile> profile_of(const std::string& path);
/// Measures a graph's operators, each as searches may split it, on ranks.
void profile_graph(const GraphOptions& options, Context& context);
void add_profile_options(Command& command, GraphOptions& options);
/// Runs it on ranks and reports. Error where --verify finds a difference.
void run_graph(const GraphOptions& options, Context& context);

}  // namespace trireme::cli
