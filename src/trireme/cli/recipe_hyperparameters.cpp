// trireme recipe hyperparameters: the learning rate and batch that a recipe's run will have, step by step, without
// running it.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "trireme/base/print.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/program.h"
#include "trireme/cli/recipe_options.h"

namespace trireme::cli {
namespace {

using spec::Position;

struct HyperparametersOptions {
  RecipeOptions recipe;
  std::string until;  // in the schedule's unit
  int rows = 20;
};

/// Where the schedule itself changes its mind, in its own unit.
std::vector<std::int64_t> bends(const spec::LrScheduleConfig& schedule) {
  std::vector<std::int64_t> places = schedule.boundaries;
  if (schedule.warmup > 0) places.push_back(schedule.warmup);
  if (schedule.total) places.push_back(*schedule.total);
  if (schedule.total && schedule.decay) places.push_back(*schedule.total - *schedule.decay);
  for (const spec::LrRestart& restart : schedule.restarts) {
    places.insert(places.end(), {restart.at, restart.at + restart.warmup, restart.at + restart.total.value_or(0)});
    if (restart.total && schedule.decay) places.push_back(restart.at + *restart.total - *schedule.decay);
  }
  return places;
}

/// A quarter beyond the last change when nobody says.
std::int64_t default_end(const spec::LrScheduleConfig& schedule, const spec::BatchConfig& batch) {
  if (schedule.total) {
    const auto* last = schedule.restarts.empty() ? nullptr : &schedule.restarts.back();
    return last ? last->at + last->total.value_or(last->warmup) : *schedule.total;
  }
  std::int64_t last = 0;
  for (const std::int64_t place : bends(schedule)) last = std::max(last, place);
  if (batch.over) {
    const Position full = spec::position_at(schedule, batch, *batch.over);
    last = std::max(last, schedule.unit == spec::LrScheduleUnit::kTokens ? full.tokens : full.step);
  }
  return last > 0 ? last + last / 4 : 1000;
}

void print_hyperparameters(const spec::Recipe& recipe, const HyperparametersOptions& options, std::ostream& out) {
  const auto& schedule = recipe.lr_schedule;
  const auto& batch = recipe.batch;
  const bool by_tokens = schedule.unit == spec::LrScheduleUnit::kTokens;
  const std::int64_t end = options.until.empty() ? default_end(schedule, batch) : parse_count(options.until);
  const auto position = [&](std::int64_t place) {
    return by_tokens ? spec::position_at(schedule, batch, place) : spec::position_at_step(schedule, batch, place);
  };
  std::vector<Position> positions;
  for (int row = 0; row <= options.rows; ++row) {
    positions.push_back(position(static_cast<std::int64_t>(static_cast<double>(end) * row / options.rows)));
  }
  for (const std::int64_t bend : bends(schedule)) {
    if (bend <= end) positions.push_back(position(bend));
  }
  if (batch.over) positions.push_back(spec::position_at(schedule, batch, *batch.over));
  const Position last = position(end);
  std::erase_if(positions, [&](const Position& p) { return p.step > last.step; });
  std::ranges::sort(positions, {}, &Position::step);
  positions.erase(std::ranges::unique(positions).begin(), positions.end());

  using Align = TextTable::Align;
  TextTable table({{"step", Align::kRight}, {"tokens", Align::kRight}, {"batch", Align::kRight}, {"learning rate"}});
  for (const Position& at : positions) {
    const spec::Hyperparameters hyperparameters = spec::hyperparameters_at(recipe.optim, schedule, batch, at);
    table.add({fmt::format("{}", at.step), short_count(static_cast<double>(at.tokens)),
               fmt::format("{}", hyperparameters.batch), fmt::format("{:.4g}", hyperparameters.learning_rate)});
  }
  fmt::print(out, "{}{} to {} tokens\n", table.text(), counted(static_cast<std::size_t>(last.step), "step"),
             short_count(static_cast<double>(last.tokens)));
}

}  // namespace

void add_recipe_hyperparameters(Command& recipe, Context& context) {
  Command& hyperparameters = recipe.add_subcommand(
      "hyperparameters",
      "Print learning rate and global batch size over a run: at even intervals, and where their schedules change");
  const auto options =
      std::make_shared<HyperparametersOptions>();  // shared with the callback, which outlives this function
  options->recipe.add_to(hyperparameters, RecipeOptions::File::kOptional);
  hyperparameters
      .add_option(
          "--until", options->until,
          "Where to end, in lr_schedule.unit, e.g. 300G; not given: lr_schedule.total, else behind the last change")
      .type_name("COUNT");
  hyperparameters.add_option("--rows", options->rows, "Rows at even intervals").within(1, 10000).show_default();
  hyperparameters.callback([&context, options] {
    context.run = [&context, options] {
      print_hyperparameters(options->recipe.load(context).value, *options, context.out);
      return kExitFine;
    };
  });
}

}  // namespace trireme::cli
