// trireme plan roofline: where the operators of a model lie under a device's roof (Williams et al. 2009).
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "trireme/base/new_file.h"
#include "trireme/base/print.h"
#include "trireme/base/text.h"
#include "trireme/cli/plan/commands.h"
#include "trireme/cli/plan/options.h"
#include "trireme/cli/plan/plot.h"
#include "trireme/cli/program.h"
#include "trireme/plan/layer_time.h"

namespace trireme::cli {
namespace {

using nlohmann::ordered_json;

struct RooflineOptions {
  PlanOptions plan;
  std::string svg;
  bool json = false;
};

/// The least time by the data sheet.
double roof(const cost::Hardware& hardware, cost::Arithmetic arithmetic, double intensity) {
  return std::min(hardware.peak(arithmetic), intensity * hardware.memory_bandwidth());
}

Plot plot_of(const PlanTask& task, const std::vector<plan::OperatorTime>& operators) {
  const double peak = task.hardware.peak(task.job.arithmetic()), ridge = peak / task.hardware.memory_bandwidth();
  Plot plot{.x_title = "FLOPs for each byte of memory", .y_title = "FLOP/s", .x_log = true, .y_log = true};
  double least = ridge / 30, most = ridge * 30;
  for (const plan::OperatorTime& one : operators) {
    if (one.flops <= 0) continue;
    least = std::min(least, one.intensity() / 2), most = std::max(most, one.intensity() * 2);
    plot.points.push_back({one.intensity(), one.flops / one.seconds, one.name,
                           fmt::format("{}: {:.1f} FLOPs a byte, {:.3g} FLOP/s predicted", one.name, one.intensity(),
                                       one.flops / one.seconds),
                           1});
  }
  plot.lines.push_back(
      {"data sheet", {{least, least * task.hardware.memory_bandwidth()}, {ridge, peak}, {most, peak}}, 0});
  const cost::Efficiency& efficiency = task.hardware.device.efficiency;
  const double reached = peak * efficiency.matmul, memory = task.hardware.memory_bandwidth() * efficiency.memory;
  plot.lines.push_back({"long runs", {{least, least * memory}, {reached / memory, reached}, {most, reached}}, 2, true});
  return plot;
}

int run(const RooflineOptions& options, Context& context) {
  const PlanTask task = options.plan.resolve();
  const plan::SearchResult found = plan::search(task.hardware, task.job, task.gpus, {.given = task.given, .top = 1});
  const plan::Estimate& best = found.best.empty() ? *found.smallest : found.best.front();
  const std::vector<plan::OperatorTime> operators = plan::forward_operators(task.hardware, task.job, best.config);
  const double peak = task.hardware.peak(task.job.arithmetic()), ridge = peak / task.hardware.memory_bandwidth();
  if (!options.svg.empty()) write_text_file(options.svg, to_svg(plot_of(task, operators), /*alone=*/true));

  constexpr auto kRight = TextTable::Align::kRight;
  TextTable table({{"operator, forward"},
                   {"a layer", kRight},
                   {"GFLOP", kRight},
                   {"MB", kRight},
                   {"FLOPs/byte", kRight},
                   {"bound by"},
                   {"roof TFLOP/s", kRight},
                   {"predicted", kRight},
                   {"%", kRight},
                   {"time %", kRight}});
  double all = 0;
  for (const plan::OperatorTime& one : operators) all += one.times * one.seconds;
  ordered_json json{
      {"layout", to_text(best.config)}, {"peak_flops", peak}, {"ridge", ridge}, {"operators", ordered_json::array()}};
  for (const plan::OperatorTime& one : operators) {
    const bool memory = one.intensity() < ridge;
    const double limit = roof(task.hardware, task.job.arithmetic(), one.intensity()), rate = one.flops / one.seconds;
    table.add({one.name, fmt::format("{:.3g}", one.times), fmt::format("{:.4g}", one.flops / 1e9),
               fmt::format("{:.4g}", one.bytes / 1e6), fmt::format("{:.1f}", one.intensity()),
               memory ? "memory" : "compute", fmt::format("{:.1f}", limit / 1e12), fmt::format("{:.1f}", rate / 1e12),
               fmt::format("{:.0f}", 100 * rate / limit), fmt::format("{:.1f}", 100 * one.times * one.seconds / all)});
    json["operators"].push_back({{"name", one.name},
                                 {"a_layer", one.times},
                                 {"flops", one.flops},
                                 {"bytes", one.bytes},
                                 {"intensity", one.intensity()},
                                 {"bound", memory ? "memory" : "compute"},
                                 {"roof_flops", limit},
                                 {"predicted_flops", rate},
                                 {"seconds", one.seconds}});
  }
  if (options.json) {
    context.out << json.dump(2) << '\n';
    return kExitFine;
  }
  fmt::print(context.out,
             "{} on {} x {}\n  peak {:.4g} TFLOP/s, memory {:.4g} GB/s: ridge at {:.1f} FLOPs a byte\n\n{}",
             to_text(best.config), task.gpus, task.hardware.device.name, peak / 1e12,
             task.hardware.memory_bandwidth() / 1e9, ridge, table.text("  "));
  if (!options.svg.empty()) fmt::print(context.out, "\nwritten: {}\n", options.svg);
  return kExitFine;
}

}  // namespace

void add_plan_roofline(Command& plan, Context& context) {
  Command& command = plan.add_subcommand(
      "roofline",
      "Where a model's operators lie under a device's roofline: bound by compute or by memory, and how near");
  const auto options = std::make_shared<RooflineOptions>();  // shared with the callback, which outlives this function
  options->plan.add_to(command, PlanOptions::Positional::kModel);
  command.add_option("--svg", options->svg, "Draw it").type_name("FILE");
  command.add_flag("--json", options->json, "As JSON, and nothing else");
  command.footer("Example:\n  trireme plan roofline --model llama3-70b --cluster dgx-h100 --gpus 64 --svg roof.svg");
  command.callback([&context, options] { context.run = [&context, options] { return run(*options, context); }; });
}

}  // namespace trireme::cli
