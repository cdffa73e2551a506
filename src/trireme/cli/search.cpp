// trireme search: strategies for an operator graph on a cluster, by every method, and why they differ.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/base/print.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/graph_options.h"
#include "trireme/cli/program.h"
#include "trireme/cli/schedule/options.h"
#include "trireme/plan/graph/backward.h"
#include "trireme/plan/graph/models.h"
#include "trireme/plan/graph/search/search.h"

namespace trireme::cli {
namespace {

namespace pg = plan::graph;

constexpr const char* kSearchExamples = R"(Examples:
  trireme search --graph vgg16 --cluster dgx2-v100 --gpus 4
  trireme search --graph alexnet,vgg16,resnet50 --cluster dgx-h100 --method data-parallel,optcnn --json
  trireme search --graph vgg16 --cluster dgx2-v100 --gpus 4 --method optcnn -o vgg16.plan
  trireme graph draw vgg16 --strategy vgg16.plan -o vgg16.svg
  trireme graph run vgg16 --small --plan vgg16.plan --verify
  trireme search --graph gpt --cluster dgx2-v100 --gpus 4 --method alpa -o gpt.plan
  trireme train --plan gpt.plan --small --steps 10
  trireme search explain --graph vgg16 --cluster dgx2-v100 --gpus 4)";

struct SearchCommandOptions {
  std::string graphs, cluster = "local", methods = "all", output, profile;
  std::int64_t batch = 0;
  int gpus = 0;
  double seconds = 30;
  bool json = false;
};

struct SearchTask {
  cost::Hardware hardware;
  std::optional<pg::OperatorProfile> profile;  ///< outlives what prices with it
  int gpus = 0;
  std::vector<std::string> methods;
};

SearchTask search_task(const SearchCommandOptions& options) {
  SearchTask task{
      .hardware = cost::load_hardware(options.cluster), .profile = profile_of(options.profile), .methods = {}};
  task.gpus = options.gpus > 0 ? options.gpus : task.hardware.cluster.gpus;
  task.methods = options.methods == "all" ? pg::search_methods() : split(options.methods, ',');
  const std::vector<std::string> known = pg::search_methods();
  for (const std::string& method : task.methods) {
    if (std::ranges::find(known, method) == known.end())
      throw ConfigError(fmt::format("--method \"{}\" is unknown{}", method, did_you_mean(method, known)),
                        "methods are " + listed(known));
  }
  return task;
}

/// Numbers are those of the graph where the device has units for them.
cost::Arithmetic arithmetic_of(const cost::Hardware& hardware) {
  return hardware.peak(cost::Arithmetic::kFp32) > 0 ? cost::Arithmetic::kFp32 : cost::Arithmetic::kBf16;
}

struct SearchResults {
  pg::Graph both;
  pg::Pricing pricing;
  std::vector<pg::Found> found;  // fastest that fits first
};

/// A profile of another graph, batch or number of ranks would change nothing, and nobody would see it.
void refuse_other_profile(const SearchResults& results, const SearchCommandOptions& options) {
  if (!results.pricing.profile()) return;
  const pg::Strategy strategy = pg::data_parallel(results.both, results.pricing.mesh());
  const pg::Lowering lowering = pg::lower(results.both, strategy);
  for (std::size_t i = 0; i < results.both.ops.size(); ++i) {
    const pg::Op& op = results.both.ops[i];
    const std::string key = pg::profile_key(results.both, op, iteration_space(results.both, op), lowering.degrees[i]);
    if (results.pricing.profile()->of(key)) return;
  }
  throw ConfigError(
      fmt::format("{} has no operator of {} on {} devices", options.profile, results.both.name,
                  results.pricing.mesh().ranks()),
      fmt::format("measure them: trireme graph profile {} --batch {} --ranks {} -o {}", options.graphs,
                  results.both.size(pg::sample_dim(results.both)), results.pricing.mesh().ranks(), options.profile));
}

SearchResults run_methods(const std::string& name, const SearchTask& task, const SearchCommandOptions& options) {
  SearchResults results{pg::with_backward(pg::open_graph(name, options.batch)),
                        pg::Pricing(task.hardware, pg::factored_mesh(task.gpus), arithmetic_of(task.hardware),
                                    task.profile ? &*task.profile : nullptr),
                        {}};
  refuse_other_profile(results, options);
  const pg::SearchLimits limits{.memory_bytes = task.hardware.memory_bytes(), .seconds = options.seconds};
  for (const std::string& method : task.methods) {
    if (auto found = pg::search(method, results.both, results.pricing, limits))
      results.found.push_back(std::move(*found));
  }
  if (results.found.empty())
    throw ConfigError(fmt::format("none of the methods is made for {}", name), "take --method all");
  std::ranges::stable_sort(results.found, [](const pg::Found& a, const pg::Found& b) {
    if (a.fits != b.fits) return a.fits;
    return a.cost.seconds < b.cost.seconds;
  });
  return results;
}

/// The best that is a strategy, which can be drawn and run; null where all have pipeline stages.
const pg::Found* best_strategy(const SearchResults& results) {
  for (const pg::Found& found : results.found) {
    if (found.pipeline.empty()) return &found;
  }
  return nullptr;
}

/// Seconds that no strategy takes less than, where one of the methods has proven it: alpa-intra's splits are all that
/// others of a strategy have, but for the order of axes where there are more than two.
std::optional<double> optimum_of(const SearchResults& results) {
  const auto exact = std::ranges::find(results.found, "alpa-intra", &pg::Found::method);
  return exact == results.found.end() || !exact->fits ? std::nullopt : exact->bound;
}

/// How much slower than the optimum, where that is known.
std::optional<double> above_optimum(const SearchResults& results, const pg::Found& found) {
  const std::optional<double> optimum = optimum_of(results);
  if (!optimum || !found.pipeline.empty() || !found.fits) return std::nullopt;
  const double above = found.cost.seconds / *optimum - 1;
  return std::abs(above) < 1e-9 ? 0 : above;  // sums in another order
}

/// Whether a method came to a plan at all, be it one that does not fit.
bool found_anything(const pg::Found& found) { return found.cost.seconds > 0; }

/// Nothing where either was not found.
std::optional<double> over_data_parallel(const SearchResults& results, const pg::Found& found) {
  const auto data = std::ranges::find(results.found, "data-parallel", &pg::Found::method);
  if (data == results.found.end() || !found_anything(found)) return std::nullopt;
  return data->cost.seconds / found.cost.seconds;
}

nlohmann::ordered_json search_json(const SearchResults& results, const SearchTask& task) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const pg::Found& found : results.found) {
    const auto number = [&](double value) {
      return found_anything(found) ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
    };
    nlohmann::ordered_json entry{{"method", found.method},
                                 {"seconds", number(found.cost.seconds)},
                                 {"compute_seconds", number(found.cost.compute_seconds)},
                                 {"communication_seconds", number(found.cost.communication_seconds)},
                                 {"bytes_sent", number(found.cost.bytes)},
                                 {"memory_bytes", number(found.cost.memory_bytes)},
                                 {"fits", found.fits},
                                 {"search_seconds", found.search_seconds},
                                 {"note", found.note}};
    if (found.bound) entry["bound_seconds"] = *found.bound;
    if (const auto above = above_optimum(results, found)) entry["above_optimum"] = *above;
    if (const auto published = pg::published_of(found.method))
      entry["published"] = {{"speedup", published->speedup}, {"over", published->over}};
    if (const auto speedup = over_data_parallel(results, found)) entry["speedup_over_data_parallel"] = *speedup;
    if (found.pipeline.empty()) {
      entry["strategy"] = pg::to_text(results.both, found.strategy);
    } else {
      entry["pipeline"] = found.pipeline;
      if (found.plan) entry["plan"] = pg::to_text(results.both, *found.plan);
    }
    list.push_back(std::move(entry));
  }
  return {{"graph", results.both.name},
          {"cluster", task.hardware.cluster.name},
          {"gpus", task.gpus},
          {"mesh", layout::to_text(results.pricing.mesh())},
          {"found", list}};
}

