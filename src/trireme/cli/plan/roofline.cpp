// trireme plan roofline: where the operators of a model lie under a device's roof (Williams et al. 2009).
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

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

struct PassOperators {
  const char* name;
  std::vector<plan::OperatorTime> operators;
  std::vector<plan::CollectiveTime> collectives;

  double flops() const {
    double sum = 0;
    for (const plan::OperatorTime& one : operators) sum += one.times * one.flops;
    return sum;
  }
  /// That a rank sends for a layer.
  double bytes() const {
    double sum = 0;
    for (const plan::CollectiveTime& one : collectives) sum += one.times * one.bytes;
    return sum;
  }
  /// Seconds of that at the whole bandwidth of its links.
  double least() const {
    double sum = 0;
    for (const plan::CollectiveTime& one : collectives) sum += one.times * one.least;
    return sum;
  }
};

std::vector<PassOperators> passes_of(const PlanTask& task, const plan::ParallelConfig& config) {
  std::vector<PassOperators> passes;
  for (const auto& [name, pass] : {std::pair{"forward", plan::Pass::kForward}, {"backward", plan::Pass::kBackward}}) {
    passes.push_back({.name = name,
                      .operators = plan::layer_operators(task.hardware, task.job, config, pass),
                      .collectives = plan::layer_collectives(task.hardware, task.job, config, pass)});
  }
  return passes;
}

/// The most by the data sheet.
double roof(const cost::Hardware& hardware, cost::Arithmetic arithmetic, double intensity) {
  return std::min(hardware.peak(arithmetic), intensity * hardware.memory_bandwidth());
}

Plot plot_of(const PlanTask& task, const std::vector<PassOperators>& passes) {
  const double peak = task.hardware.peak(task.job.arithmetic()), ridge = peak / task.hardware.memory_bandwidth();
  Plot plot{.x_title = "FLOPs for each byte of memory, or sent", .y_title = "FLOP/s", .x_log = true, .y_log = true};
  double least = ridge / 30, most = ridge * 30;
  const auto add = [&](double x, double y, const std::string& name, const std::string& tip, int color) {
    least = std::min(least, x / 2), most = std::max(most, x * 2);
    plot.points.push_back({x, y, name, tip, color});
  };
  for (const PassOperators& pass : passes) {
    const bool forward = &pass == &passes.front();  // the names of backward's would lie over each other
    for (const plan::OperatorTime& one : pass.operators) {
      if (one.flops <= 0) continue;
      add(one.intensity(), one.flops / one.seconds, forward ? one.name : "",
          fmt::format("{}, {}: {:.1f} FLOPs a byte, {:.3g} FLOP/s predicted", one.name, pass.name, one.intensity(),
                      one.flops / one.seconds),
          forward ? 1 : 3);
    }
  }
  for (const PassOperators& pass : passes) {
    if (pass.bytes() == 0) continue;
    // As if sending were all: a layer's FLOPs over the seconds that its collectives take.
    double seconds = 0;
    for (const plan::CollectiveTime& one : pass.collectives) seconds += one.times * one.seconds;
    const double intensity = pass.flops() / pass.bytes(), bandwidth = pass.bytes() / pass.least();
    add(intensity, pass.flops() / seconds, fmt::format("network, {}", pass.name),
        fmt::format("{}: {:.4g} FLOPs for each byte sent", pass.name, intensity), 4);
    plot.lines.push_back(
        {&pass == &passes.front() ? "network" : "", {{peak / bandwidth / 30, peak / 30}, {peak / bandwidth, peak}}, 4});
  }
  plot.lines.push_back(
      {"data sheet", {{least, least * task.hardware.memory_bandwidth()}, {ridge, peak}, {most, peak}}, 0});
  const cost::Efficiency& efficiency = task.hardware.device.efficiency;
  const double reached = peak * efficiency.matmul, memory = task.hardware.memory_bandwidth() * efficiency.memory;
  plot.lines.push_back({"long runs", {{least, least * memory}, {reached / memory, reached}, {most, reached}}, 2, true});
  return plot;
}

