// trireme graph: operator graphs of models: their counts, their text, their pictures, and whether a file is one.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "trireme/base/error.h"
#include "trireme/base/print.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/cli/command.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/program.h"
#include "trireme/cli/runtime_commands.h"
#include "trireme/cli/schedule/options.h"
#include "trireme/cli/start_ranks.h"
#include "trireme/plan/graph/annotate.h"
#include "trireme/plan/graph/backward.h"
#include "trireme/plan/graph/count.h"
#include "trireme/plan/graph/draw.h"
#include "trireme/plan/graph/models.h"
#include "trireme/plan/graph/random_strategy.h"
#include "trireme/plan/graph/text.h"

namespace trireme::cli {
namespace {

namespace pg = plan::graph;

constexpr const char* kGraphExamples = R"(Examples:
  trireme graph show --all                       every built-in graph with its counts
  trireme graph show resnet50 -o net.txt         text to read and edit ...
  trireme graph check net.txt                    ... and to check
  trireme graph draw alexnet -o alexnet.svg
  trireme graph run gpt --small --mesh dp=2,tp=2 --layout n:dp,heads:tp,ffn:tp --dtype fp64 --verify
  trireme graph draw gpt --mesh dp=2,tp=4 --layout n:dp,heads:tp,ffn:tp,vocab:tp -o megatron.svg)";

struct GraphOptions {
  std::string graph, output, mesh, layout, annotations, strategy;
  std::int64_t batch = 0;
  bool all = false, json = false, backward = false;
  // of `graph run`
  int steps = 1, ranks = 0, random = 0;
  double learning_rate = 0.01;
  std::uint64_t seed = 0;
  bool small = false, verify = false;
  pg::DType dtype = pg::DType::kFp32;
};

std::string graph_file_text(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) throw IoError("could not read " + path, "is it there, and may it be read?");
  return text.str();
}

nlohmann::ordered_json count_json(const pg::Graph& both) {
  const pg::GraphCount counted = pg::count(both);
  std::size_t forward = 0;
  for (const pg::Op& op : both.ops) forward += op.forward < 0 ? 1 : 0;
  return {{"ops", forward},
          {"backward_ops", both.ops.size() - forward},
          {"parameters", counted.parameters},
          {"forward_flops", counted.forward_flops},
          {"backward_flops", counted.backward_flops},
          {"bytes", counted.bytes},
          {"peak_bytes", counted.peak_bytes}};
}

void show_all_graphs(const GraphOptions& options, Context& context) {
  constexpr auto kRight = TextTable::Align::kRight;
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  TextTable table({{"graph"},
                   {"batch", kRight},
                   {"ops", kRight},
                   {"parameters", kRight},
                   {"forward", kRight},
                   {"backward", kRight},
                   {"memory", kRight},
                   {"what it is"}});
  for (const pg::Model& model : pg::models()) {
    const pg::Index batch = options.batch > 0 ? options.batch : model.batch;
    const pg::Graph both = pg::with_backward(model.build(batch));
    nlohmann::ordered_json entry{{"name", model.name}, {"about", model.about}, {"batch", batch}};
    entry.update(count_json(both));
    table.add({std::string(model.name), fmt::format("{}", batch), fmt::format("{}", entry["ops"].get<int>()),
               fmt::format("{}", entry["parameters"].get<std::int64_t>()),
               short_count(entry["forward_flops"].get<double>()) + "FLOP",
               short_count(entry["backward_flops"].get<double>()) + "FLOP",
               short_bytes(entry["peak_bytes"].get<double>()), std::string(model.about)});
    list.push_back(std::move(entry));
  }
  write_result(options.json ? list.dump(2) + "\n" : table.text(), options.output, context);
}

void show_graph(const GraphOptions& options, Context& context) {
  if (options.all) return show_all_graphs(options, context);
  if (options.graph.empty()) throw ConfigError("no graph is named", "name one, or say --all");
  const pg::Graph forward = pg::open_graph(options.graph, options.batch);
  const pg::Graph both = pg::with_backward(forward);
  if (options.json) {
    nlohmann::ordered_json json{{"name", forward.name}};
    json.update(count_json(both));
    for (const pg::Op& op : forward.ops) {
      const pg::IterationSpace space = pg::iteration_space(forward, op);
      nlohmann::ordered_json dims = nlohmann::ordered_json::object();
      for (const pg::IterationDim& dim : space.dims)
        dims[forward.dims[static_cast<std::size_t>(dim.dim)].name] = std::string(pg::name_of(dim.kind));
      json["operators"].push_back({{"name", op.name},
                                   {"kind", pg::name_of(op.kind)},
                                   {"flops", pg::work_of(forward, op, space).flops},
                                   {"dims", dims}});
    }
    return write_result(json.dump(2) + "\n", options.output, context);
  }
  write_result(pg::to_text(options.backward ? both : forward), options.output, context);
}

