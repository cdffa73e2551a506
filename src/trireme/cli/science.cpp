// trireme science: scaling laws fitted to runs, and the recipes of the runs that they need.
#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/base/new_file.h"
#include "trireme/base/print.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/program.h"
#include "trireme/cli/tasks/science_tasks.h"
#include "trireme/observe/report/chart.h"
#include "trireme/observe/report/page.h"
#include "trireme/observe/run_reader.h"
#include "trireme/science/scaling_fit.h"
#include "trireme/spec/recipe.h"
#include "trireme/spec/size_model.h"

namespace trireme::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using science::ScalingRun;

struct ScienceFitOptions {
  std::vector<std::string> runs, held_out;
  fs::path law, page;
  int bootstrap = 200;
  bool without_embeddings = false, json = false;
};

/// The part of a run at its end whose mean is the final loss, and the width of smoothing.
constexpr double kFinalShare = 0.05;

ScalingRun scaling_run(const std::string& folder, bool without_embeddings) {
  const observe::RunFiles files = observe::read_run(folder);
  if (files.steps.empty())
    throw ConfigError(fmt::format("{} has no step in metrics.jsonl", folder), "leave this run out, or train it");
  const auto shape =
      spec::shape_of(spec::load_recipe({.file = folder + "/recipe.toml", .text = files.recipe}).value.model);
  if (!shape) throw ConfigError(fmt::format("the recipe of {} has no model", folder), "leave this run out");
  const spec::ParameterCount count = spec::count_parameters(*shape);
  ScalingRun run{.name = folder,
                 .parameters = static_cast<double>(count.active() - (without_embeddings ? count.embedding : 0)),
                 .tokens = static_cast<double>(files.steps.back().tokens)};
  observe::Curve curve;
  for (const observe::StepRecord& step : files.steps) curve.push_back({static_cast<double>(step.tokens), step.loss});
  for (const observe::Point& point : observe::smoothed(curve, kFinalShare / 2 * run.tokens)) {
    if (std::isfinite(point.y)) run.curve.push_back({point.x, point.y});
  }
  double sum = 0;
  int last = 0;
  for (const observe::Point& point : curve) {
    if (point.x <= (1 - kFinalShare) * run.tokens) continue;
    sum += point.y;  // NaN in the end is refused by the fit, with the run's name
    ++last;
  }
  run.loss = sum / last;
  return run;
}

/// What `plan scaling --law` reads (plan/scaling.h).
std::string law_json(const science::ParametricLaw& law, const std::string& source) {
  return ordered_json{{"name", "fitted"}, {"source", source},   {"floor", law.floor}, {"a", law.a},
                      {"b", law.b},       {"alpha", law.alpha}, {"beta", law.beta}}
             .dump(2) +
         "\n";
}

observe::Series dots(std::string name, int color, observe::Curve points) {
  return {.name = std::move(name), .color = color, .look = observe::Series::Look::kDots, .points = std::move(points)};
}

