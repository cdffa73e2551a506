#include "trireme/dashboard/watched_sweep.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/dashboard/json_numbers.h"

namespace trireme::dashboard {
namespace {

namespace fs = std::filesystem;
using experiment::ExperimentState;
using experiment::TrialState;
using experiment::TrialView;
using observe::Json;

std::uintmax_t size_or_zero(const fs::path& file) {
  std::error_code error;
  const auto size = fs::file_size(file, error);
  return error ? 0 : size;
}

Json trial_json(const TrialView& trial) {
  Json setting = Json::object(), losses = Json::array();
  for (const auto& [key, value] : trial.setting) setting[key] = value;
  for (const auto& [step, loss] : trial.losses) losses.push_back({step, short_number(loss)});
  return {{"trial", trial.trial},       {"state", name(trial.state)}, {"step", trial.step},
          {"until", trial.until},       {"run", place_id(trial.run)}, {"setting", std::move(setting)},
          {"losses", std::move(losses)}};
}

Json parameter_json(const experiment::Parameter& parameter) {
  using Kind = experiment::Parameter::Kind;
  Json out{{"key", parameter.key},
           {"log", parameter.kind == Kind::kLog || parameter.kind == Kind::kLogInt},
           {"number", parameter.is_number()}};
  if (parameter.is_number()) {
    out["low"] = parameter.low;
    out["high"] = parameter.high;
  } else {
    out["choices"] = parameter.choices;
  }
  return out;
}

}  // namespace

WatchedSweep::WatchedSweep(ExperimentPlace place) : place_(std::move(place)) {}

WatchedSweep::Signature WatchedSweep::signature() const {
  Signature now{.journal = size_or_zero(place_.path / "journal.jsonl"),
                .bytes_wanted = size_or_zero(place_.path / "wanted"),
                .locked = experiment::ExperimentFolder(place_.path).is_locked()};
  if (!overview_) return now;
  for (const TrialView& trial : overview_->trials) {
    const bool open = trial.state == TrialState::kQueued || trial.state == TrialState::kRunning;
    now.running += open && experiment::is_file_locked(trial.run / "lock") ? 1 : 0;
  }
  return now;
}

WatchedSweep::Changes WatchedSweep::look(double now) {
  const Signature current = signature();
  if (seen_ && current == *seen_) return {};
  const bool was_done = overview_ && overview_->state == ExperimentState::kDone;
  Changes changes{.changed = true};
  try {
    overview_ = overview_of(experiment::ExperimentFolder(place_.path));
    why_.clear();
  } catch (const Error& error) {
    overview_.reset();
    why_ = error.message();
  }
  seen_ = signature();
  if (!first_ && overview_ && !was_done && overview_->state == ExperimentState::kDone) {
    const auto& best = overview_->best;
    changes.alert =
        Alert{.time = now,
              .severity = Severity::kInfo,
              .kind = "experiment_done",
              .text = best ? fmt::format("sweep {} is done: trial {} is the best, validation loss {:.4f}: {}",
                                         place_.name, best->trial, best->value, to_text(best->setting))
                           : fmt::format("sweep {} is done; no trial was evaluated", place_.name)};
  }
  first_ = false;
  return changes;
}

Json WatchedSweep::summary_json() const {
  Json out{{"id", place_.id}, {"name", place_.name}};
  if (!overview_) {
    out["state"] = "damaged";
    out["why"] = why_;
    return out;
  }
  const experiment::Overview& o = *overview_;
  std::array<int, 7> counts{};
  for (const TrialView& trial : o.trials) ++counts[static_cast<std::size_t>(trial.state)];
  Json states = Json::object();
  for (std::size_t i = 0; i < counts.size(); ++i) states[std::string(name(static_cast<TrialState>(i)))] = counts[i];
  out["state"] =
      o.state == ExperimentState::kRunning && size_or_zero(place_.path / "wanted") > 0 ? "pausing" : name(o.state);
  out["search"] = o.experiment.search;
  out["created"] = o.experiment.created;
  out["trials"] = o.trials.size();
  out["counts"] = std::move(states);
  out["steps"] = o.steps;
  out["max_steps"] = o.experiment.options.max_steps;
  out["priority"] = o.experiment.priority;
  out["weight"] = short_number(o.experiment.weight);
  out["slots_per_trial"] = o.experiment.slots_per_trial;
  if (o.best) {
    Json setting = Json::object();
    for (const auto& [key, value] : o.best->setting) setting[key] = value;
    out["best"] = {{"trial", o.best->trial},
                   {"step", o.best->step},
                   {"loss", short_number(o.best->value)},
                   {"setting", std::move(setting)},
                   {"run", place_id(experiment::ExperimentFolder(place_.path).run(o.best->trial, o.best->draw))}};
  }
  const bool locked = seen_ && seen_->locked;
  out["can"] = {{"pause", locked && o.state == ExperimentState::kRunning},
                {"resume", !locked && o.state != ExperimentState::kDone},
                {"stop", o.state == ExperimentState::kRunning || o.state == ExperimentState::kPaused}};
  return out;
}

Json WatchedSweep::json() const {
  Json out = summary_json();
  if (!overview_) return out;
  const experiment::Overview& o = *overview_;
  out["rungs"] = o.evaluation_steps;
  out["parameters"] = Json::array();
  for (const auto& parameter : o.experiment.options.space.parameters)
    out["parameters"].push_back(parameter_json(parameter));
  out["list"] = Json::array();
  for (const TrialView& trial : o.trials) out["list"].push_back(trial_json(trial));
  return out;
}

}  // namespace trireme::dashboard
