// trireme graph: operator graphs of models: their counts, their text, their pictures, and whether a file is one.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/base/print.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/cli/command.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/graph_options.h"
#include "trireme/cli/program.h"
#include "trireme/cli/schedule/options.h"
#include "trireme/plan/graph/backward.h"
#include "trireme/plan/graph/count.h"
#include "trireme/plan/graph/draw.h"
#include "trireme/plan/graph/models.h"
#include "trireme/plan/graph/text.h"

namespace trireme::cli {
namespace {

namespace pg = plan::graph;

constexpr const char* kGraphExamples = R"(Examples:
  trireme graph show --all                       every built-in graph with its counts
  trireme graph show resnet50 -o net.txt         text to read and edit ...
  trireme graph check net.txt                    ... and to check
  trireme graph show resnet50.onnx --batch 32    an ONNX model as a graph
  trireme graph draw alexnet -o alexnet.svg
  trireme graph run gpt --small --mesh dp=2,tp=2 --layout n:dp,heads:tp,ffn:tp --dtype fp64 --verify
  trireme graph profile alexnet --batch 8 --ranks 4 -o alexnet.profile
  trireme graph draw gpt --mesh dp=2,tp=4 --layout n:dp,heads:tp,ffn:tp,vocab:tp -o megatron.svg)";

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

void draw_graph(const GraphOptions& options, Context& context) {
  const pg::Graph forward = pg::open_graph(options.graph, options.batch);
  if (!has_strategy(options)) {
    const pg::GraphCount counted = pg::count(forward);
    const pg::GraphDrawing plain{.caption = fmt::format("{} parameters, {}FLOP forward", counted.parameters,
                                                        short_count(counted.forward_flops))};
    return write_result(pg::to_svg(forward, plain), options.output, context);
  }
  const pg::Graph both = pg::with_backward(forward);
  if (const auto plan = staged_of(options, forward)) {
    if (const auto problems = pg::find_problems(forward, *plan); !problems.empty())
      throw ConfigError(problems.front(), "change its line of the plan");
    return write_result(pg::to_svg(both, pg::drawing_of(forward, *plan)), options.output, context);
  }
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
  const auto refuse = [](const std::vector<std::string>& problems) {
    if (problems.empty()) return;
    std::string all;
    for (const std::string& problem : problems) all += "\n  " + problem;
    throw ConfigError(fmt::format("the strategy cannot run ({}):{}", counted(problems.size(), "problem"), all),
                      "change the lines of these operators");
  };
  if (const auto plan = staged_of(options, forward)) {
    refuse(pg::find_problems(forward, *plan));
    return write_result(
        pg::to_text(forward, *plan) + "\ninserted, for each micro-batch:\n" + pg::describe(forward, *plan),
        options.output, context);
  }
  const pg::Strategy strategy = strategy_of(options, forward);
  refuse(pg::find_problems(both, strategy));
  write_result(
      pg::to_text(forward, strategy) + "\ninserted:\n" + pg::to_text(both, strategy, pg::lower(both, strategy)),
      options.output, context);
}

using GraphAction = void (*)(const GraphOptions&, Context&);

Command& add_graph_subcommand(Command& graph, Context& context, const char* name, const char* about,
                              const std::shared_ptr<GraphOptions>& options, GraphAction action) {
  Command& command = graph.add_subcommand(name, about);
  command.add_option("GRAPH", options->graph, "A built-in graph, or a file of one: text or .onnx");
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
  const auto profiled = std::make_shared<GraphOptions>();  // shared with the callback
  add_profile_options(
      add_graph_subcommand(graph, context, "profile",
                           "Measure a graph's operators on ranks, each in every way in which searches may split it",
                           profiled, &profile_graph),
      *profiled);
  graph.footer(kGraphExamples);  // last: commands made after it would repeat it
}

}  // namespace trireme::cli