/// Loss over log10 of compute, the parabolas, and the sizes they give.
std::string fit_page(const std::vector<ScalingRun>& runs, const science::ParametricFit& fit,
                     const science::IsoFlopFit& iso_flop, const science::EnvelopeFit& envelope) {
  observe::Chart curves{.title = "Loss over log10 of compute (6 N D)",
                        .unit = "nats a token",
                        .wide = true,
                        .legend = false,
                        .series = {}};
  double low = 1e300, high = 0;
  int color = 0;
  for (const ScalingRun& run : runs) {
    observe::Curve points;
    for (const science::CurvePoint& point : run.curve) {
      const double x = std::log10(6 * run.parameters * point.tokens);
      points.push_back({x, point.loss});
      low = std::min(low, x);
      high = std::max(high, x);
    }
    curves.series.push_back({.name = run.name, .color = color++, .points = std::move(points)});
  }
  curves.x_low = low;
  curves.x_high = high;
  observe::Chart parabolas{
      .title = "Loss at equal compute over log10 of parameters", .unit = "nats a token", .wide = true, .series = {}};
  observe::Chart sizes{
      .title = "log10 of the best number of parameters over log10 of compute", .wide = true, .series = {}};
  parabolas.x_low = 1e300;
  parabolas.x_high = 0;
  color = 0;
  observe::Curve minima;
  for (const science::IsoFlop& budget : iso_flop.budgets) {
    observe::Curve points;
    for (const std::size_t index : budget.runs)
      points.push_back({std::log10(runs[index].parameters), runs[index].loss});
    std::sort(points.begin(), points.end(), [](const auto& one, const auto& other) { return one.x < other.x; });
    parabolas.x_low = std::min(parabolas.x_low, points.front().x);
    parabolas.x_high = std::max(parabolas.x_high, points.back().x);
    parabolas.series.push_back(dots(fmt::format("{:.2g} FLOPs", budget.flops), color++, std::move(points)));
    minima.push_back({std::log10(budget.flops), std::log10(budget.best_parameters)});
  }
  observe::Curve law, lowest;
  for (const science::EnvelopePoint& point : envelope.envelope)
    lowest.push_back({std::log10(point.flops), std::log10(point.parameters)});
  for (int i = 0; i <= 50; ++i) {
    const double x = low + (high - low) * i / 50;
    law.push_back({x, std::log10(fit.law.best_parameters(std::pow(10, x)))});
  }
  sizes.x_low = low;
  sizes.x_high = high;
  sizes.series = {{.name = "parametric law", .color = 0, .points = std::move(law)},
                  {.name = "size of the lowest curve",
                   .color = 2,
                   .look = observe::Series::Look::kFaint,
                   .points = std::move(lowest)},
                  dots("minima of parabolas", 1, std::move(minima))};
  std::string body = fmt::format(
      "<h1>A scaling law of {} runs</h1><p>L = {:.4g} + {:.4g} / N^{:.4f} + {:.4g} / D^{:.4f}; the largest residual is "
      "{:.2f} % of a loss.</p>",
      runs.size(), fit.law.floor, fit.law.a, fit.law.alpha, fit.law.b, fit.law.beta,
      100 * std::expm1(fit.largest_residual));
  body += observe::to_html(std::move(curves));
  if (!parabolas.series.empty()) body += observe::to_html(std::move(parabolas));
  body += observe::to_html(std::move(sizes));
  return observe::page("A scaling law", body);
}