std::string operators_text(const PlanTask& task, const PassOperators& pass) {
  constexpr auto kRight = TextTable::Align::kRight;
  const double ridge = task.hardware.peak(task.job.arithmetic()) / task.hardware.memory_bandwidth();
  TextTable table({{fmt::format("operator, {}", pass.name)},
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
  for (const plan::OperatorTime& one : pass.operators) all += one.times * one.seconds;
  for (const plan::OperatorTime& one : pass.operators) {
    const double limit = roof(task.hardware, task.job.arithmetic(), one.intensity()), rate = one.flops / one.seconds;
    table.add({one.name, fmt::format("{:.3g}", one.times), fmt::format("{:.4g}", one.flops / 1e9),
               fmt::format("{:.4g}", one.bytes / 1e6), fmt::format("{:.1f}", one.intensity()),
               one.intensity() < ridge ? "memory" : "compute", fmt::format("{:.1f}", limit / 1e12),
               fmt::format("{:.1f}", rate / 1e12), fmt::format("{:.0f}", 100 * rate / limit),
               fmt::format("{:.1f}", 100 * one.times * one.seconds / all)});
  }
  return table.text("  ");
}

/// What a layer sends, and the ceiling that follows for its FLOPs.
std::string network_text(const PlanTask& task, const PassOperators& pass) {
  if (pass.collectives.empty()) return fmt::format("  a layer's {} sends nothing in this layout\n", pass.name);
  constexpr auto kRight = TextTable::Align::kRight;
  TextTable table({{fmt::format("collective, {}", pass.name)},
                   {"a layer", kRight},
                   {"MB sent", kRight},
                   {"roof GB/s", kRight},
                   {"predicted", kRight},
                   {"%", kRight},
                   {"hidden %", kRight}});
  for (const plan::CollectiveTime& one : pass.collectives) {
    table.add({one.name, fmt::format("{:.3g}", one.times), fmt::format("{:.4g}", one.bytes / 1e6),
               fmt::format("{:.1f}", one.bytes / one.least / 1e9), fmt::format("{:.1f}", one.bytes / one.seconds / 1e9),
               fmt::format("{:.0f}", 100 * one.least / one.seconds),
               fmt::format("{:.0f}", 100 * std::max(0.0, 1 - one.exposed / one.seconds))});
  }
  const double peak = task.hardware.peak(task.job.arithmetic()), limit = pass.flops() / pass.least();
  return fmt::format(
      "\n{}  {:.4g} FLOPs for each byte sent, ridge at {:.4g}: the network allows {:.1f} TFLOP/s; beside the peak {} "
      "binds\n",
      table.text("  "), pass.flops() / pass.bytes(), peak * pass.least() / pass.bytes(), limit / 1e12,
      limit < peak ? "the network" : "compute");
}

ordered_json json_of(const PlanTask& task, const std::string& layout, const std::vector<PassOperators>& passes) {
  const double peak = task.hardware.peak(task.job.arithmetic()), ridge = peak / task.hardware.memory_bandwidth();
  ordered_json json{{"layout", layout},
                    {"peak_flops", peak},
                    {"ridge", ridge},
                    {"operators", ordered_json::array()},
                    {"collectives", ordered_json::array()},
                    {"network", ordered_json::array()}};
  for (const PassOperators& pass : passes) {
    for (const plan::OperatorTime& one : pass.operators) {
      json["operators"].push_back({{"name", one.name},
                                   {"pass", pass.name},
                                   {"a_layer", one.times},
                                   {"flops", one.flops},
                                   {"bytes", one.bytes},
                                   {"intensity", one.intensity()},
                                   {"bound", one.intensity() < ridge ? "memory" : "compute"},
                                   {"roof_flops", roof(task.hardware, task.job.arithmetic(), one.intensity())},
                                   {"predicted_flops", one.flops / one.seconds},
                                   {"seconds", one.seconds}});
    }
    for (const plan::CollectiveTime& one : pass.collectives) {
      json["collectives"].push_back({{"name", one.name},
                                     {"pass", pass.name},
                                     {"a_layer", one.times},
                                     {"bytes_sent", one.bytes},
                                     {"roof_seconds", one.least},
                                     {"seconds", one.seconds},
                                     {"exposed_seconds", one.exposed}});
    }
    if (pass.collectives.empty()) continue;
    json["network"].push_back({{"pass", pass.name},
                               {"flops", pass.flops()},
                               {"bytes_sent", pass.bytes()},
                               {"roof_flops", pass.flops() / pass.least()}});
  }
  return json;
}

int run(const RooflineOptions& options, Context& context) {
  const PlanTask task = options.plan.resolve();
  const plan::SearchResult found = plan::search(task.hardware, task.job, task.gpus, {.given = task.given, .top = 1});
  const plan::Estimate& best = found.best.empty() ? *found.smallest : found.best.front();
  const std::vector<PassOperators> passes = passes_of(task, best.config);
  const double peak = task.hardware.peak(task.job.arithmetic()), ridge = peak / task.hardware.memory_bandwidth();
  if (!options.svg.empty()) write_text_file(options.svg, to_svg(plot_of(task, passes), /*alone=*/true));
  if (options.json) {
    context.out << json_of(task, to_text(best.config), passes).dump(2) << '\n';
    return kExitFine;
  }
  fmt::print(context.out, "{} on {} x {}\n  peak {:.4g} TFLOP/s, memory {:.4g} GB/s: ridge at {:.1f} FLOPs a byte\n",
             to_text(best.config), task.gpus, task.hardware.device.name, peak / 1e12,
             task.hardware.memory_bandwidth() / 1e9, ridge);
  for (const PassOperators& pass : passes) {
    fmt::print(context.out, "\n{}{}", operators_text(task, pass), network_text(task, pass));
  }
  fmt::print(context.out,
             "\n  Gradients, which are reduced once a step, and what goes between stages are not in it: trireme "
             "estimate\n");
  if (!options.svg.empty()) fmt::print(context.out, "\nwritten: {}\n", options.svg);
  return kExitFine;
}

}  // namespace

void add_plan_roofline(Command& plan, Context& context) {
  Command& command = plan.add_subcommand(
      "roofline",
      "Where a model's operators lie under a device's roofline: bound by compute, memory or network, and how near");
  const auto options = std::make_shared<RooflineOptions>();  // shared with the callback, which outlives this function
  options->plan.add_to(command, PlanOptions::Positional::kModel);
  command.add_option("--svg", options->svg, "Draw it").type_name("FILE");
  command.add_flag("--json", options->json, "As JSON, and nothing else");
  command.footer("Example:\n  trireme plan roofline --model llama3-70b --cluster dgx-h100 --gpus 64 --svg roof.svg");
  command.callback([&context, options] { context.run = [&context, options] { return run(*options, context); }; });
}

}  // namespace trireme::cli