/// As said by --strategy, --layout or --annotate; replicated where none is given.
pg::Strategy strategy_of(const GraphOptions& options, const pg::Graph& forward) {
  if (!options.strategy.empty())
    return pg::parse_strategy(forward, graph_file_text(options.strategy), options.strategy);
  std::string axes = options.mesh;
  std::ranges::replace(axes, ',', ' ');
  const layout::Mesh mesh = layout::parse_mesh(axes);
  if (!options.layout.empty()) return pg::mesh_tensorflow(forward, mesh, pg::parse_mesh_layout(options.layout));
  return pg::propagate(forward, mesh, pg::parse_annotations(options.annotations));
}

bool has_strategy(const GraphOptions& options) {
  const bool said = !options.layout.empty() || !options.annotations.empty();
  if (said && options.mesh.empty()) throw ConfigError("a layout needs a mesh", "add --mesh dp=2,tp=4");
  return said || !options.strategy.empty();
}

void draw_graph(const GraphOptions& options, Context& context) {
  const pg::Graph forward = pg::open_graph(options.graph, options.batch);
  if (!has_strategy(options)) {
    const pg::GraphCount counted = pg::count(forward);
    const pg::GraphDrawing plain{.caption = fmt::format("{} parameters, {}FLOP forward", counted.parameters,
                                                        short_count(counted.forward_flops))};
    return write_result(pg::to_svg(forward, plain), options.output, context);
  }
  const pg::Graph both = pg::with_backward(forward);
  const pg::Strategy strategy = strategy_of(options, forward);
  if (const auto problems = pg::find_problems(both, strategy); !problems.empty())
    throw ConfigError(problems.front(), "change its line of the strategy");
  write_result(pg::to_svg(both, pg::drawing_of(both, strategy, pg::lower(both, strategy))), options.output, context);
}

/// Whether a file is a graph; with a strategy, what that inserts.
void check_graph(const GraphOptions& options, Context& context) {
  const pg::Graph forward = pg::open_graph(options.graph, options.batch);
  if (!has_strategy(options)) {
    fmt::print(context.out, "{}: {} operators, {} tensors, {} parameters; nothing contradicts itself\n", forward.name,
               forward.ops.size(), forward.tensors.size(), pg::count(forward).parameters);
    return;
  }
  const pg::Graph both = pg::with_backward(forward);
  const pg::Strategy strategy = strategy_of(options, forward);
  if (const auto problems = pg::find_problems(both, strategy); !problems.empty()) {
    std::string all;
    for (const std::string& problem : problems) all += "\n  " + problem;
    throw ConfigError(fmt::format("the strategy cannot run ({}):{}", counted(problems.size(), "problem"), all),
                      "change the lines of these operators");
  }
  write_result(
      pg::to_text(forward, strategy) + "\ninserted:\n" + pg::to_text(both, strategy, pg::lower(both, strategy)),
      options.output, context);
}

/// How far a gradient may be from the whole graph's: rounding of sums in another order.
double tolerance(pg::DType dtype) { return dtype == pg::DType::kFp64 ? 1e-9 : 2e-3; }

/// The strategies to run: one that is said, or many that are drawn.
std::vector<pg::Strategy> strategies_to_run(const GraphOptions& options, const pg::Graph& forward) {
  std::string axes = options.mesh;
  std::ranges::replace(axes, ',', ' ');
  if (options.random > 0) {
    if (axes.empty()) throw ConfigError("random strategies need a mesh", "add --mesh a=2,b=2");
    std::vector<pg::Strategy> drawn;
    const pg::Graph both = pg::with_backward(forward);
    for (int i = 0; i < options.random; ++i)
      drawn.push_back(
          pg::random_strategy(both, layout::parse_mesh(axes), options.seed + static_cast<std::uint64_t>(i)));
    return drawn;
  }
  if (has_strategy(options)) {
    if (!options.small || options.strategy.empty()) return {strategy_of(options, forward)};
    // What was found for the model as published, on its small sibling: operator by operator, dimension by dimension.
    const pg::Graph published = pg::open_graph(options.graph, options.batch);
    const pg::Strategy found = pg::parse_strategy(published, graph_file_text(options.strategy), options.strategy);
    return {pg::transferred(published, found, forward)};
  }
  return {pg::replicated(forward, layout::parse_mesh(axes))};
}

