// trireme science: scaling laws fitted to runs, and the recipes of the runs that they need.
#include <fmt/format.h>

#include <algorithm>
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
#include "trireme/cli/science_fit.h"
#include "trireme/cli/science_report.h"
#include "trireme/cli/tasks/science_tasks.h"
#include "trireme/observe/report/page.h"
#include "trireme/spec/recipe.h"
#include "trireme/spec/size_model.h"

namespace trireme::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using science::ScalingRun;

struct ScienceFitOptions {
  FamilyFolders folders;
  fs::path law, page;
  bool json = false;
};

/// What `plan scaling --law` reads (plan/scaling.h).
std::string law_json(const science::ParametricLaw& law, const std::string& source) {
  return ordered_json{{"name", "fitted"}, {"source", source},   {"floor", law.floor}, {"a", law.a},
                      {"b", law.b},       {"alpha", law.alpha}, {"beta", law.beta}}
             .dump(2) +
         "\n";
}

std::string fit_page(const FittedFamily& family) {
  const science::ParametricFit& fit = family.fit;
  const std::string law = fmt::format(
      "<h1>A scaling law of {} runs</h1><p>L = {:.4g} + {:.4g} / N^{:.4f} + {:.4g} / D^{:.4f}; the largest residual is "
      "{:.2f} % of a loss.</p>",
      family.runs.size(), fit.law.floor, fit.law.a, fit.law.alpha, fit.law.b, fit.law.beta,
      100 * std::expm1(fit.largest_residual));
  return observe::page("A scaling law", law + family_charts(family));
}

int run_fit(const ScienceFitOptions& options, Context& context) {
  const FittedFamily family = fit_family(options.folders);
  const auto& [runs, held_out, fit, intervals, iso_flop, envelope, kaplan] = family;
  const auto [least, most] = std::minmax_element(
      runs.begin(), runs.end(), [](const auto& one, const auto& other) { return one.flops() < other.flops(); });
  const std::string source =
      fmt::format("{} runs of 6 N D from {:.2g} to {:.2g} FLOPs", runs.size(), least->flops(), most->flops());
  if (!options.law.empty()) write_text_file(options.law, law_json(fit.law, source));
  if (!options.page.empty()) write_text_file(options.page, fit_page(family));
  if (options.json) {
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
                      {"best_size_exponents", {{"parametric", family.exponent()}}},
                      {"held_out", ordered_json::array()}};
    if (envelope.parameters) json["best_size_exponents"]["envelope"] = envelope.parameters->exponent;
    if (iso_flop.parameters) json["best_size_exponents"]["iso_flop"] = iso_flop.parameters->exponent;
    if (const auto compute = compute_form(family)) json["kaplan"]["alpha_c"] = -compute->exponent;
    for (const ScalingRun& run : held_out)
      json["held_out"].push_back(
          {{"run", run.name}, {"loss", run.loss}, {"predicted", fit.law.loss(run.parameters, run.tokens)}});
    context.out << json.dump(2) << '\n';
    return kExitFine;
  }
  fmt::print(context.out, "{}\n{}", family_table(family), family_text(family));
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
  fit.add_option("RUN", options->folders.runs, "Folders of runs that have ended").required();
  fit.add_option("--held-out", options->folders.held_out, "A run that is predicted and not fitted to; may be repeated")
      .type_name("RUN");
  fit.add_option("--law", options->law, "Write the law's constants, for `trireme plan scaling --law`")
      .type_name("FILE");
  fit.add_option("--page", options->page, "Write a page with the curves, the parabolas and the best sizes")
      .type_name("FILE");
  fit.add_option("--bootstrap", options->folders.bootstrap, "Fits to runs drawn again, for intervals")
      .positive()
      .type_name("N");
  fit.add_flag("--without-embeddings", options->folders.without_embeddings,
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
  add_science_report(command, context);
}

}  // namespace trireme::cli