int run_fit(const ScienceFitOptions& options, Context& context) {
  std::vector<ScalingRun> runs;
  for (const std::string& folder : options.runs) runs.push_back(scaling_run(folder, options.without_embeddings));
  const science::ParametricFit fit = science::fit_parametric(runs);
  const science::ParametricIntervals intervals =
      science::bootstrap_parametric(runs, fit.law, options.bootstrap, /*seed=*/0);
  const science::IsoFlopFit iso_flop = science::fit_iso_flop(runs);
  const science::EnvelopeFit envelope = science::fit_envelope(runs);
  const science::KaplanFit kaplan = science::fit_kaplan(runs);
  const double exponent = fit.law.beta / (fit.law.alpha + fit.law.beta);
  const std::string source =
      fmt::format("{} runs of 6 N D from {:.2g} to {:.2g} FLOPs", runs.size(),
                  std::min_element(runs.begin(), runs.end(),
                                   [](const auto& one, const auto& other) { return one.flops() < other.flops(); })
                      ->flops(),
                  std::max_element(runs.begin(), runs.end(), [](const auto& one, const auto& other) {
                    return one.flops() < other.flops();
                  })->flops());
  ordered_json json{{"runs", runs.size()},
                    {"parametric",
                     {{"floor", fit.law.floor},
                      {"a", fit.law.a},
                      {"b", fit.law.b},
                      {"alpha", fit.law.alpha},
                      {"beta", fit.law.beta},
                      {"objective", fit.objective},
                      {"largest_residual", fit.largest_residual}}},
                    {"kaplan",
                     {{"log_nc", kaplan.law.log_nc},
                      {"log_dc", kaplan.law.log_dc},
                      {"alpha_n", kaplan.law.alpha_n},
                      {"alpha_d", kaplan.law.alpha_d},
                      {"largest_residual", kaplan.largest_residual}}},
                    {"best_size_exponents", {{"parametric", exponent}}},
                    {"held_out", ordered_json::array()}};
  if (envelope.parameters) json["best_size_exponents"]["envelope"] = envelope.parameters->exponent;
  if (iso_flop.parameters) json["best_size_exponents"]["iso_flop"] = iso_flop.parameters->exponent;
  TextTable points({{"run"},
                    {"parameters", TextTable::Align::kRight},
                    {"tokens", TextTable::Align::kRight},
                    {"loss", TextTable::Align::kRight},
                    {"law", TextTable::Align::kRight},
                    {"difference", TextTable::Align::kRight}});
  const auto add_point = [&](const ScalingRun& run, const std::string& name) {
    const double predicted = fit.law.loss(run.parameters, run.tokens);
    points.add({name, short_count(run.parameters), short_count(run.tokens), fmt::format("{:.4f}", run.loss),
                fmt::format("{:.4f}", predicted), fmt::format("{:+.2f} %", 100 * (predicted / run.loss - 1))});
    return predicted;
  };
  for (const ScalingRun& run : runs) add_point(run, run.name);
  for (const std::string& folder : options.held_out) {
    const ScalingRun run = scaling_run(folder, options.without_embeddings);
    const double predicted = add_point(run, folder + " (held out)");
    json["held_out"].push_back({{"run", folder}, {"loss", run.loss}, {"predicted", predicted}});
  }
  if (!options.law.empty()) write_text_file(options.law, law_json(fit.law, source));
  if (!options.page.empty()) write_text_file(options.page, fit_page(runs, fit, iso_flop, envelope));
  if (options.json) {
    context.out << json.dump(2) << '\n';
    return kExitFine;
  }
  const auto coefficient = [](double value, const science::Interval& interval) {
    return fmt::format("{:.4g} [{:.4g}, {:.4g}]", value, interval.low, interval.high);
  };
  fmt::print(context.out, "{}\nChinchilla, approach 3: L = E + A / N^alpha + B / D^beta\n", points.text());
  fmt::print(
      context.out,
      "  E {}   A {}   B {}\n  alpha {}   beta {}\n  in brackets the middle 95 % of {} fits to runs drawn again\n",
      coefficient(fit.law.floor, intervals.floor), coefficient(fit.law.a, intervals.a),
      coefficient(fit.law.b, intervals.b), coefficient(fit.law.alpha, intervals.alpha),
      coefficient(fit.law.beta, intervals.beta), intervals.samples);
  fmt::print(context.out, "The best size grows with compute to the power of\n  {} by approach 3\n",
             coefficient(exponent, intervals.exponent));
  if (iso_flop.parameters)
    fmt::print(context.out, "  {:.4g} by approach 2, the minima of {} parabolas\n", iso_flop.parameters->exponent,
               iso_flop.budgets.size());
  for (const std::string& left_out : iso_flop.left_out)
    fmt::print(context.out, "  approach 2 leaves out {}\n", left_out);
  if (envelope.parameters)
    fmt::print(context.out, "  {:.4g} by approach 1, the lowest curves\n", envelope.parameters->exponent);
  fmt::print(context.out,
             "Kaplan: L = ((N_c / N)^(alpha_N / alpha_D) + D_c / D)^alpha_D\n  alpha_N {:.4g}   alpha_D {:.4g}   N_c "
             "{:.3g}   D_c {:.3g}   "
             "largest residual {:.2f} %\n",
             kaplan.law.alpha_n, kaplan.law.alpha_d, std::exp(kaplan.law.log_nc), std::exp(kaplan.law.log_dc),
             100 * std::expm1(kaplan.largest_residual));
  if (!options.law.empty())
    fmt::print(context.out, "{} is written: trireme plan scaling --law {} --flops 1e20\n", options.law.string(),
               options.law.string());
  return kExitFine;
}

struct ScienceGridOptions {
  std::string recipe;
  std::vector<std::string> parameters;
  std::vector<double> flops;
  fs::path out;
};