std::string search_table(const SearchResults& results, const SearchTask& task) {
  constexpr auto kRight = TextTable::Align::kRight;
  TextTable table({{"method"},
                   {"step", kRight},
                   {"computes", kRight},
                   {"sends", kRight},
                   {"bytes", kRight},
                   {"memory", kRight},
                   {"over dp", kRight},
                   {"published", kRight},
                   {"to optimum", kRight},
                   {"search", kRight},
                   {"note"}});
  for (const pg::Found& found : results.found) {
    const auto published = pg::published_of(found.method);
    const auto above = above_optimum(results, found);
    const auto speedup = over_data_parallel(results, found);
    const bool is_there = found_anything(found);
    const auto shown = [&](std::string text) { return is_there ? std::move(text) : "-"; };
    table.add({found.method, shown(short_seconds(found.cost.seconds)), shown(short_seconds(found.cost.compute_seconds)),
               shown(short_seconds(found.cost.communication_seconds)), shown(short_bytes(found.cost.bytes)),
               shown(short_bytes(found.cost.memory_bytes) + (found.fits ? "" : " (too much)")),
               speedup ? fmt::format("{:.2f}x", *speedup) : "-", published ? std::string(published->speedup) : "-",
               above ? fmt::format("{:+.1f} %", 100 * *above) : "-", short_seconds(found.search_seconds), found.note});
  }
  std::string text =
      fmt::format("{} on {} x {} ({}), mesh {}\n\n{}", results.both.name, task.gpus, task.hardware.device.name,
                  task.hardware.cluster.name, layout::to_text(results.pricing.mesh()), table.text());
  for (const pg::Found& found : results.found) {
    if (const auto published = pg::published_of(found.method))
      text += fmt::format("\npublished: {} {} {}", found.method, published->speedup, published->over);
  }
  const pg::Found* best = best_strategy(results);
  for (const pg::Found& found : results.found) {
    if (!best || &found == best || !found.pipeline.empty()) continue;
    const auto why = pg::differences(results.both, results.pricing, best->strategy, found.strategy, 2);
    if (why.empty()) continue;
    text += fmt::format("\n{} loses", found.method);
    for (const pg::Difference& difference : why)
      text += fmt::format("{} {} at {} ({})", &difference == &why.front() ? "" : ",", short_seconds(difference.seconds),
                          results.both.op(difference.op).name,
                          difference.other == difference.best
                              ? "what it reads lies otherwise"
                              : fmt::format("{}, not {}", difference.other, difference.best));
  }
  return text + "\n";
}

