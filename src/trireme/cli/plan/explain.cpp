// trireme plan explain: what becomes of the best layout when one decision is made otherwise.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "trireme/base/print.h"
#include "trireme/base/text.h"
#include "trireme/cli/plan/commands.h"
#include "trireme/cli/plan/options.h"
#include "trireme/cli/plan/print.h"
#include "trireme/cli/program.h"
#include "trireme/plan/explain.h"

namespace trireme::cli {
namespace {

using nlohmann::ordered_json;

struct ExplainOptions {
  PlanOptions plan;
  bool json = false;
};

std::string why(const plan::SearchResult& found, const plan::Alternative& one) {
  if (!one.fits) return plan::why_not(one.best.memory);
  if (one.best.config == found.best.front().config) return "the best";
  return plan::why_slower(found.best.front(), one.best);
}

std::string report(const PlanTask& task, const plan::SearchResult& found) {
  constexpr auto kRight = TextTable::Align::kRight;
  std::string out = fmt::format("{} layouts of {} x {} ({}), {} of which fit\n", found.tried, task.gpus,
                                task.hardware.device.name, task.hardware.cluster.name, found.fitting);
  if (!found.best.empty())
    out += fmt::format("the best: {}, {:.4g} s a step, {:.1f} GiB\n", to_text(found.best.front().config),
                       found.best.front().step_seconds(), found.best.front().memory.peak() / 1073741824.0);
  out += "\nthe best layout with each value of each decision, all others free\n";
  TextTable table({{"decision"}, {"value", kRight}, {"fit", kRight}, {"step s", kRight}, {"why"}, {"then best with"}});
  for (const plan::DegreeChoice& decision : found.decisions) {
    bool first = true;
    for (const plan::Alternative& one : decision.alternatives) {
      const bool best = !found.best.empty() && one.value == decision.best;
      table.add({first ? decision.name : "", best ? "* " + one.value : one.value,
                 fmt::format("{}/{}", one.fitting, one.layouts),
                 one.fits ? fmt::format("{:.4g}", one.best.step_seconds()) : "-", why(found, one),
                 best ? "" : to_text(one.best.config)});
      first = false;
    }
  }
  return out + table.text("  ");
}

ordered_json to_json(const plan::SearchResult& found) {
  ordered_json out{{"layouts", found.tried}, {"fitting", found.fitting}};
  if (!found.best.empty()) {
    out["best"] = cli::to_json(found.best.front().config);
    out["step_seconds"] = found.best.front().step_seconds();
  }
  out["decisions"] = ordered_json::array();
  for (const plan::DegreeChoice& decision : found.decisions) {
    ordered_json values = ordered_json::array();
    for (const plan::Alternative& one : decision.alternatives) {
      ordered_json value{{"value", one.value}, {"layouts", one.layouts}, {"fitting", one.fitting}};
      if (one.fits) value["step_seconds"] = one.best.step_seconds();
      value["memory_bytes_peak"] = one.best.memory.peak();
      value["why"] = why(found, one);
      value["layout"] = cli::to_json(one.best.config);
      values.push_back(std::move(value));
    }
    out["decisions"].push_back({{"name", decision.name}, {"best", decision.best}, {"values", std::move(values)}});
  }
  return out;
}

}  // namespace

void add_plan_explain(Command& plan, Context& context) {
  Command& command = plan.add_subcommand(
      "explain", "Why the best layout is the best: each decision made otherwise, with what that costs or lacks");
  const auto options = std::make_shared<ExplainOptions>();  // shared with the callback, which outlives this function
  options->plan.add_to(command, PlanOptions::Positional::kModel);
  command.add_flag("--json", options->json, "As JSON, and nothing else");
  command.callback([&context, options] {
    context.run = [&context, options] {
      const PlanTask task = options->plan.resolve();
      const plan::SearchResult found =
          plan::search(task.hardware, task.job, task.gpus, {.given = task.given, .decisions = true});
      if (options->json)
        context.out << to_json(found).dump(2) << '\n';
      else
        context.out << report(task, found);
      return kExitFine;
    };
  });
}

}  // namespace trireme::cli
