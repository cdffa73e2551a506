// trireme bench comm: how fast collectives are here, beside what the cost model says.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <bit>
#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "trireme/base/log.h"
#include "trireme/base/print.h"
#include "trireme/base/progress.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/program.h"
#include "trireme/cli/recipe_options.h"
#include "trireme/cli/start_ranks.h"
#include "trireme/comm/launch.h"
#include "trireme/comm/measure.h"

namespace trireme::cli {
namespace {

struct BenchOptions {
  RecipeOptions recipe;
  std::string transport;
  int ranks = 0, ranks_per_node = 0;
  std::string ops = "all", algorithms = "all", bytes = "1K:64M", type = "f32";
  double seconds_per_row = 0.06;
  bool json = false, in_place = false, calibrate = false;
  std::string output;
};

template <typename Value, typename Parse, typename All>
std::vector<Value> parse_list(const std::string& text, std::string_view what, Parse&& parse, All&& all) {
  std::vector<Value> values;
  if (text == "all") {
    for (const auto value : all()) values.push_back(value);
    return values;
  }
  std::vector<std::string> names;
  for (const auto value : all()) names.emplace_back(cost::name(value));
  for (const std::string& word : split(text, ',')) {
    const auto value = parse(trimmed(word));
    if (!value) {
      throw ConfigError(fmt::format("there is no {} '{}'{}", what, word, did_you_mean(word, names)),
                        fmt::format("choose from all, {}", fmt::join(names, ", ")));
    }
    values.push_back(*value);
  }
  return values;
}

/// "64K", "1K,1M" or "1K:64M" with an optional factor behind a second colon.
std::vector<std::size_t> parse_sizes(const std::string& text) {
  std::vector<std::size_t> sizes;
  for (const std::string& word : split(text, ',')) {
    const std::vector<std::string> parts = split(word, ':');
    const auto low = parse_bytes(parts[0]), high = parts.size() > 1 ? parse_bytes(parts[1]) : low;
    const auto factor = parts.size() > 2 ? parse_count(parts[2]) : 4;
    if (parts.size() > 3 || low < 1 || high < low || factor < 2) {
      throw ConfigError(fmt::format("--bytes '{}' is no range of sizes", word),
                        "write it as 64K, as 1K:64M (times 4 each), or as 1K:64M:2; several separated by commas");
    }
    for (auto size = low; size <= high; size *= factor) sizes.push_back(static_cast<std::size_t>(size));
  }
  return sizes;
}

comm::DType parse_type(const std::string& text) {
  std::vector<std::string> names;
  for (const comm::DType type : comm::kAllDTypes) {
    if (comm::name(type) == text) return type;
    names.emplace_back(comm::name(type));
  }
  throw ConfigError(fmt::format("there is no type '{}'{}", text, did_you_mean(text, names)),
                    fmt::format("choose from {}", fmt::join(names, ", ")));
}

spec::Recipe effective_recipe(BenchOptions& options, const Context& context) {
  if (!options.transport.empty()) options.recipe.set("comm.transport=" + options.transport);
  if (options.ranks > 0) options.recipe.set(fmt::format("comm.ranks={}", options.ranks));
  if (options.ranks_per_node > 0) options.recipe.set(fmt::format("comm.ranks_per_node={}", options.ranks_per_node));
  spec::Recipe recipe = options.recipe.load(context).value;
  const bool launched = comm::detect_launch().kind != comm::Launch::Kind::kSingle;
  if (!recipe.comm.ranks && !launched) recipe.comm.ranks = 2;  // one rank has nobody to talk to
  return recipe;
}

std::string bandwidth_text(double bytes_per_second) {
  return bytes_per_second > 0 ? short_bandwidth(bytes_per_second) : "-";
}

void print_table(std::ostream& out, const comm::Rank& rank, std::string_view transport,
                 const std::vector<comm::Measurement>& rows) {
  TextTable table({{"operation"},
                   {"bytes", TextTable::Align::kRight},
                   {"algorithm"},
                   {"time", TextTable::Align::kRight},
                   {"algbw", TextTable::Align::kRight},
                   {"busbw", TextTable::Align::kRight},
                   {"predicted", TextTable::Align::kRight},
                   {"auto"}});
  for (const auto& row : rows) {
    table.add({std::string(cost::name(row.op)), row.bytes == 0 ? "-" : short_bytes(static_cast<double>(row.bytes)),
               std::string(cost::name(row.algorithm)), short_seconds(row.seconds),
               bandwidth_text(row.algorithm_bandwidth()), bandwidth_text(row.bus_bandwidth(rank.ranks())),
               std::isfinite(row.predicted_seconds) ? short_seconds(row.predicted_seconds) : "-",
               row.chosen ? "*" : ""});
  }
  fmt::print(out,
             "{} ranks, transport {}; time is the median of 5 batches on the slowest rank; * is what auto takes\n\n{}",
             rank.ranks(), transport, table.text());
}

nlohmann::json to_json(const comm::Measurement& row, int ranks) {
  nlohmann::json json = {{"op", cost::name(row.op)},
                         {"algorithm", cost::name(row.algorithm)},
                         {"bytes", row.bytes},
                         {"seconds", row.seconds},
                         {"fastest_seconds", row.fastest_seconds},
                         {"calls", row.calls},
                         {"algbw_bytes_per_s", row.algorithm_bandwidth()},
                         {"busbw_bytes_per_s", row.bus_bandwidth(ranks)},
                         {"chosen_by_auto", row.chosen}};
  json["predicted_seconds"] =
      std::isfinite(row.predicted_seconds) ? nlohmann::json(row.predicted_seconds) : nlohmann::json(nullptr);
  return json;
}

/// What would make it run.
std::string hint_for(cost::Algorithm algorithm, const comm::Rank& rank) {
  switch (algorithm) {
    case cost::Algorithm::kHierarchical:
      return fmt::format("start several ranks on several nodes, or count them as if: --ranks {} --ranks-per-node 2",
                         rank.ranks() > 2 ? rank.ranks() : 4);
    case cost::Algorithm::kRecursiveDoubling:
      return fmt::format("--ranks {}", std::bit_floor(static_cast<unsigned>(rank.ranks())));
    case cost::Algorithm::kDirect:
      return "--transport threads";
    case cost::Algorithm::kNative:
      return "start the ranks with mpirun, and --transport mpi";
    default:
      return "choose another --op; --algo all shows which algorithms each has";
  }
}

/// Algorithms that were asked for by name but cannot run: one that runs for no operation is an error, the rest is told
/// below the table.
std::string not_measured(comm::Rank& rank, const comm::MeasureOptions& measured) {
  std::string notes;
  for (const cost::Algorithm algorithm : measured.algorithms) {
    std::map<std::string, std::vector<std::string_view>> reasons;
    std::size_t refused = 0;
    for (const cost::Collective op : measured.ops) {
      const std::string why = rank.world().refusal(op, algorithm);
      if (why.empty()) continue;
      reasons[why].push_back(cost::name(op));
      ++refused;
    }
    std::string text;
    for (const auto& [why, ops] : reasons)
      text += fmt::format("{}{} of {}: {}", text.empty() ? "" : "; ", cost::name(algorithm), fmt::join(ops, ", "), why);
    if (refused > 0 && refused == measured.ops.size()) {
      throw ConfigError(fmt::format("algorithm {} cannot run here: {}", cost::name(algorithm), text),
                        hint_for(algorithm, rank));
    }
    if (!text.empty()) notes += fmt::format("not measured: {}\n", text);
  }
  return notes;
}

void calibrate(comm::Rank& rank, const std::vector<comm::Measurement>& rows, const std::string& path,
               std::ostream& out) {
  cost::CostTable table = rank.options().costs;
  cost::TransportCost& costs = table.of(rank.transport().name());
  const std::vector<int> nodes = rank.transport().node_of();
  const int node_count = 1 + *std::max_element(nodes.begin(), nodes.end());
  const cost::LinkCost link = comm::measure_link(rank);
  costs.links.inside = link;
  if (node_count == 1 && rank.transport().name() == "threads") costs.links.across = link;
  comm::fit(costs, {.ranks = rank.ranks(), .nodes = node_count}, rows);
  if (rank.rank() != 0) return;
  std::filesystem::create_directories(std::filesystem::absolute(path).parent_path());
  cost::write_cost_table(table, path);
  fmt::print(out, "\none message: {} + bytes at {}; combining at {}\nwrote {}\n", short_seconds(link.alpha),
             short_bandwidth(link.beta > 0 ? 1 / link.beta : 0), short_bandwidth(1 / link.gamma), path);
}

void run_bench(const BenchOptions& options, const spec::Recipe& recipe, std::ostream& out) {
  const comm::MeasureOptions measured{
      .ops = parse_list<cost::Collective>(options.ops, "operation", &cost::parse_collective, &cost::all_collectives),
      .algorithms =
          parse_list<cost::Algorithm>(options.algorithms, "algorithm", &cost::parse_algorithm, &cost::all_algorithms),
      .bytes = parse_sizes(options.bytes),
      .type = parse_type(options.type),
      .in_place = options.in_place,
      .budget_s = options.seconds_per_row};
  start_ranks(recipe, [&](comm::Rank& rank) {
    const bool speaks = rank.rank() == 0;
    std::unique_ptr<Progress> progress;  // made when the number of rows is known
    const auto show = [&](const comm::Measurement& row, std::size_t done, std::size_t total) {
      if (!speaks) return;
      if (!progress) progress = std::make_unique<Progress>("bench", static_cast<std::int64_t>(total), "row");
      progress->update(static_cast<std::int64_t>(done),
                       fmt::format("{} {}", cost::name(row.op), short_bytes(static_cast<double>(row.bytes))));
    };
    const std::string notes = options.algorithms == "all" ? "" : not_measured(rank, measured);
    const auto rows = comm::measure(rank, measured, show);
    progress.reset();
    if (speaks && options.json) {
      nlohmann::json document = {{"transport", rank.transport().name()},
                                 {"ranks", rank.ranks()},
                                 {"type", options.type},
                                 {"rows", nlohmann::json::array()}};
      for (const auto& row : rows) document["rows"].push_back(to_json(row, rank.ranks()));
      out << document.dump(1) << "\n";
    } else if (speaks) {
      print_table(out, rank, rank.transport().name(), rows);
      if (!notes.empty()) fmt::print(out, "\n{}", notes);
    }
    if (options.calibrate) calibrate(rank, rows, options.output.empty() ? costs_path() : options.output, out);
    out.flush();
  });
}

}  // namespace

void add_bench_command(Command& app, Context& context) {
  Command& bench = app.add_subcommand("bench", "Measure what this machine does, beside what the cost model predicts");
  bench.require_subcommand(1);
  Command& comm = bench.add_subcommand("comm",
                                       "Time collectives: latency, algorithm and bus bandwidth for each algorithm, "
                                       "the model's prediction, and the choice");
  const auto options = std::make_shared<BenchOptions>();  // shared with the callback, which outlives this function
  options->recipe.add_to(comm, RecipeOptions::File::kOptional);
  comm.add_option("--transport", options->transport,
                  "threads, mpi, ucx or emulated; default: the recipe's, else threads");
  comm.add_option("--ranks", options->ranks, "How many ranks; default: those launched, else 2").positive();
  comm.add_option(
          "--ranks-per-node", options->ranks_per_node,
          "Count so many ranks, in order, as one node: for hierarchical algorithms; default: the recipe's, else "
          "the nodes there are")
      .positive();
  comm.add_option("--op", options->ops, "Operations, separated by commas, or all").show_default();
  comm.add_option("--algo", options->algorithms, "Algorithms, separated by commas, or all").show_default();
  comm.add_option("--bytes", options->bytes, "Sizes: 64K, or 1K:64M (times 4 each), or 1K:64M:2").show_default();
  comm.add_option("--type", options->type, "Element type: f32 f64 f16 bf16 i32 i64 u8").show_default();
  comm.add_option("--seconds", options->seconds_per_row, "Time to spend on each row").show_default();
  comm.add_flag("--in-place", options->in_place, "all_reduce in place");
  comm.add_flag("--json", options->json, "One JSON document instead of a table");
  comm.add_flag("--calibrate", options->calibrate, "Fit the cost model to the measurements and write it to --output");
  comm.add_option("--output", options->output,
                  "File for --calibrate; default: where it is read from (TRIREME_COMM_COSTS)");
  add_bench_hardware(bench, context);
  comm.callback([&context, options] {
    context.run = [&context, options] {
      run_bench(*options, effective_recipe(*options, context), context.out);
      return kExitFine;
    };
  });
}

}  // namespace trireme::cli