void run_search(const SearchCommandOptions& options, Context& context) {
  const SearchTask task = search_task(options);
  const std::vector<std::string> graphs = split(options.graphs, ',');
  if (!options.output.empty() && graphs.size() > 1)
    throw ConfigError(fmt::format("-o {} is for one plan, and --graph names {} graphs", options.output, graphs.size()),
                      "search them one by one, each with its own -o");
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const std::string& name : graphs) {
    const SearchResults results = run_methods(name, task, options);
    if (!options.output.empty() && graphs.size() == 1) {
      const pg::Found& best = results.found.front();
      if (!best.plan && !best.pipeline.empty())
        throw ConfigError(fmt::format("{} by {}: {}", name, best.method, best.note),
                          "take more devices, a smaller batch or another method");
      write_result(best.plan ? pg::to_text(results.both, *best.plan) : pg::to_text(results.both, best.strategy),
                   options.output, context);
    }
    if (options.json) {
      all.push_back(search_json(results, task));
    } else {
      fmt::print(context.out, "{}{}", &name == &graphs.front() ? "" : "\n", search_table(results, task));
    }
  }
  if (options.json) context.out << (graphs.size() == 1 ? all[0] : all).dump(2) << '\n';
}

void explain_search(const SearchCommandOptions& options, Context& context) {
  if (options.graphs.find(',') != std::string::npos)
    throw ConfigError(fmt::format("search explain is of one graph, not of {}", options.graphs), "name one of them");
  const SearchTask task = search_task(options);
  const SearchResults results = run_methods(options.graphs, task, options);
  const pg::Found* strategy = best_strategy(results);
  if (!strategy) {
    fmt::print(context.out, "{} by {}: {}\n\n{}", results.both.name, results.found.front().method,
               short_seconds(results.found.front().cost.seconds), results.found.front().pipeline);
    return;
  }
  const pg::Found& best = *strategy;
  constexpr auto kRight = TextTable::Align::kRight;
  TextTable table({{"operator"}, {"split"}, {"takes", kRight}, {"next best"}, {"would cost", kRight}});
  for (const pg::Reason& reason : pg::explain(results.both, results.pricing, best.strategy))
    table.add({results.both.op(reason.op).name, reason.split, short_seconds(reason.seconds),
               reason.other.empty() ? "-" : reason.other,
               fmt::format("{}{}", reason.more < 0 ? "-" : "+", short_seconds(std::abs(reason.more)))});
  fmt::print(context.out, "{} by {}: {}\n\n{}", results.both.name, best.method, short_seconds(best.cost.seconds),
             table.text());
}

