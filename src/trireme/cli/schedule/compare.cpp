// trireme schedule compare: all kinds side by side, replayed, beside what their papers say.
#include <fmt/format.h>

#include <cmath>
#include <memory>

#include "trireme/base/print.h"
#include "trireme/base/text.h"
#include "trireme/cli/program.h"
#include "trireme/cli/schedule/options.h"
#include "trireme/schedule/compare.h"

namespace trireme::cli {
namespace {

using schedule::Measures;

struct CompareOptions {
  ScheduleOptions schedule;
  bool markdown = false;
};

struct Comparison {
  TextTable table;
  std::vector<std::string> left_out;
  int disagreements = 0;

  /// What was measured, and the formula's figure where there is one; an exclamation mark where they differ.
  void add(std::vector<std::string>& row, double measured, std::optional<double> formula, double factor, int digits) {
    row.push_back(fmt::format("{:.{}f}", factor * measured, digits));
    const bool differs = formula && std::abs(measured - *formula) > 1e-9;
    disagreements += differs;
    row.push_back(formula ? fmt::format("{:.{}f}{}", factor * *formula, digits, differs ? " !" : "") : "-");
  }
};

std::string compare(const CompareOptions& options) {
  constexpr auto kRight = TextTable::Align::kRight;
  Comparison all{TextTable({{"kind"},
                            {"chunks", kRight},
                            {"bubble %", kRight},
                            {"formula", kRight},
                            {"holds", kRight},
                            {"formula", kRight},
                            {"versions", kRight},
                            {"weights", kRight},
                            {"formula", kRight},
                            {"delay", kRight},
                            {"slots", kRight},
                            {"step takes", kRight}}),
                 {},
                 0};
  const schedule::Times times = options.schedule.times();
  for (const schedule::Kind& kind : schedule::kinds()) {
    const schedule::Shape shape = options.schedule.shape(kind);
    if (const std::string why = kind.refuses(shape); !why.empty()) {
      all.left_out.push_back(fmt::format("{}: {}", kind.name, why));
      continue;
    }
    const Measures measures = measure(kind, shape, times);
    std::vector<std::string> row{fmt::format("{}{}", kind.name, kind.steady ? " *" : ""),
                                 fmt::format("{}", shape.chunks_per_rank)};
    // -0.0 % would be a strange bubble.
    const double bubble = std::abs(measures.bubble) < 1e-12 ? 0 : measures.bubble;
    all.add(row, bubble, measures.bubble_formula, 100, 2);
    all.add(row, measures.memory, measures.memory_formula, 1, 1);
    row.push_back(fmt::format("{}", measures.versions));
    // The papers count stored versions, or copies where there are two directions.
    row.push_back(fmt::format("{:.0f}", measures.weights));
    const double counted = kind.asynchronous ? measures.versions : measures.weights;
    std::vector<std::string> beside;
    all.add(beside, counted, measures.weights_formula, 1, 0);
    row.push_back(beside.back());
    row.push_back(fmt::format("{}", measures.delay));
    row.push_back(fmt::format("{}", measures.slots));
    row.push_back(fmt::format("{:.6g}", measures.step_time));
    all.table.add(std::move(row));
  }
  std::string out = options.markdown ? all.table.markdown() : all.table.text();
  out +=
      "\nbubble: idle share of a step; * in steady state, over many steps without a flush\n"
      "holds: saved activations of the fullest rank, in micros of a rank's share of the model\n"
      "versions: of a chunk's weights; weights: all versions and replicas, predictions too, in ranks' shares\n"
      "delay: updates that the weights of a pass lack; slots: messages stored without a posted receive\n"
      "formula: what the paper says, where it says something for these times and this shape; the last one counts "
      "versions,\n"
      "         or replicas where two directions hold each chunk, and leaves predictions out\n";
  for (const std::string& line : all.left_out) out += fmt::format("left out: {}\n", line);
  if (all.disagreements > 0)
    out += fmt::format("{} differ from what was replayed or counted (!)\n",
                       counted(static_cast<std::size_t>(all.disagreements), "formula"));
  return out;
}

}  // namespace

void add_schedule_compare(Command& schedule, Context& context) {
  Command& command = schedule.add_subcommand(
      "compare", "Print bubble, memory and weight versions of all kinds side by side, beside the papers' formulas");
  const auto options = std::make_shared<CompareOptions>();  // shared with the callback, which outlives this function
  options->schedule.add_to(command, ScheduleOptions::Kind::kNone);
  command.add_flag("--markdown", options->markdown, "As a Markdown table");
  command.callback([&context, options] {
    context.run = [&context, options] {
      context.out << compare(*options);
      return kExitFine;
    };
  });
}

}  // namespace trireme::cli
