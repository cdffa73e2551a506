// trireme science tasks and emergence: questions as files, and how answers grow over a family of models.
#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/base/mapped_file.h"
#include "trireme/base/new_file.h"
#include "trireme/base/print.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/cli/program.h"
#include "trireme/cli/tasks/science_tasks.h"
#include "trireme/observe/report/chart.h"
#include "trireme/observe/report/page.h"
#include "trireme/science/tasks/emergence.h"
#include "trireme/science/tasks/tasks.h"

namespace trireme::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

struct ScienceTasksOptions {
  std::string task;
  fs::path text, jsonl;
};

int run_tasks(const ScienceTasksOptions& options, Context& context) {
  const science::Task task = science::load_task(options.task);
  if (!options.text.empty()) write_text_file(options.text, science::task_text(task));
  if (!options.jsonl.empty()) write_text_file(options.jsonl, science::task_jsonl(task));
  if (!options.text.empty() || !options.jsonl.empty()) {
    fmt::print(context.out, "{} items\n", task.items.size());
    return kExitFine;
  }
  context.out << science::task_jsonl(task);
  return kExitFine;
}

struct EmergenceOptions {
  std::vector<std::string> results;
  fs::path page;
  double margin = 0.05;
  bool by_flops = false, json = false;
};

/// One metric of one task over the models.
struct MetricCurve {
  std::string task, metric;
  science::SharpnessOptions options;
  std::vector<science::ScaledValue> points;
};

std::vector<MetricCurve> read_curves(const EmergenceOptions& options) {
  std::vector<MetricCurve> curves;
  for (const std::string& file : options.results) {
    try {
      const ordered_json result = ordered_json::parse(read_text_file(file, std::uint64_t{64} << 20));
      double scale = result.at("parameters").get<double>();
      if (options.by_flops) {
        if (result.at("tokens").is_null())
          throw ConfigError(fmt::format("{} does not say how many tokens the model was trained on", file),
                            "leave --flops out");
        scale *= 6 * result.at("tokens").get<double>();
      }
      for (const auto& task : result.at("tasks")) {
        for (const auto& metric : task.at("metrics")) {
          const std::string of = task.at("name"), name = metric.at("name");
          auto at = std::find_if(curves.begin(), curves.end(),
                                 [&](const auto& one) { return one.task == of && one.metric == name; });
          if (at == curves.end()) {
            curves.push_back({.task = of, .metric = name, .options = {.margin = options.margin}, .points = {}});
            at = curves.end() - 1;
            at->options.higher_is_better = metric.at("higher_is_better").get<bool>();
            if (!metric.at("chance").is_null()) at->options.chance = metric.at("chance").get<double>();
          }
          at->points.push_back({.scale = scale,
                                .value = metric.at("value").get<double>(),
                                .low = metric.at("low").get<double>(),
                                .high = metric.at("high").get<double>()});
        }
      }
    } catch (const ordered_json::exception& error) {
      throw ConfigError(fmt::format("{}: {}", file, error.what()),
                        "give what `trireme eval RUN --tasks TASK --json` printed, a file a model");
    }
  }
  for (MetricCurve& curve : curves)
    std::sort(curve.points.begin(), curve.points.end(),
              [](const auto& one, const auto& other) { return one.scale < other.scale; });
  return curves;
}

std::string emergence_charts(const std::vector<MetricCurve>& curves) {
  std::string body;
  std::map<std::string, std::vector<const MetricCurve*>> by_task;
  for (const MetricCurve& curve : curves) by_task[curve.task].push_back(&curve);
  for (const auto& [task, metrics] : by_task) {
    observe::Chart together{.title = task, .unit = "share of the rise", .wide = true, .series = {}};
    together.x_low = 1e300, together.x_high = -1e300;
    std::string single;
    int color = 0;
    for (const MetricCurve* curve : metrics) {
      double low = 1e300, high = -1e300;
      for (const auto& point : curve->points) low = std::min(low, point.value), high = std::max(high, point.value);
      observe::Curve shares, values, chance;
      for (const auto& point : curve->points) {
        const double x = std::log10(point.scale), share = high > low ? (point.value - low) / (high - low) : 0;
        shares.push_back({x, curve->options.higher_is_better ? share : 1 - share});
        values.push_back({x, point.value});
        if (curve->options.chance) chance.push_back({x, *curve->options.chance});
        together.x_low = std::min(together.x_low, x), together.x_high = std::max(together.x_high, x);
      }
      observe::Chart chart{.title = curve->metric, .series = {}};
      chart.x_low = shares.front().x, chart.x_high = shares.back().x;
      chart.series.push_back(
          {.name = curve->metric, .color = color, .look = observe::Series::Look::kDots, .points = std::move(values)});
      if (!chance.empty())
        chart.series.push_back(
            {.name = "chance", .color = 7, .look = observe::Series::Look::kFaint, .points = std::move(chance)});
      single += observe::to_html(std::move(chart));
      together.series.push_back(
          {.name = curve->metric, .color = color++, .look = observe::Series::Look::kDots, .points = std::move(shares)});
    }
    body += observe::to_html(std::move(together)) + single;
  }
  return body;
}