std::string run_report(const spmd::RunRequest& request, const pg::Strategy& strategy, const spmd::RunReport& report) {
  std::string text =
      fmt::format("{} on {} ranks (mesh {}): {} collectives of {}, at most {} on a rank, {} a step\n",
                  request.forward.name, strategy.mesh.ranks(), layout::to_text(strategy.mesh), report.collectives,
                  short_bytes(report.bytes), short_bytes(report.peak_bytes), short_seconds(report.seconds));
  for (std::size_t i = 0; i < report.losses.size(); ++i) {
    text += fmt::format("step {}: loss {:.9f}", i, report.losses[i]);
    if (i < report.reference.size())
      text += fmt::format(", whole {:.9f}, difference {:.1e}", report.reference[i],
                          std::abs(report.losses[i] - report.reference[i]));
    text += '\n';
  }
  if (request.verify) {
    text += fmt::format("gradients of {} parameters: largest difference {:.1e} ({})\n", report.parameters, report.worst,
                        report.worst_parameter.empty() ? "none" : report.worst_parameter);
    text += report.deviations.empty() ? "collectives: as listed, to the byte\n" : "";
    for (const std::string& what : report.deviations) text += "collectives: " + what + "\n";
  }
  return text;
}

bool holds(const spmd::RunRequest& request, const spmd::RunReport& report, double most) {
  bool fine = report.worst <= most && report.deviations.empty();
  for (std::size_t i = 0; i < report.reference.size(); ++i)
    fine = fine && std::abs(report.losses[i] - report.reference[i]) <= most * std::max(1.0, report.reference[i]);
  return fine || !request.verify;
}

void run_graph(const GraphOptions& options, Context& context) {
  const pg::Graph forward = pg::with_dtype(
      options.small ? pg::small_model(options.graph, options.batch) : pg::open_graph(options.graph, options.batch),
      options.dtype);
  const std::vector<pg::Strategy> strategies = strategies_to_run(options, forward);
  const spmd::Commands& commands = load_spmd();
  spec::Recipe recipe;
  recipe.comm.ranks = strategies[0].mesh.ranks();
  if (options.ranks > 0 && options.ranks != *recipe.comm.ranks)
    throw ConfigError(fmt::format("the strategy is for {} ranks, not for {}", *recipe.comm.ranks, options.ranks),
                      fmt::format("say --ranks {}, or nothing", *recipe.comm.ranks));
  const spmd::RunRequest request{.forward = forward,
                                 .strategies = strategies,
                                 .steps = options.steps,
                                 .learning_rate = options.learning_rate,
                                 .seed = options.seed,
                                 .verify = options.verify,
                                 .local_ranks = local_ranks(recipe)};
  std::string text;
  int failed = 0;
  double worst = 0;
  start_ranks(recipe, [&](comm::Rank& rank) {
    const std::vector<spmd::RunReport> reports = commands.run(request, rank);
    if (rank.rank() != 0) return;
    for (std::size_t i = 0; i < reports.size(); ++i) {
      const bool fine = holds(request, reports[i], tolerance(options.dtype));
      failed += fine ? 0 : 1;
      worst = std::max(worst, reports[i].worst);
      if (reports.size() == 1 || !fine) text += run_report(request, strategies[i], reports[i]);
      if (reports.size() > 1 && !fine) text += pg::to_text(forward, strategies[i]);
    }
  });
  if (strategies.size() > 1)
    text += fmt::format("{}: {} random strategies, {} {}; largest difference of a gradient {:.1e}\n", forward.name,
                        strategies.size(), failed, options.verify ? "differ from the whole graph" : "failed", worst);
  if (!text.empty()) write_result(text, options.output, context);
  if (failed > 0)
    throw Error(
        fmt::format("{} did not compute what the whole graph computes", counted(std::size_t(failed), "strategy")));
}

