// trireme verify: does a layout compute what one rank computes?

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "trireme/base/log.h"
#include "trireme/base/print.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/cli/command.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/program.h"
#include "trireme/cli/recipe_options.h"
#include "trireme/cli/runtime_commands.h"
#include "trireme/cli/start_ranks.h"
#include "trireme/cli/verify_matrix.h"
#include "trireme/comm/launch.h"
#include "trireme/plan/layout_matrix.h"
#include "trireme/spec/parallel_config.h"

namespace trireme::cli {
namespace {

struct VerifyOptions {
  RecipeOptions recipe;
  std::optional<int> ranks;
  std::optional<spec::Precision> precision;
  std::optional<std::int64_t> steps;
  std::string against = "serial";
  bool json = false, matrix = false;
  MatrixOptions matrix_options;
};

nlohmann::ordered_json to_json(const train::VerifyDifference& difference) {
  nlohmann::ordered_json json{
      {"largest", difference.relative}, {"tensor", difference.name}, {"first_parting", nullptr}};
  if (!difference.first_parting.empty()) json["first_parting"] = difference.first_parting;
  return json;
}

void print_json(const train::VerifyResult& result, std::ostream& out) {
  nlohmann::ordered_json steps = nlohmann::ordered_json::array();
  for (const train::VerifyStep& step : result.steps) {
    steps.push_back({{"loss", step.loss},
                     {"reference_loss", step.reference_loss},
                     {"grad_norm", step.norm},
                     {"reference_grad_norm", step.reference_norm}});
  }
  nlohmann::ordered_json json{{"equal", result.equal},
                              {"steps", steps},
                              {"gradients", to_json(result.gradients)},
                              {"weights", to_json(result.weights)},
                              {"tolerance",
                               {{"loss", result.tolerance.loss},
                                {"gradients", result.tolerance.gradients},
                                {"weights", result.tolerance.weights}}}};
  if (result.compressed) {
    json["compressed"] = {{"kind", result.compressed->kind},
                          {"elements", result.compressed->elements},
                          {"rounds", result.compressed->rounds},
                          {"sent_bytes", result.compressed->sent_bytes},
                          {"dense_bytes", result.compressed->dense_bytes}};
  }
  fmt::print(out, "{}\n", json.dump(2));
}

void print_compressed(const train::VerifyResult::Compressed& compressed, std::ostream& out) {
  fmt::print(out, "{}: {} elements compressed in {} rounds, rank 0 sent {} in place of {}\n", compressed.kind,
             compressed.elements, compressed.rounds, short_bytes(compressed.sent_bytes),
             short_bytes(compressed.dense_bytes));
  if (compressed.rounds == 0 || compressed.elements == 0) {
    fmt::print(out,
               "NOTHING was compressed: lower compress.min_elements or compress.start, or raise --steps, so that some "
               "of it is compared\n");
  }
}

void print(const train::VerifyResult& result, std::ostream& out) {
  TextTable table({{"step"}, {"loss"}, {"alone"}, {"differs by"}, {"gradient norm"}, {"alone"}, {"differs by"}});
  for (std::size_t i = 0; i < result.steps.size(); ++i) {
    const train::VerifyStep& step = result.steps[i];
    const auto apart = [](double a, double b) {
      return a == b ? std::string("0") : fmt::format("{:.1e}", std::abs(a - b) / std::max(std::abs(a), std::abs(b)));
    };
    table.add({std::to_string(i + 1), fmt::format("{:.9f}", step.loss), fmt::format("{:.9f}", step.reference_loss),
               apart(step.loss, step.reference_loss), fmt::format("{:.9f}", step.norm),
               fmt::format("{:.9f}", step.reference_norm), apart(step.norm, step.reference_norm)});
  }
  fmt::print(out, "{}", table.text());
  if (result.compressed) print_compressed(*result.compressed, out);
  fmt::print(out, "gradients of step 1    largest difference {:.1e}, in {}\n", result.gradients.relative,
             result.gradients.name);
  fmt::print(out, "weights after step {}   largest difference {:.1e}, in {}\n", result.steps.size(),
             result.weights.relative, result.weights.name);
  if (result.equal) {
    fmt::print(out, "equal, to rounding: losses within {:.0e}, gradients within {:.0e}, weights within {:.0e}\n",
               result.tolerance.loss, result.tolerance.gradients, result.tolerance.weights);
    return;
  }
  std::string where;
  if (!result.gradients.first_parting.empty()) {
    where = fmt::format("the gradient of {} is the first that differs", result.gradients.first_parting);
  } else if (!result.weights.first_parting.empty()) {
    where = fmt::format("gradients agree in step 1; {} is the first parameter that differs after the last",
                        result.weights.first_parting);
  } else {
    const std::string& term = result.steps[static_cast<std::size_t>(*result.first_step - 1)].term;
    where = fmt::format("tensors agree, but the loss{} or gradient norm of step {} does not",
                        term.empty() ? "" : fmt::format(" (term {})", term), *result.first_step);
  }
  fmt::print(out, "NOT equal: {}\n", where);
}

/// Copies that update by themselves need more steps to part and meet again.
std::int64_t steps_of(const VerifyOptions& options, const spec::Recipe& recipe) {
  return options.steps.value_or(spec::lets_copies_drift(recipe.compress.kind) ? 9 : 5);
}

/// What both sides run: no further than it goes.
spec::Recipe shortened(spec::Recipe recipe, std::int64_t steps) {
  recipe.train.steps = steps;
  recipe.train.tokens.reset();
  return recipe;
}

int run_verify(VerifyOptions& options, Context& context) {
  if (options.ranks) options.recipe.set(fmt::format("comm.ranks={}", *options.ranks));
  if (options.precision) {
    const auto names = spec::enum_names(std::type_identity<spec::Precision>());
    options.recipe.set(fmt::format("precision.compute={}", name_in(names, *options.precision)));
  }
  spec::Recipe recipe = options.recipe.load(context).value;
  const std::int64_t steps = steps_of(options, recipe);
  recipe = shortened(std::move(recipe), steps);
  const std::string changed = spec::fit_into_steps(recipe.compress, steps);
  if (!changed.empty() && comm::detect_launch().rank == 0)
    log_info("so that {} steps compress something: {}", steps, changed);
  train::VerifyRequest request{.recipes = {recipe}, .reference = recipe, .steps = steps};
  spec::undistribute(request.reference);
  if (options.against != "serial") {
    const plan::LayoutCase against = plan::parse_layout(options.against);
    request.reference.layout = against.layout;
    request.reference.pipeline = against.pipeline;
    request.reference_alone = false;
  }
  const train::Commands& commands = load_train();
  bool equal = true;
  if (options.matrix) {
    options.matrix_options.json = options.json;
    options.matrix_options.recipe = options.recipe.file();
    equal = verify_matrix(recipe, std::move(request), options.matrix_options, commands, context);
  } else {
    start_ranks(recipe, [&](comm::Rank& rank) {
      commands.verify(request, rank, [&](std::size_t, const train::VerifyResult& result) {
        if (rank.rank() != 0) return;
        equal = result.equal;
        options.json ? print_json(result, context.out) : print(result, context.out);
      });
    });
  }
  // Ranks that are processes print nothing and cannot fail where rank 0 does.
  return equal || comm::detect_launch().rank != 0 ? kExitFine : kExitFailed;
}

}  // namespace

void add_verify_command(Command& app, Context& context) {
  Command& command = app.add_subcommand("verify", "Compare a parallel run with the same steps on one rank");
  command.footer(
      "Runs a few steps on one rank, then on all, and compares losses, gradient norms, the gradients of the first step "
      "and\n"
      "the weights after the last, tensor by tensor. Exit code 1 when something differs by more than rounding. In "
      "fp64\n"
      "rounding is so small that a factor lost anywhere shows.\n"
      "\n"
      "Examples:\n"
      "  trireme verify recipes/verify-tiny.toml --ranks 8 --precision fp64 --set layout.tp=2 --set layout.zero=3\n"
      "  trireme verify recipes/verify-tiny.toml --ranks 4 --set layout.cp=4 --against \"tp=2 sp zero=1\"\n"
      "  trireme verify recipes/verify-tiny.toml --ranks 8 --matrix\n"
      "  mpirun -n 4 trireme verify recipes/verify-tiny.toml");
  const auto options = std::make_shared<VerifyOptions>();  // shared with the callback
  options->recipe.add_to(command, RecipeOptions::File::kRequired);
  command.add_option("--ranks", options->ranks, "short for --set comm.ranks=N").positive();
  command.add_option("--steps", options->steps, "how many to compare; unset: 5, with local updates 9").positive();
  add_choice<spec::Precision>(
      command, "--precision", options->precision,
      {{"fp64", spec::Precision::kFp64}, {"fp32", spec::Precision::kFp32}, {"bf16", spec::Precision::kBf16}},
      "short for --set precision.compute=...");
  command.add_option("--against", options->against, "what to compare with: serial, or a layout such as \"tp=2 zero=1\"")
      .show_default();
  command.add_flag("--matrix", options->matrix, "a sample of all layouts in which every two features meet");
  command.add_flag("--all", options->matrix_options.all, "with --matrix: every layout");
  command.add_option("--write", options->matrix_options.write, "with --matrix: a Markdown file for the tables");
  command.add_flag("--json", options->json, "as JSON");
  command.callback(
      [options, &context] { context.run = [options, &context] { return run_verify(*options, context); }; });
}

}  // namespace trireme::cli
