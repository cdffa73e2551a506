#include "trireme/experiment/overview.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "trireme/base/text.h"

namespace trireme::experiment {
namespace {

/// By number; the state as the journal alone tells it: what is open is queued.
std::map<int, TrialView> trials_of(const Journal& journal, const Overview& overview, const ExperimentFolder& folder) {
  std::map<int, TrialView> trials;
  for (const auto& entry : journal) {
    if (const Job* job = std::get_if<Job>(&entry)) {
      TrialView& trial = trials[job->trial];
      if (trial.draw != job->draw) trial = {};
      trial.trial = job->trial;
      trial.draw = job->draw;
      trial.setting = job->setting;
      trial.step = job->from;
      trial.until = job->until;
      trial.state = TrialState::kQueued;
      trial.run = folder.run(job->trial, job->draw);
      continue;
    }
    const Result& result = std::get<Result>(entry);
    TrialView& trial = trials[result.trial];
    trial.step = result.step;
    if (result.end == Result::End::kReached) trial.losses[result.step] = result.value;
    trial.state = result.end == Result::End::kFailed                     ? TrialState::kFailed
                  : result.end == Result::End::kInvalid                  ? TrialState::kInvalid
                  : result.step >= overview.experiment.options.max_steps ? TrialState::kDone
                                                                         : TrialState::kPaused;
  }
  return trials;
}

double last_loss(const TrialView& trial) {
  const double loss = trial.losses.empty() ? NAN : trial.losses.rbegin()->second;
  return std::isnan(loss) ? HUGE_VAL : loss;
}

std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char letter : text) out += letter == '"' ? std::string("\"\"") : std::string(1, letter);
  return out + "\"";
}

}  // namespace

std::string_view name(TrialState state) {
  constexpr std::string_view kNames[] = {"queued", "running", "paused", "done", "stopped", "failed", "invalid"};
  return kNames[static_cast<std::size_t>(state)];
}

std::string_view name(ExperimentState state) {
  constexpr std::string_view kNames[] = {"running", "paused", "stopped", "done"};
  return kNames[static_cast<std::size_t>(state)];
}

Overview overview_of(const ExperimentFolder& folder, const std::vector<int>* running) {
  Overview overview{.folder = folder.path(), .experiment = folder.read()};
  const Journal journal = folder.read_journal();
  const auto search = make_search(overview.experiment.search, overview.experiment.options);
  overview.evaluation_steps = search->evaluation_steps();
  const std::vector<Job> open = replay(*search, journal);
  const bool over = open.empty() && !search->next();
  const bool locked = running != nullptr || folder.is_locked();
  overview.state = over                                  ? ExperimentState::kDone
                   : folder.wanted() == Wanted::kStopped ? ExperimentState::kStopped
                   : locked                              ? ExperimentState::kRunning
                                                         : ExperimentState::kPaused;
  overview.best = best_of(journal);
  std::map<int, std::int64_t> from;  // where each trial's open job begins
  for (const auto& entry : journal) {
    if (const Job* job = std::get_if<Job>(&entry)) {
      from[job->trial] = job->from;
    } else if (const Result& result = std::get<Result>(entry); result.end != Result::End::kInvalid) {
      overview.steps += result.step - from[result.trial];
    }
  }
  for (auto& [number, trial] : trials_of(journal, overview, folder)) {
    const bool is_open = std::ranges::find(open, number, &Job::trial) != open.end();
    if (is_open && running != nullptr && std::ranges::find(*running, number) != running->end()) {
      trial.state = TrialState::kRunning;
    } else if (is_open && running == nullptr) {  // another process's: its run says whether it lives
      trial.state = is_file_locked(trial.run / "lock") ? TrialState::kRunning : TrialState::kQueued;
    }
    const bool ended = overview.state == ExperimentState::kDone || overview.state == ExperimentState::kStopped;
    if (ended && (trial.state == TrialState::kPaused || trial.state == TrialState::kQueued)) {
      trial.state = TrialState::kStopped;
    }
    overview.trials.push_back(std::move(trial));
  }
  return overview;
}

std::string table_text(const Overview& overview, std::size_t rows) {
  const SearchOptions& options = overview.experiment.options;
  std::size_t evaluated = 0, running = 0;
  for (const TrialView& trial : overview.trials) {
    running += trial.state == TrialState::kRunning ? 1 : 0;
    evaluated += trial.losses.empty() ? 0 : 1;
  }
  std::string out = fmt::format("{}: {}, {}: {} begun, {} running, {} evaluated; {} steps trained\n",
                                overview.experiment.name, overview.experiment.search, name(overview.state),
                                counted(overview.trials.size(), "trial"), running, evaluated, overview.steps);
  std::vector<TextTable::Column> columns{{"trial", TextTable::Align::kRight},
                                         {"state"},
                                         {"step", TextTable::Align::kRight},
                                         {"loss", TextTable::Align::kRight}};
  for (const Parameter& parameter : options.space.parameters)
    columns.push_back({parameter.key, TextTable::Align::kRight});
  TextTable table(columns);
  std::vector<const TrialView*> order;
  for (const TrialView& trial : overview.trials) order.push_back(&trial);
  std::ranges::stable_sort(order, [](const TrialView* a, const TrialView* b) {
    const auto longest = [](const TrialView* trial) {
      return trial->losses.empty() ? 0 : -trial->losses.rbegin()->first;
    };
    return std::tuple(longest(a), last_loss(*a)) < std::tuple(longest(b), last_loss(*b));
  });
  const std::size_t shown = rows == 0 ? order.size() : std::min(rows, order.size());
  for (std::size_t i = 0; i < shown; ++i) {
    const TrialView& trial = *order[i];
    std::vector<std::string> cells{std::to_string(trial.trial), std::string(name(trial.state)),
                                   fmt::format("{}/{}", trial.step, options.max_steps),
                                   trial.losses.empty() ? "-" : fmt::format("{:.4f}", trial.losses.rbegin()->second)};
    for (const Parameter& parameter : options.space.parameters) {
      const auto value = std::ranges::find(trial.setting, parameter.key, &Assignment::key);
      cells.push_back(value == trial.setting.end() ? "-" : value->value);
    }
    table.add(std::move(cells));
  }
  if (shown > 0) out += table.text("  ");
  if (shown < order.size()) out += fmt::format("  and {} more\n", order.size() - shown);
  return out;
}

std::string csv_text(const Overview& overview) {
  std::string out = "trial,draw,state,step";
  for (const Parameter& parameter : overview.experiment.options.space.parameters) out += "," + csv_cell(parameter.key);
  for (const std::int64_t step : overview.evaluation_steps) out += fmt::format(",loss@{}", step);
  out += "\n";
  for (const TrialView& trial : overview.trials) {
    out += fmt::format("{},{},{},{}", trial.trial, trial.draw, name(trial.state), trial.step);
    for (const Parameter& parameter : overview.experiment.options.space.parameters) {
      const auto value = std::ranges::find(trial.setting, parameter.key, &Assignment::key);
      out += "," + (value == trial.setting.end() ? std::string() : csv_cell(value->value));
    }
    for (const std::int64_t step : overview.evaluation_steps) {
      const auto loss = trial.losses.find(step);
      out += loss == trial.losses.end() ? std::string(",") : fmt::format(",{}", loss->second);
    }
    out += "\n";
  }
  return out;
}

}  // namespace trireme::experiment
