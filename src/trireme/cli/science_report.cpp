#include "trireme/cli/science_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <set>

#include "trireme/base/error.h"
#include "trireme/base/html.h"
#include "trireme/base/new_file.h"
#include "trireme/base/print.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/cli/program.h"
#include "trireme/cli/science_fit.h"
#include "trireme/cli/tasks/science_tasks.h"
#include "trireme/data/open_samples.h"
#include "trireme/observe/report/chart.h"
#include "trireme/observe/report/page.h"
#include "trireme/observe/run_reader.h"
#include "trireme/spec/recipe.h"

namespace trireme::cli {
namespace {

namespace fs = std::filesystem;

struct ScienceReportOptions {
  FamilyFolders family;
  std::vector<std::string> noise, tasks;
  fs::path page;
};

std::string preformatted(const std::string& text) { return "<pre>" + escaped(text) + "</pre>\n"; }

/// Entropy of a synthetic corpus, in nats a token: the floor that a law fitted to its runs must find.
std::optional<double> corpus_entropy(const std::string& folder) {
  const observe::RunFiles files = observe::read_run(folder);
  const spec::Recipe recipe = spec::load_recipe({.file = folder + "/recipe.toml", .text = files.recipe}).value;
  if (!recipe.data.synthetic.kind) return std::nullopt;
  return data::open_samples(recipe, data::Split::kTrain)->best_loss();
}

std::string family_section(const FittedFamily& family, const std::optional<double>& entropy) {
  std::string out = fmt::format("<h2>A scaling law of {} runs</h2>\n", family.runs.size());
  if (entropy)
    out += fmt::format(
        "<p>The corpus is drawn from a chain of known entropy, {:.4f} nats a token; the fitted floor E is {:.4f}, "
        "{:+.1f} "
        "% of it.</p>\n",
        *entropy, family.fit.law.floor, 100 * (family.fit.law.floor / *entropy - 1));
  for (const science::ScalingRun& run : family.held_out) {
    const double predicted = family.fit.law.loss(run.parameters, run.tokens);
    out += fmt::format(
        "<p>{} ({} parameters, {} tokens) was held out: predicted {:.4f}, measured {:.4f}, {:+.1f} %.</p>\n",
        escaped(run.name), short_count(run.parameters), short_count(run.tokens), predicted, run.loss,
        100 * (predicted / run.loss - 1));
  }
  return out + family_charts(family) + preformatted(family_table(family) + "\n" + family_text(family));
}

/// The noise scale of one run over its tokens, with the batch, and of its layers.
std::string noise_section(const std::vector<std::string>& folders) {
  std::string out =
      "<h2>Gradient noise scale</h2>\n<p>S / |G|² in tokens, from norms of micro-batches and whole "
      "batches (McCandlish et al. 2018): beyond it a larger batch brings little.</p>\n";
  observe::Chart chart{.title = "Noise scale over tokens, and the batch (faint)",
                       .quantity = observe::Quantity::kCount,
                       .unit = "tokens",
                       .wide = true,
                       .series = {},
                       .x_name = "tokens"};
  TextTable table({{"run"},
                   {"tokens", TextTable::Align::kRight},
                   {"batch, first", TextTable::Align::kRight},
                   {"batch, last", TextTable::Align::kRight},
                   {"noise scale, first", TextTable::Align::kRight},
                   {"noise scale, last", TextTable::Align::kRight}});
  std::string layers;
  int color = 0;
  for (const std::string& folder : folders) {
    const observe::RunFiles files = observe::read_run(folder);
    observe::Curve scale, batch;
    std::int64_t before = 0;
    for (const observe::StepRecord& step : files.steps) {
      const auto x = static_cast<double>(step.tokens);
      batch.push_back({x, static_cast<double>(step.tokens - before)});
      before = step.tokens;
      if (step.noise_scale && std::isfinite(*step.noise_scale)) scale.push_back({x, *step.noise_scale});
    }
    if (scale.empty())
      throw ConfigError(fmt::format("{} has no noise_scale in metrics.jsonl", folder),
                        "train it with train.noise_scale = true, or leave it out of --noise");
    chart.x_high = std::max(chart.x_high, scale.back().x);
    // The first tenth of the measured steps is still warm-up of the averages.
    const auto first = scale[scale.size() / 10].y;
    table.add({folder, short_count(scale.back().x), short_count(batch.front().y), short_count(batch.back().y),
               short_count(first), short_count(scale.back().y)});
    TextTable by_layer({{"layer"}, {"noise scale, last", TextTable::Align::kRight}});
    for (const observe::LayerNoise& layer : files.steps.back().noise_scales)
      by_layer.add({layer.layer, std::isfinite(layer.scale) ? short_count(layer.scale) : "-"});
    if (!files.steps.back().noise_scales.empty()) layers += preformatted(folder + "\n" + by_layer.text());
    chart.series.push_back(
        {.name = folder, .color = color, .look = observe::Series::Look::kLine, .points = std::move(scale)});
    chart.series.push_back({.name = folder + ", batch",
                            .color = color++,
                            .look = observe::Series::Look::kFaint,
                            .points = std::move(batch),
                            .listed = false});
  }
  return out + observe::to_html(std::move(chart)) + preformatted(table.text()) + layers;
}

/// "NVIDIA H200", "cpu": what the runs say they were trained on.
std::string devices_of(const std::vector<std::string>& folders) {
  std::set<std::string> found;
  for (const std::string& folder : folders) {
    const observe::RunFiles files = observe::read_run(folder);
    for (const observe::EventRecord* event : files.events_of("start")) {
      if (const auto device = event->text_of("device")) found.insert(*device);
    }
  }
  return fmt::format("{}", fmt::join(found, ", "));
}

int run_report(const ScienceReportOptions& options, Context& context) {
  std::vector<std::string> folders = options.family.runs;
  folders.insert(folders.end(), options.family.held_out.begin(), options.family.held_out.end());
  folders.insert(folders.end(), options.noise.begin(), options.noise.end());
  const FittedFamily family = fit_family(options.family);
  const EmergenceSection tasks = emergence_section(options.tasks);
  std::string body = "<h1>Noise scale, scaling law and tasks</h1>\n";
  if (const std::string devices = devices_of(folders); !devices.empty())
    body += fmt::format("<p>Trained on: {}.</p>\n", escaped(devices));
  body += noise_section(options.noise) + family_section(family, corpus_entropy(options.family.runs.front()));
  body += fmt::format(
      "<h2>Tasks over {} models</h2>\n<p>Each metric from its worst value here (0) to its best (1), over log10 of "
      "parameters. Exact match is all or nothing for an item; the others are not.</p>\n",
      tasks.models);
  body += tasks.charts + preformatted(tasks.table);
  write_text_file(options.page, observe::page("Noise scale, scaling law and tasks", body));
  fmt::print(context.out, "{} is written: noise scale of {} runs, a law of {}, tasks over {} models\n",
             options.page.string(), options.noise.size(), family.runs.size(), tasks.models);
  return kExitFine;
}

}  // namespace

void add_science_report(Command& science, Context& context) {
  Command& report =
      science.add_subcommand("report", "One page: the noise scale of runs, the law of a family, tasks over sizes");
  const auto options = std::make_shared<ScienceReportOptions>();
  report.add_option("--family", options->family.runs, "Runs that a law is fitted to").required().type_name("RUN");
  report
      .add_option("--held-out", options->family.held_out, "A run that is predicted and not fitted to; may be repeated")
      .type_name("RUN");
  report.add_option("--noise", options->noise, "Runs with train.noise_scale").required().type_name("RUN");
  report.add_option("--tasks", options->tasks, "What `trireme eval RUN --tasks TASK --json` printed, a file a model")
      .required()
      .type_name("RESULT");
  report.add_option("--bootstrap", options->family.bootstrap, "Fits to runs drawn again, for intervals")
      .positive()
      .type_name("N");
  report.add_option("--page", options->page, "The page to write").required().type_name("FILE");
  report.footer(
      "Examples:\n  trireme science report --family runs/law-* --held-out runs/large --noise runs/noise --tasks "
      "results/*.json --page science.html");
  report.callback([&context, options] { context.run = [&context, options] { return run_report(*options, context); }; });
}

}  // namespace trireme::cli