void add_search_options(Command& command, SearchCommandOptions& options) {
  command
      .add_option("--graph", options.graphs,
                  "Built-in graphs (trireme graph show --all) or files (text or .onnx), separated by commas")
      .type_name("GRAPH,...")
      .required();
  command.add_option("--cluster", options.cluster, "A name in recipes/clusters or the path of a file")
      .type_name("CLUSTER");
  command
      .add_option("--profile", options.profile, "Operators as trireme graph profile measured them, in place of rates")
      .type_name("FILE");
  command.add_option("--gpus", options.gpus, "Devices; default: the cluster's").positive().type_name("N");
  command.add_option("--method", options.methods, "Methods separated by commas, or all").type_name("METHOD,...");
  command.add_option("--batch", options.batch, "Samples of a step; default: the graph's own").positive().type_name("N");
  command.add_option("--time-limit", options.seconds, "Seconds for one method; then the best so far, with its gap")
      .not_negative()
      .type_name("SECONDS");
}

}  // namespace

void add_search_command(Command& app, Context& context) {
  Command& search =
      app.add_subcommand("search", "Find strategies for an operator graph on a cluster, by every method, side by side");
  search.require_subcommand(0, 1);
  const auto options = std::make_shared<SearchCommandOptions>();  // shared with callbacks, which outlive this function
  const auto explained = std::make_shared<SearchCommandOptions>();
  Command& explain = search.add_subcommand("explain", "Why each operator is split as it is: its best other choice");
  add_search_options(explain, *explained);
  explain.callback([&context, explained] {
    context.run = [&context, explained] {
      explain_search(*explained, context);
      return kExitFine;
    };
  });
  add_search_options(search, *options);
  search.get_option("--graph").required(false);  // `search explain` has its own
  search.add_flag("--json", options->json, "As JSON, with every strategy found");
  search
      .add_option("-o,--output,--write", options->output,
                  "Write the best strategy, or plan with pipeline stages, to this file")
      .type_name("FILE");
  search.callback([&context, options, &search] {
    if (search.has_chosen_subcommand()) return;
    if (options->graphs.empty()) throw ConfigError("--graph is required", "see trireme search --help");
    context.run = [&context, options] {
      run_search(*options, context);
      return kExitFine;
    };
  });
  search.footer(kSearchExamples);
}

}  // namespace trireme::cli
