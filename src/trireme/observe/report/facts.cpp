#include "trireme/observe/report/facts.h"

#include <toml++/toml.h>
#include <algorithm>
#include <cmath>

#include "trireme/observe/report/curve.h"

namespace trireme::observe {
namespace {

std::optional<double> finite(double value) { return std::isfinite(value) ? std::optional(value) : std::nullopt; }

std::optional<std::int64_t> whole(std::optional<double> value) {
  if (!value || !std::isfinite(*value)) return std::nullopt;
  return static_cast<std::int64_t>(std::llround(*value));
}

/// What the trainer says when it begins, and when it goes on with another recipe or other ranks.
void read_beginning(const EventRecord& event, Facts& facts) {
  facts.ended.reset();
  if (auto model = event.text_of("model")) facts.model = std::move(model);
  if (auto precision = event.text_of("precision")) facts.precision = std::move(precision);
  if (const auto parameters = event.number_of("parameters")) facts.parameters = parameters;
  if (const auto ranks = whole(event.number_of("ranks"))) facts.ranks = ranks;
  if (const auto steps = whole(event.number_of("steps"))) facts.steps_asked = steps;
}

void read_events(const RunFiles& run, Facts& facts) {
  for (const EventRecord& event : run.events) {
    if (event.kind == "start" || event.kind == "resumed") read_beginning(event, facts);
    if (event.kind == "resume") {
      ++facts.resumes;
      facts.ended.reset();
    }
    if (event.kind == "stop") facts.ended = event.text_of("why").value_or("stopped");
    if (event.kind == "diverged") facts.ended = "diverged";
  }
}

void read_recipe(const RunFiles& run, Facts& facts) {
  if (run.recipe.empty() || (facts.model && facts.ranks)) return;
  try {
    const toml::table recipe = toml::parse(run.recipe);
    if (!facts.model) facts.model = recipe["model"]["family"].value<std::string>();
    if (!facts.ranks) facts.ranks = recipe["comm"]["ranks"].value<std::int64_t>();
  } catch (const toml::parse_error&) {  // it is shown as it stands; whoever runs it is told what is wrong
  }
}

void read_evaluations(const RunFiles& run, Facts& facts) {
  for (const EventRecord* event : run.events_of("eval")) {
    const auto loss = event->number_of("loss");
    if (!loss) continue;
    facts.eval_loss = loss;
    facts.eval_step = event->step();
    if (std::isfinite(*loss)) facts.best_eval_loss = std::min(*loss, facts.best_eval_loss.value_or(*loss));
  }
}

void read_steps(const RunFiles& run, Facts& facts) {
  if (run.steps.empty()) return;
  const StepRecord& last = run.steps.back();
  facts.steps = last.step;
  facts.tokens = last.tokens;
  std::vector<double> rates, mfus;
  double seconds = 0;
  std::int64_t memory = 0;
  for (const StepRecord& step : run.steps) {
    rates.push_back(step.tokens_per_s);
    if (step.mfu) mfus.push_back(*step.mfu);
    if (std::isfinite(step.seconds)) seconds += step.seconds;
    memory = std::max(memory, step.memory);
  }
  facts.tokens_per_s = finite(quantile(std::move(rates), 0.5));
  facts.mfu = finite(quantile(std::move(mfus), 0.5));
  facts.seconds = seconds;
  if (memory > 0) facts.memory = memory;
  // One step's loss is mostly chance: a hundredth of the run, or ten steps, says more.
  const auto count = std::clamp<std::size_t>(run.steps.size() / 100, std::min<std::size_t>(run.steps.size(), 10), 1000);
  double sum = 0;
  for (std::size_t i = run.steps.size() - count; i < run.steps.size(); ++i) sum += run.steps[i].loss;
  facts.loss = sum / static_cast<double>(count);
  facts.loss_steps = static_cast<std::int64_t>(count);
}

}  // namespace

Facts facts_of(const RunFiles& run) {
  Facts facts;
  facts.name = std::filesystem::weakly_canonical(run.dir).filename().string();
  read_events(run, facts);
  read_recipe(run, facts);
  read_evaluations(run, facts);
  read_steps(run, facts);
  return facts;
}

}  // namespace trireme::observe