std::string emergence_page(const std::vector<MetricCurve>& curves, bool by_flops, const std::string& table) {
  const std::string head = fmt::format(
      "<h1>Tasks over {}</h1><p>Each metric from its worst value here (0) to its best (1), over log10 of {}. Exact "
      "match and multiple choice are all or nothing for an item; the others are not.</p>",
      by_flops ? "compute" : "size", by_flops ? "6 N D" : "parameters");
  return observe::page("Tasks over scale", head + emergence_charts(curves) + "<pre>" + table + "</pre>");
}

/// Widths, scores and where chance is left, of every metric.
struct EmergenceFigures {
  std::string table;
  ordered_json json;
};

EmergenceFigures emergence_figures(const std::vector<MetricCurve>& curves) {
  TextTable table({{"task"},
                   {"metric"},
                   {"worst", TextTable::Align::kRight},
                   {"best", TextTable::Align::kRight},
                   {"10-90 %, decades", TextTable::Align::kRight},
                   {"emergence score", TextTable::Align::kRight},
                   {"leaves chance at", TextTable::Align::kRight}});
  ordered_json json = ordered_json::array();
  for (const MetricCurve& curve : curves) {
    const science::Sharpness sharp = science::sharpness_of(curve.points, curve.options);
    const auto [low, high] =
        std::minmax_element(curve.points.begin(), curve.points.end(),
                            [](const auto& one, const auto& other) { return one.value < other.value; });
    const bool up = curve.options.higher_is_better;
    table.add({curve.task, curve.metric, fmt::format("{:.4g}", (up ? low : high)->value),
               fmt::format("{:.4g}", (up ? high : low)->value), sharp.width ? fmt::format("{:.2f}", *sharp.width) : "-",
               sharp.score ? fmt::format("{:.1f}", *sharp.score) : "-",
               sharp.leaves_chance ? short_count(*sharp.leaves_chance) : "-"});
    ordered_json one{{"task", curve.task},      {"metric", curve.metric},   {"models", curve.points.size()},
                     {"rise", sharp.rise},      {"width_decades", nullptr}, {"emergence_score", nullptr},
                     {"leaves_chance", nullptr}};
    if (sharp.width) one["width_decades"] = *sharp.width;
    if (sharp.score) one["emergence_score"] = *sharp.score;
    if (sharp.leaves_chance) one["leaves_chance"] = *sharp.leaves_chance;
    json.push_back(std::move(one));
  }
  return {table.text(), std::move(json)};
}

int run_emergence(const EmergenceOptions& options, Context& context) {
  const std::vector<MetricCurve> curves = read_curves(options);
  const EmergenceFigures figures = emergence_figures(curves);
  if (!options.page.empty()) write_text_file(options.page, emergence_page(curves, options.by_flops, figures.table));
  if (options.json)
    context.out << figures.json.dump(2) << '\n';
  else
    context.out << figures.table;
  return kExitFine;
}

}  // namespace

EmergenceSection emergence_section(const std::vector<std::string>& results) {
  EmergenceOptions options;
  options.results = results;
  const std::vector<MetricCurve> curves = read_curves(options);
  return {emergence_charts(curves), emergence_figures(curves).table, results.size()};
}

void add_science_tasks(Command& science, Context& context) {
  Command& tasks = science.add_subcommand("tasks", "Questions with answers, made from a seed or read, as text or JSON");
  const auto options = std::make_shared<ScienceTasksOptions>();
  tasks.add_option("TASK", options->task, "addition, modular, copy, reverse, facts or cloze with keys, or a task file")
      .required();
  tasks.add_option("--text", options->text, "Write prompts with their answers, a line each: text to train on")
      .type_name("FILE");
  tasks.add_option("--jsonl", options->jsonl, "Write one JSON object a line").type_name("FILE");
  tasks.footer(
      "Without a file: as JSON lines.\n\nExamples:\n"
      "  trireme science tasks addition:digits=2,count=5,seed=1\n"
      "  trireme science tasks addition:digits=3,count=100000,split=train --text addition.txt");
  tasks.callback([&context, options] { context.run = [&context, options] { return run_tasks(*options, context); }; });

  Command& emergence = science.add_subcommand(
      "emergence", "How metrics of tasks grow over a family of models: widths, emergence scores, where chance is left");
  const auto wanted = std::make_shared<EmergenceOptions>();
  emergence.add_option("RESULT", wanted->results, "What `trireme eval RUN --tasks TASK --json` printed, a file a model")
      .required();
  emergence.add_flag("--flops", wanted->by_flops, "Over 6 N D instead of parameters");
  emergence
      .add_option("--margin", wanted->margin, "How far beyond chance counts, as a share of the way to the best value")
      .within(0, 1);
  emergence.add_option("--page", wanted->page, "Write a page with the curves").type_name("FILE");
  emergence.add_flag("--json", wanted->json, "As JSON, and nothing else");
  emergence.footer("Examples:\n  trireme science emergence results/*.json --page tasks.html");
  emergence.callback(
      [&context, wanted] { context.run = [&context, wanted] { return run_emergence(*wanted, context); }; });
}

}  // namespace trireme::cli
