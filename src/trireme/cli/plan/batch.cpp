// trireme plan batch: what a larger batch saves in time and costs in compute (McCandlish et al. 2018).
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/base/new_file.h"
#include "trireme/base/print.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/cli/plan/commands.h"
#include "trireme/cli/plan/plot.h"
#include "trireme/cli/program.h"
#include "trireme/plan/scaling.h"

namespace trireme::cli {
namespace {

using nlohmann::ordered_json;

struct BatchOptions {
  std::string noise_scale, batch, svg;
  double loss = 0;
  bool json = false;
};

double critical_of(const BatchOptions& options) {
  if (!options.noise_scale.empty() && options.loss > 0)
    throw ConfigError("both --noise-scale and --loss are given", "give one of them");
  if (!options.noise_scale.empty()) return static_cast<double>(parse_count(options.noise_scale));
  if (options.loss > 0) return plan::kaplan::critical_batch(options.loss);
  throw ConfigError("no critical batch is given",
                    "give --noise-scale N as training reports it, or --loss L for Kaplan's estimate");
}

Plot plot_of(double critical, const std::optional<plan::BatchPoint>& chosen) {
  Plot plot{.x_title = "steps, times the fewest possible",
            .y_title = "examples, times the fewest possible",
            .x_log = true,
            .y_log = true};
  PlotLine line{.name = "(S/Smin - 1)(E/Emin - 1) = 1"};
  for (const plan::BatchPoint& point : plan::batch_curve(critical)) {
    line.points.emplace_back(point.steps, point.examples);
    plot.points.push_back({point.steps, point.examples, short_count(point.batch), {}, 0});
  }
  std::ranges::sort(line.points);
  plot.lines.push_back(std::move(line));
  if (chosen) plot.points.push_back({chosen->steps, chosen->examples, "yours: " + short_count(chosen->batch), {}, 1});
  return plot;
}

int run(const BatchOptions& options, Context& context) {
  const double critical = critical_of(options);
  if (critical < 1) throw ConfigError(fmt::format("a critical batch of {} is below one example", critical));
  std::optional<plan::BatchPoint> chosen;
  if (!options.batch.empty()) {
    const auto batch = static_cast<double>(parse_count(options.batch));
    if (batch < 1) throw ConfigError("--batch must be at least 1");
    chosen = plan::batch_point(batch, critical);
  }
  if (!options.svg.empty()) write_text_file(options.svg, to_svg(plot_of(critical, chosen), /*alone=*/true));
  constexpr auto kRight = TextTable::Align::kRight;
  TextTable table({{"batch", kRight},
                   {"steps / fewest", kRight},
                   {"examples / fewest", kRight},
                   {"share of the best speed %", kRight},
                   {"share of the best economy %", kRight},
                   {""}});
  ordered_json json{{"critical_batch", critical}, {"curve", ordered_json::array()}};
  const auto to_json = [](const plan::BatchPoint& one) {
    return ordered_json{{"batch", one.batch}, {"steps", one.steps}, {"examples", one.examples}};
  };
  std::vector<plan::BatchPoint> curve = plan::batch_curve(critical);
  if (chosen) curve.push_back(*chosen);
  std::ranges::stable_sort(curve, {}, &plan::BatchPoint::batch);
  for (const plan::BatchPoint& one : curve) {
    const bool mine = chosen && one.batch == chosen->batch;
    table.add({short_count(one.batch), fmt::format("{:.3f}", one.steps), fmt::format("{:.3f}", one.examples),
               fmt::format("{:.1f}", 100 / one.steps), fmt::format("{:.1f}", 100 / one.examples),
               mine ? "yours" : (one.batch == critical ? "critical" : "")});
    json["curve"].push_back(to_json(one));
  }
  if (chosen) json["chosen"] = to_json(*chosen);
  if (options.json) {
    context.out << json.dump(2) << '\n';
    return kExitFine;
  }
  fmt::print(context.out, "the critical batch is {}{}\n{}", short_count(critical),
             options.loss > 0 ? fmt::format(" tokens at a loss of {} (Kaplan et al. 2020)", options.loss) : "",
             table.text("  "));
  fmt::print(context.out,
             "  more than the critical batch buys little time; less saves little compute. Steps are time on as many "
             "devices as the batch\n  can use, examples are compute.\n");
  if (!options.svg.empty()) fmt::print(context.out, "\nwritten: {}\n", options.svg);
  return kExitFine;
}

}  // namespace

void add_plan_batch(Command& plan, Context& context) {
  Command& command = plan.add_subcommand(
      "batch", "What a larger batch saves in steps and costs in compute, from the gradient noise scale or the loss");
  const auto options = std::make_shared<BatchOptions>();  // shared with the callback, which outlives this function
  command
      .add_option("--noise-scale", options->noise_scale,
                  "Gradient noise scale, in examples or tokens: the critical batch size")
      .type_name("N");
  command
      .add_option("--loss", options->loss,
                  "Loss in nats a token; the critical batch size then follows from Kaplan's law")
      .positive()
      .type_name("L");
  command.add_option("--batch", options->batch, "A batch size to place on the curve, e.g. 4M").type_name("N");
  command.add_option("--svg", options->svg, "Draw the curve").type_name("FILE");
  command.add_flag("--json", options->json, "As JSON, and nothing else");
  command.footer(
      "Examples:\n  trireme plan batch --loss 2.0 --batch 4M\n  trireme plan batch --noise-scale 20k --svg batch.svg");
  command.callback([&context, options] { context.run = [&context, options] { return run(*options, context); }; });
}

}  // namespace trireme::cli
