// trireme validate-planner: predicted step times beside published ones.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "trireme/base/error.h"
#include "trireme/base/print.h"
#include "trireme/base/text.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/program.h"
#include "trireme/plan/published_layouts.h"
#include "trireme/plan/validate.h"

namespace trireme::cli {
namespace {

using plan::PublishedPrediction;

struct ValidateOptions {
  std::string fit;
  bool leave_out = false, layouts = false, markdown = false, json = false;
};

std::string table_of(const std::vector<PublishedPrediction>& predictions, bool markdown) {
  constexpr auto kRight = TextTable::Align::kRight;
  TextTable table({{"run"},
                   {"device"},
                   {"predicted s", kRight},
                   {"published s", kRight},
                   {"error %", kRight},
                   {"TFLOP/s", kRight},
                   {"memory GiB", kRight},
                   {"micro-batch", kRight},
                   {"virtual", kRight},
                   {"counts"}});
  for (const PublishedPrediction& one : predictions) {
    table.add({one.run.id, one.device, fmt::format("{:.3f}", one.predicted), fmt::format("{:.3f}", one.measured),
               fmt::format("{:+.1f}", 100 * one.error()), fmt::format("{:.1f}", one.estimate.tflops_per_gpu()),
               fmt::format("{:.1f}{}", one.estimate.memory.peak() / 1073741824.0,
                           one.estimate.memory.fits ? "" : " (does not fit)"),
               fmt::format("{}", one.estimate.config.micro_batch_size),
               fmt::format("{}", one.estimate.config.pipeline.virtual_stages), one.counted ? "yes" : "no"});
  }
  return markdown ? table.markdown() : table.text();
}

std::string summary_of(const std::vector<PublishedPrediction>& predictions) {
  std::string out;
  const auto line = [&out](const std::string& name, const plan::ErrorSummary& summary) {
    out += fmt::format("{:<10} {:>9}  median |error| {:4.1f} %  above 12 %: {}  worst {:.1f} %\n", name,
                       counted(summary.runs, "run"), 100 * summary.median, summary.far, 100 * summary.worst);
  };
  std::set<std::string> devices;
  for (const PublishedPrediction& one : predictions) devices.insert(one.device);
  for (const std::string& device : devices) {
    std::vector<PublishedPrediction> own;
    for (const PublishedPrediction& one : predictions) {
      if (one.device == device) own.push_back(one);
    }
    line(device, plan::summarize(own));
  }
  line("all", plan::summarize(predictions));
  return out;
}

nlohmann::ordered_json json_of(const std::vector<PublishedPrediction>& predictions) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const PublishedPrediction& one : predictions) {
    rows.push_back({{"id", one.run.id},
                    {"source", one.run.source},
                    {"device", one.device},
                    {"predicted_seconds", one.predicted},
                    {"published_seconds", one.measured},
                    {"error", one.error()},
                    {"memory_bytes_peak", one.estimate.memory.peak()},
                    {"fits", one.estimate.memory.fits},
                    {"counted", one.counted}});
  }
  const plan::ErrorSummary summary = plan::summarize(predictions);
  return {
      {"runs", rows}, {"counted", summary.runs}, {"median_error", summary.median}, {"above_12_percent", summary.far}};
}

std::string layout_text(const spec::ParallelConfig& config) {
  return fmt::format("tp {} pp {} dp {} x{} mb {}", config.layout.tp, config.layout.pp, config.dp(),
                     config.pipeline.virtual_stages, config.micro_batch_size);
}

