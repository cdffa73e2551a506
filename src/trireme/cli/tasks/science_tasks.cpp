// trireme science tasks and emergence: questions as files, and how answers grow over a family of models.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/base/html.h"
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

/// Of the metrics of one task.
const MetricCurve* metric_of(const std::vector<const MetricCurve*>& metrics, std::string_view name) {
  const auto found = std::ranges::find_if(metrics, [&](const MetricCurve* one) { return one->metric == name; });
  return found == metrics.end() ? nullptr : *found;
}

/// Tokens of an answer: the edit distance of guesses is length (1 - 1 / symbols), their token accuracy 1 / symbols.
std::optional<double> answer_length(const std::vector<const MetricCurve*>& metrics) {
  const MetricCurve* const edit = metric_of(metrics, "edit_distance");
  const MetricCurve* const token = metric_of(metrics, "token_accuracy");
  if (edit == nullptr || token == nullptr || !edit->options.chance || !token->options.chance) return std::nullopt;
  return *edit->options.chance / (1 - *token->options.chance);
}

/// Each metric from its worst value to its best: which of them jumps.
observe::Chart rises(const std::vector<const MetricCurve*>& metrics) {
  observe::Chart chart{.title = "From the worst value to the best",
                       .unit = "share of the rise",
                       .wide = true,
                       .series = {},
                       .x_name = "log10 of scale"};
  chart.x_low = 1e300, chart.x_high = -1e300;
  int color = 0;
  for (const char* name : {"exact_match", "token_accuracy", "edit_distance", "brier"}) {
    const MetricCurve* const curve = metric_of(metrics, name);
    if (curve == nullptr) continue;
    const auto [low, high] = std::ranges::minmax(curve->points, {}, &science::ScaledValue::value);
    if (low.value == high.value) continue;
    observe::Curve shares;
    for (const auto& point : curve->points) {
      const double x = std::log10(point.scale), share = (point.value - low.value) / (high.value - low.value);
      shares.push_back({x, curve->options.higher_is_better ? share : 1 - share});
      chart.x_low = std::min(chart.x_low, x), chart.x_high = std::max(chart.x_high, x);
    }
    chart.series.push_back(
        {.name = curve->metric, .color = color++, .look = observe::Series::Look::kDots, .points = std::move(shares)});
  }
  return chart;
}

/// One metric with its interval, the chance level, and of exact match what independent tokens would give.
observe::Chart chart_of(const MetricCurve& curve, const std::vector<const MetricCurve*>& metrics) {
  observe::Chart chart{.title = curve.metric, .series = {}, .x_name = "log10 of scale"};
  chart.x_low = std::log10(curve.points.front().scale), chart.x_high = std::log10(curve.points.back().scale);
  const auto add = [&](std::string name, int color, observe::Series::Look look, bool listed, const auto& value) {
    observe::Curve points;
    for (const auto& point : curve.points) points.push_back({std::log10(point.scale), value(point)});
    chart.series.push_back(
        {.name = std::move(name), .color = color, .look = look, .points = std::move(points), .listed = listed});
  };
  using Look = observe::Series::Look;
  add("95 %, low", 0, Look::kFaint, false, [](const auto& point) { return point.low; });
  add("95 %, high", 0, Look::kFaint, false, [](const auto& point) { return point.high; });
  if (curve.options.chance) add("chance", 7, Look::kFaint, true, [&](const auto&) { return *curve.options.chance; });
  add(curve.metric, 0, Look::kDots, true, [](const auto& point) { return point.value; });
  const auto length = answer_length(metrics);
  if (curve.metric != "exact_match" || !length) return chart;
  observe::Curve powers;
  for (const auto& point : metric_of(metrics, "token_accuracy")->points)
    powers.push_back({std::log10(point.scale), std::pow(point.value, *length)});
  chart.series.push_back({.name = fmt::format("token accuracy to the power {:.3g}", *length),
                          .color = 1,
                          .look = Look::kDots,
                          .points = std::move(powers)});
  return chart;
}

/// Every model's values, a column each.
std::string values_table(const std::vector<const MetricCurve*>& metrics) {
  std::vector<TextTable::Column> columns = {{"metric"}};
  for (const auto& point : metrics.front()->points)
    columns.push_back({short_count(point.scale), TextTable::Align::kRight});
  TextTable table(std::move(columns));
  for (const MetricCurve* curve : metrics) {
    std::vector<std::string> cells = {curve->metric};
    for (const auto& point : curve->points) cells.push_back(fmt::format("{:.3f}", point.value));
    if (cells.size() == metrics.front()->points.size() + 1) table.add(std::move(cells));
  }
  return table.text();
}

std::string emergence_charts(const std::vector<MetricCurve>& curves) {
  std::string body;
  std::map<std::string, std::vector<const MetricCurve*>> by_task;
  for (const MetricCurve& curve : curves) by_task[curve.task].push_back(&curve);
  for (const auto& [task, metrics] : by_task) {
    body += "<h3>" + escaped(task) + "</h3>\n<div class=\"charts\">\n";
    if (observe::Chart together = rises(metrics); !together.series.empty())
      body += observe::to_html(std::move(together));
    for (const char* name : {"exact_match", "token_accuracy", "edit_distance", "log_likelihood", "choice", "brier"}) {
      if (const MetricCurve* const curve = metric_of(metrics, name))
        body += observe::to_html(chart_of(*curve, metrics));
    }
    body += "</div>\n<pre>" + escaped(values_table(metrics)) + "</pre>\n";
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