void add_run_options(Command& command, GraphOptions& options) {
  command.add_option("--ranks", options.ranks, "Ranks; default: as many as the strategy's mesh has")
      .positive()
      .type_name("N");
  command.add_option("--steps", options.steps, "Steps of gradient descent").show_default().positive().type_name("N");
  command.add_option("--lr", options.learning_rate, "Learning rate").show_default().not_negative();
  command.add_option("--seed", options.seed, "of parameters, inputs and dropout").show_default();
  add_choice<pg::DType>(command, "--dtype", options.dtype, {{"fp32", pg::DType::kFp32}, {"fp64", pg::DType::kFp64}},
                        "to compute in");
  command.add_flag(
      "--small", options.small,
      "A built-in graph with few channels and small images, that a CPU runs in a second; a strategy may be "
      "one that was found for the published size");
  command.add_option("--random", options.random, "Instead of one strategy: so many random legal ones on --mesh")
      .positive()
      .type_name("N");
  command.add_flag("--verify", options.verify,
                   "Also run the whole graph by autograd; compare losses, every gradient, every collective");
}

void add_strategy_options(Command& command, GraphOptions& options) {
  command.add_option("--strategy", options.strategy, "A strategy: text as trireme search writes it").type_name("FILE");
  command.add_option("--mesh", options.mesh, "Mesh axes, outermost first: dp=2,tp=4").type_name("AXES");
  command
      .add_option("--layout", options.layout,
                  "Mesh-TensorFlow: which axis splits a dimension wherever it occurs: n:dp,ffn:tp")
      .type_name("DIM:AXIS,...");
  command
      .add_option("--annotate", options.annotations,
                  "GShard: how some tensors are split, from which the rest follows: \"hidden groups:a; w experts:a\"")
      .type_name("TENSOR DIM:AXIS;...");
}

using GraphAction = void (*)(const GraphOptions&, Context&);

Command& add_graph_subcommand(Command& graph, Context& context, const char* name, const char* about,
                              const std::shared_ptr<GraphOptions>& options, GraphAction action) {
  Command& command = graph.add_subcommand(name, about);
  command.add_option("GRAPH", options->graph, "A built-in graph, or a file of one");
  command.add_option("--batch", options->batch, "Samples of a step; default: the graph's own")
      .positive()
      .type_name("N");
  command.add_option("-o,--output", options->output, "Write to this file").type_name("FILE");
  command.callback([&context, options, action] {
    context.run = [&context, options, action] {
      action(*options, context);
      return kExitFine;
    };
  });
  return command;
}

}  // namespace

void add_graph_command(Command& app, Context& context) {
  Command& graph =
      app.add_subcommand("graph", "Show, draw and check operator graphs, and what a sharding inserts into them");
  graph.require_subcommand(1);
  const auto shown = std::make_shared<GraphOptions>(), drawn = std::make_shared<GraphOptions>(),
             checked = std::make_shared<GraphOptions>();  // shared with callbacks, which outlive this function
  Command& show_command =
      add_graph_subcommand(graph, context, "show",
                           "Print a graph as text that can be edited and read back, or its counts", shown, &show_graph);
  show_command.add_flag("--all", shown->all, "Instead: every built-in graph with parameters, FLOPs and memory");
  show_command.add_flag("--backward", shown->backward, "With its gradient operators");
  show_command.add_flag("--json", shown->json, "Counts and operators as JSON");
  add_strategy_options(
      add_graph_subcommand(graph, context, "draw", "Draw a graph, or a strategy on it, as SVG", drawn, &draw_graph),
      *drawn);
  add_strategy_options(
      add_graph_subcommand(graph, context, "check", "Check a graph; with a strategy, print every collective it inserts",
                           checked, &check_graph),
      *checked);
  const auto run = std::make_shared<GraphOptions>();  // shared with the callback
  Command& run_command = add_graph_subcommand(
      graph, context, "run", "Run a graph with a strategy, forward and backward, on ranks; check it", run, &run_graph);
  add_strategy_options(run_command, *run);
  add_run_options(run_command, *run);
  graph.footer(kGraphExamples);  // last: commands made after it would repeat it
}

}  // namespace trireme::cli
