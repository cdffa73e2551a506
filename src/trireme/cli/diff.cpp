// trireme diff: the first step and tensor in which two runs differ; with a tolerance, how far they are apart.
#include "trireme/observe/diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/print.h"
#include "trireme/base/text.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/program.h"
#include "trireme/formats/tensor_difference.h"
#include "trireme/spec/recipe.h"

namespace trireme::cli {
namespace {

namespace fs = std::filesystem;

struct DiffOptions {
  std::string left, right;
  bool json = false;
  std::optional<double> tolerance;
};

/// Exit code 1 says "they differ": what goes wrong must not look like it.
observe::RunFiles read(const std::string& folder) {
  try {
    return observe::read_run(folder);
  } catch (const IoError& error) {
    throw ConfigError(error.message(), error.hint());
  }
}

/// Keys of the recipes that are not the same, but for names, folders and what only tells.
std::vector<std::string> recipe_differences(const DiffOptions& options) {
  const fs::path left = fs::path(options.left) / formats::kRecipeFile,
                 right = fs::path(options.right) / formats::kRecipeFile;
  if (!fs::exists(left) || !fs::exists(right)) return {};
  spec::Recipe a = spec::load_recipe({.file = left.string()}).value,
               b = spec::load_recipe({.file = right.string()}).value;
  b.run.name = a.run.name, b.run.out = a.run.out, b.log = a.log;
  return config::differences(spec::recipe_schema(), &a, &b);
}

double apart(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  if (!std::isfinite(a) || !std::isfinite(b)) return INFINITY;
  return std::abs(a - b) / std::max(std::abs(a), std::abs(b));
}

/// One thing that was compared: the largest relative difference, and where.
struct Farthest {
  std::string name;
  std::int64_t step = 0;
  double relative = 0;
  void take(std::int64_t at, double value) {
    if (value > relative) step = at, relative = value;
  }
};

std::vector<Farthest> compare_metrics(const observe::RunFiles& left, const observe::RunFiles& right) {
  std::vector<Farthest> out{{.name = "loss"}, {.name = "grad_norm"}, {.name = "lr"}};
  auto b = right.steps.begin();
  for (const observe::StepRecord& a : left.steps) {
    while (b != right.steps.end() && b->step < a.step) ++b;
    if (b == right.steps.end()) break;
    if (b->step != a.step) continue;
    out[0].take(a.step, apart(a.loss, b->loss));
    out[1].take(a.step, apart(a.grad_norm, b->grad_norm));
    out[2].take(a.step, apart(a.lr, b->lr));
  }
  return out;
}

/// Of every tensor, over the checkpoints of the same step that both runs have; in the order of `left`'s first.
std::vector<Farthest> compare_tensors(const DiffOptions& options, std::vector<std::int64_t>& steps) {
  const fs::path left = fs::path(options.left) / "checkpoints", right = fs::path(options.right) / "checkpoints";
  const auto theirs = formats::list_checkpoints(right);
  std::map<std::string, Farthest> all;
  for (const std::int64_t step : formats::list_checkpoints(left)) {
    if (std::ranges::find(theirs, step) == theirs.end()) continue;
    steps.push_back(step);
    const std::string name = formats::checkpoint_name(step);
    for (const auto& [tensor, relative] :
         formats::tensor_differences(formats::CheckpointFolder(left / name), formats::CheckpointFolder(right / name))) {
      Farthest& found = all[tensor];
      found.name = tensor;
      found.take(step, relative);
    }
  }
  std::vector<Farthest> out;
  for (auto& [name, found] : all) out.push_back(std::move(found));
  std::ranges::stable_sort(out, std::greater<>(), &Farthest::relative);
  return out;
}

int compare_within(const DiffOptions& options, const observe::RunFiles& left, const observe::RunFiles& right,
                   std::ostream& out) {
  const double tolerance = *options.tolerance;
  const observe::RunDifference bits = observe::difference(left, right);  // says where there is nothing to compare
  const auto metrics = compare_metrics(left, right);
  std::vector<std::int64_t> steps;
  const auto tensors = compare_tensors(options, steps);
  const auto within = [&](const Farthest& found) { return found.relative <= tolerance; };
  const bool fine = std::ranges::all_of(metrics, within) && std::ranges::all_of(tensors, within);
  const auto changed = recipe_differences(options);
  if (options.json) {
    observe::Json all{{"left", options.left}, {"right", options.right}, {"tolerance", tolerance}, {"within", fine}};
    for (const auto* list : {&metrics, &tensors}) {
      observe::Json& rows = all[list == &metrics ? "metrics" : "tensors"] = observe::Json::object();
      for (const Farthest& found : *list) {
        rows[found.name] = {{"relative", observe::number(found.relative)}, {"step", found.step}};
      }
    }
    all["checkpoints"] = steps;
    all["recipes"] = changed;
    fmt::print(out, "{}\n", all.dump(2));
    return fine ? kExitFine : kExitFailed;
  }
  fmt::print(out, "{} and {} are {} {:g} of each other{}\n", options.left, options.right,
             fine ? "within" : "NOT within", tolerance, bits.equal() ? ": equal to the bit" : "");
  TextTable table({{"compared"}, {"largest difference", TextTable::Align::kRight}, {"at step"}});
  const auto add = [&](const Farthest& found) {
    table.add({found.name, found.relative == 0 ? "0" : fmt::format("{:.2e}", found.relative),
               found.relative == 0 ? "" : std::to_string(found.step)});
  };
  for (const Farthest& found : metrics) add(found);
  constexpr std::size_t kShown = 10;
  for (std::size_t i = 0; i < std::min(kShown, tensors.size()); ++i) add(tensors[i]);
  fmt::print(out, "{}", table.text("  "));
  if (tensors.size() > kShown) {
    fmt::print(out, "  and {} more tensors, none farther apart; --json lists them\n", tensors.size() - kShown);
  }
  if (steps.empty()) fmt::print(out, "  tensors were not compared: the runs have no checkpoint of the same step\n");
  for (const std::string& line : changed) fmt::print(out, "  recipe: {}\n", line);
  return fine ? kExitFine : kExitFailed;
}

}  // namespace

void add_diff_command(Command& app, Context& context) {
  Command& diff = app.add_subcommand(
      "diff",
      "Find the first step and tensor in which two runs differ; exit code 0 when none does, 1 when they differ");
  const auto options = std::make_shared<DiffOptions>();  // shared with the callback, which outlives this function
  diff.add_option("RUN", options->left, "Folder of a run").required();
  diff.add_option("OTHER", options->right, "Folder of the run to compare it with").required();
  diff.add_flag("--json", options->json, "As JSON, with all tensors");
  diff.add_option(
          "--tolerance", options->tolerance,
          "Compare numbers, not bits: the largest relative difference of each metric and tensor, the latter from "
          "checkpoints of the same step; exit code 0 when all are within this. For runs of different layouts")
      .not_negative();
  diff.footer(
      "Examples:\n"
      "  trireme diff runs/one runs/again\n"
      "  trireme diff runs/one-rank runs/two-ranks --tolerance 1e-4");
  diff.callback([&context, options] {
    context.run = [&context, options] {
      const observe::RunFiles left = read(options->left), right = read(options->right);
      for (const observe::RunFiles* run : {&left, &right}) {
        for (const std::string& note : run->notes) log_debug("{}: {}", run->dir.string(), note);
      }
      if (options->tolerance) return compare_within(*options, left, right, context.out);
      const observe::RunDifference found = observe::difference(left, right);
      if (options->json) {
        fmt::print(context.out, "{}\n", observe::to_json(found, options->left, options->right).dump(2));
      } else {
        context.out << observe::to_text(found, options->left, options->right);
        if (!found.equal()) {
          for (const std::string& line : recipe_differences(*options)) fmt::print(context.out, "  recipe: {}\n", line);
        }
      }
      return static_cast<int>(found.equal() ? kExitFine : kExitFailed);
    };
  });
}

}  // namespace trireme::cli