/// Where the published layout loses its time, in shares of its step.
int compare_layouts(const ValidateOptions& options, Context& context) {
  constexpr auto kRight = TextTable::Align::kRight;
  TextTable table({{"run"},
                   {"published"},
                   {"planner"},
                   {"slower %", kRight},
                   {"by micro-batch, chunks", kRight},
                   {"by pp and dp", kRight},
                   {"by tp", kRight},
                   {"GEMMs", kRight},
                   {"tp traffic", kRight},
                   {"bubble, messages", kRight},
                   {"replicas", kRight}});
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const plan::LayoutComparison& one : plan::compare_layouts(plan::load_published())) {
    const auto percent = [](double value) { return fmt::format("{:+.1f}", 100 * value); };
    const plan::StepTime &mine = one.best.time, &theirs = one.published.time;
    const double whole = one.best.step_seconds();
    const auto share = [&](double published, double best) { return percent((published - best) / whole); };
    table.add({one.id, layout_text(one.published.config), layout_text(one.best.config),
               percent(one.slower(one.published)), percent(one.slower(one.published) - one.slower(one.micros)),
               percent(one.slower(one.micros) - one.slower(one.stages)), percent(one.slower(one.stages)),
               share(theirs.work.matmul + theirs.work.attention + theirs.work.streaming,
                     mine.work.matmul + mine.work.attention + mine.work.streaming),
               share(theirs.work.communication, mine.work.communication),
               share(theirs.bubble + theirs.pipeline, mine.bubble + mine.pipeline),
               share(theirs.replicas + theirs.optimizer, mine.replicas + mine.optimizer)});
    json.push_back({{"id", one.id},
                    {"published", layout_text(one.published.config)},
                    {"planner", layout_text(one.best.config)},
                    {"slower", one.slower(one.published)},
                    {"slower_with_free_micros", one.slower(one.micros)},
                    {"slower_with_free_stages", one.slower(one.stages)}});
  }
  if (options.json)
    context.out << json.dump(2) << '\n';
  else
    context.out << (options.markdown ? table.markdown() : table.text());
  return kExitFine;
}

int fit(const std::string& device, Context& context) {
  const plan::Fit fitted = plan::fit_efficiency(device, plan::load_published());
  if (fitted.runs == 0)
    throw ConfigError(fmt::format("no published run that counts was made on device \"{}\"", device),
                      "fit one of a100-80, h100 and v100");
  fmt::print(context.out, "# {} published runs, loss {:.4f}\n[efficiency]\n", fitted.runs, fitted.loss);
  const cost::Efficiency& found = fitted.efficiency;
  fmt::print(context.out,
             "matmul = {:.3f}\nmemory = {:.3f}\nattention = {:.3f}\nlink = {:.3f}\nnetwork = {:.3f}\noverlap = {:.3f}\n"
             "gather = {:.3f}\nkernel_seconds = {:.2g}\n",
             found.matmul, found.memory, found.attention, found.link, found.network, found.overlap, found.gather,
             found.kernel_seconds);
  return kExitFine;
}

int validate(const ValidateOptions& options, Context& context) {
  if (!options.fit.empty()) return fit(options.fit, context);
  if (options.layouts) return compare_layouts(options, context);
  const auto sources = plan::load_published();
  const std::vector<PublishedPrediction> predictions =
      options.leave_out
          ? plan::leave_one_source_out(sources)
          : plan::predict_published(sources, [](const cost::Device& device) { return device.efficiency; });
  if (options.json) {
    context.out << json_of(predictions).dump(2) << '\n';
    return kExitFine;
  }
  context.out << table_of(predictions, options.markdown) << '\n' << summary_of(predictions);
  if (options.leave_out)
    context.out
        << "\nEach run was predicted with constants fitted without its source; runs whose device no other source "
           "used are left out.\n";
  return kExitFine;
}

}  // namespace

void add_validate_planner_command(Command& app, Context& context) {
  Command& command = app.add_subcommand(
      "validate-planner", "Predict every published run we know of and print the error of each prediction");
  const auto options = std::make_shared<ValidateOptions>();  // shared with the callback, which outlives this function
  command.add_flag("--leave-one-out", options->leave_out,
                   "Predict each source's runs with constants fitted to the other sources only");
  command.add_flag("--layouts", options->layouts,
                   "Compare layouts that were published as best with the planner's, and say where they differ");
  command.add_option("--fit", options->fit, "Fit the constants of a device to its published runs and print them")
      .type_name("DEVICE");
  command.add_flag("--markdown", options->markdown, "As a Markdown table");
  command.add_flag("--json", options->json, "As JSON");
  command.callback([&context, options] { context.run = [&context, options] { return validate(*options, context); }; });
}

}  // namespace trireme::cli