/// One recipe a size and budget. The cosine ends with the run, which is what a curve's last loss stands on; the rate
/// falls with the root of the width.
int run_grid(const ScienceGridOptions& options, Context& context) {
  const spec::LoadedRecipe base = spec::load_recipe({.file = options.recipe});
  const auto shape = spec::shape_of(base.value.model);
  if (!shape || !base.value.model.family)
    throw ConfigError(fmt::format("{} has no [model] with a family", options.recipe),
                      "give a recipe that trains a model");
  if (fs::exists(options.out) && !fs::is_empty(options.out))
    throw ConfigError(fmt::format("{} is not empty", options.out.string()), "give another --out");
  struct GridPoint {
    fs::path path;
    std::string text;
  };
  std::vector<GridPoint> files;
  TextTable table({{"recipe"},
                   {"parameters", TextTable::Align::kRight},
                   {"tokens", TextTable::Align::kRight},
                   {"tokens/parameter", TextTable::Align::kRight},
                   {"steps", TextTable::Align::kRight},
                   {"learning rate", TextTable::Align::kRight}});
  for (const std::string& wanted : options.parameters) {
    const spec::ModelConfig sized =
        spec::sized_model(*base.value.model.family, parse_count(wanted), shape->vocab_size, shape->max_seq_len);
    const auto parameters = static_cast<double>(spec::count_parameters(*spec::shape_of(sized)).active());
    for (const double flops : options.flops) {
      spec::Recipe recipe = base.value;
      recipe.model = sized;
      const double tokens = flops / (6 * parameters);
      const auto steps =
          static_cast<std::int64_t>(std::llround(tokens / static_cast<double>(recipe.batch.global_batch_tokens)));
      if (steps < 1)
        throw ConfigError(fmt::format("{:.3g} FLOPs buy less than one step of {} tokens at {} parameters", flops,
                                      recipe.batch.global_batch_tokens, short_count(parameters)),
                          "give more --flops, smaller --params, or a smaller batch.global_batch_tokens");
      recipe.train.steps = steps;
      recipe.train.tokens.reset();
      if (recipe.lr_schedule.total) recipe.lr_schedule.total = steps;
      recipe.lr_schedule.warmup = std::min(recipe.lr_schedule.warmup, std::max<std::int64_t>(1, steps / 10));
      recipe.optim.learning_rate *=
          std::sqrt(static_cast<double>(shape->hidden_size) / static_cast<double>(*sized.hidden_size));
      recipe.run.name = fmt::format("{}-{}-{:.0e}", base.value.run.name, wanted, flops);
      const fs::path path = options.out / (recipe.run.name + ".toml");
      files.push_back({path, config::to_toml(recipe)});
      table.add({path.filename().string(), short_count(parameters), short_count(tokens),
                 fmt::format("{:.1f}", tokens / parameters), fmt::format("{}", steps),
                 fmt::format("{:.3g}", recipe.optim.learning_rate)});
    }
  }
  for (const GridPoint& file : files)
    spec::load_recipe({.file = file.path.string(), .text = file.text});  // all can be read, or none is written
  fs::create_directories(options.out);
  for (const GridPoint& file : files) write_text_file(file.path, file.text);
  fmt::print(context.out,
             "{}train each: for r in {}/*.toml; do trireme train $r; done\nthen: trireme science fit {}/{}-*\n",
             table.text(), options.out.string(), base.value.run.out, base.value.run.name);
  return kExitFine;
}

}  // namespace

void add_science_command(Command& app, Context& context) {
  Command& command =
      app.add_subcommand("science", "Scaling laws and tasks over own runs: the recipes to train, the fits, the curves");
  command.require_subcommand(1);
  Command& fit = command.add_subcommand(
      "fit", "Fit Chinchilla's three approaches and Kaplan's form to runs of several sizes and lengths");
  const auto options = std::make_shared<ScienceFitOptions>();  // shared with the callbacks, which outlive this function
  fit.add_option("RUN", options->runs, "Folders of runs that have ended").required();
  fit.add_option("--held-out", options->held_out, "A run that is predicted and not fitted to; may be repeated")
      .type_name("RUN");
  fit.add_option("--law", options->law, "Write the law's constants, for `trireme plan scaling --law`")
      .type_name("FILE");
  fit.add_option("--page", options->page, "Write a page with the curves, the parabolas and the best sizes")
      .type_name("FILE");
  fit.add_option("--bootstrap", options->bootstrap, "Fits to runs drawn again, for intervals")
      .positive()
      .type_name("N");
  fit.add_flag("--without-embeddings", options->without_embeddings,
               "Count parameters without embeddings, as Kaplan does");
  fit.add_flag("--json", options->json, "As JSON, and nothing else");
  fit.footer("Examples:\n  trireme science fit runs/family-* --held-out runs/large --law law.json --page law.html");
  fit.callback([&context, options] { context.run = [&context, options] { return run_fit(*options, context); }; });

  Command& grid =
      command.add_subcommand("grid", "Write the recipes of a family: every size with every budget of compute");
  const auto wanted = std::make_shared<ScienceGridOptions>();
  grid.add_option("RECIPE", wanted->recipe, "The recipe that the others are made of").required();
  grid.add_option("--params", wanted->parameters, "Sizes, e.g. 100K 300K 1M").required().type_name("COUNT");
  grid.add_option("--flops", wanted->flops, "Budgets (6 N D), e.g. 1e12 3e12").required().type_name("FLOPS");
  grid.add_option("-o,--out", wanted->out, "The folder for them").required().type_name("DIR");
  grid.footer(
      "Examples:\n  trireme science grid recipes/tiny.toml --params 100K 300K 1M --flops 1e12 3e12 1e13 --out family");
  grid.callback([&context, wanted] { context.run = [&context, wanted] { return run_grid(*wanted, context); }; });
  add_science_tasks(command, context);
}

}  // namespace trireme::cli
