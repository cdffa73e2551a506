#include "trireme/dashboard/watch.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "trireme/base/log.h"
#include "trireme/base/wall_clock.h"
#include "trireme/dashboard/json_numbers.h"
#include "trireme/http/message.h"

namespace trireme::dashboard {
namespace {

using observe::Json;

constexpr std::size_t kSparkPoints = 64, kRowsInEvent = 20, kAlertsShown = 100;

Json alert_json(const Alert& alert, const std::string& id, const std::string& shown, bool is_run) {
  return {{"time", alert.time},
          {"severity", name(alert.severity)},
          {"kind", alert.kind},
          {"text", alert.text},
          {"step", alert.step ? Json(*alert.step) : Json()},
          {is_run ? "run" : "sweep", id},
          {"name", shown}};
}

}  // namespace

FolderWatch::FolderWatch(Parts parts) : parts_(std::move(parts)) {}

/// New folders become runs and sweeps, and those that are gone are forgotten.
void FolderWatch::find() {
  Catalogue catalogue = find_runs(parts_.roots);
  std::set<std::string> there;
  bool changed = false;
  for (RunPlace& place : catalogue.runs) {
    there.insert(place.id);
    if (runs_.contains(place.id)) continue;
    std::string id = place.id;
    runs_.emplace(std::move(id), std::make_unique<WatchedRun>(std::move(place)));
    changed = true;
  }
  for (ExperimentPlace& place : catalogue.experiments) {
    there.insert(place.id);
    if (sweeps_.contains(place.id)) continue;
    std::string id = place.id;
    sweeps_.emplace(std::move(id), std::make_unique<WatchedSweep>(std::move(place)));
    changed = true;
  }
  const auto gone = [&](const auto& entry) { return !there.contains(entry.first); };
  changed = std::erase_if(runs_, gone) > 0 || changed;
  changed = std::erase_if(sweeps_, gone) > 0 || changed;
  if (catalogue.cut && !cut_) log_warn("there are more than {} runs; the others are not shown", runs_.size());
  cut_ = catalogue.cut;
  if (changed && !first_) parts_.feed.publish("catalogue", "{}");
}

void FolderWatch::look(bool around) {
  const std::lock_guard lock(mutex_);
  const double now = wall_seconds();
  if (around) find();
  std::vector<WatchedRun*> due;
  for (const auto& [id, run] : runs_) {
    if (around || run->is_active()) due.push_back(run.get());
  }
  look_at(due, now);
  for (const auto& [id, sweep] : sweeps_) {
    const experiment::Overview* overview = sweep->overview();
    if (!around && (overview == nullptr || overview->state != experiment::ExperimentState::kRunning)) continue;
    const WatchedSweep::Changes changes = sweep->look(now);
    if (changes.alert) {
      sweep_alerts_.emplace_back(id, *changes.alert);
      tell(*changes.alert, id, sweep->place().name, false);
    }
    if (changes.changed && !first_) parts_.feed.publish("sweep", observe::line_of(sweep->summary_json()));
  }
  first_ = false;
}

/// Many at once, such as at the beginning, are shared by threads: reading a long run is all work.
void FolderWatch::look_at(const std::vector<WatchedRun*>& due, double now) {
  std::vector<WatchedRun::Changes> changes(due.size());
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t i = next++; i < due.size(); i = next++) changes[i] = due[i]->look(now);
  };
  const std::size_t helpers =
      first_ ? std::min<std::size_t>(std::max(1U, std::thread::hardware_concurrency()), due.size() / 4 + 1) - 1 : 0;
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < helpers; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  if (first_) return;
  for (std::size_t i = 0; i < due.size(); ++i) publish(*due[i], changes[i]);
}

void FolderWatch::publish(const WatchedRun& run, const WatchedRun::Changes& changes) {
  for (const StepRow& row : changes.rows) {
    if (!std::isfinite(row.seconds)) continue;
    parts_.metrics
        .histogram("trireme_step_seconds", "Time of a training step, of those seen since the page was started",
                   http::time_bounds(), {{"run", run.place().name}})
        .observe(row.seconds);
  }
  for (const Alert& alert : changes.alerts) tell(alert, run.place().id, run.place().name, true);
  if (!changes.changed) return;
  Json event{{"run", run.summary_json()}, {"rows", Json::array()}};
  // A page that missed steps asks for the curves again.
  event["restarted"] = changes.restarted || changes.rows.size() > kRowsInEvent;
  if (changes.rows.size() <= kRowsInEvent) {
    for (const StepRow& row : changes.rows) {
      Json numbers = Json::array();
      for (const double number : numbers_of(row)) numbers.push_back(short_number(number));
      event["rows"].push_back(std::move(numbers));
    }
  }
  parts_.feed.publish("run", observe::line_of(event));
}

void FolderWatch::tell(const Alert& alert, const std::string& id, const std::string& shown, bool is_run) {
  const Json json = alert_json(alert, id, shown, is_run);
  parts_.feed.publish("alert", observe::line_of(json));
  if (alert.kind == "skipped") return;  // every run in fp16 has some
  Json body{{"event", alert.kind}};
  body.update(json);
  parts_.webhook.tell(alert.kind, observe::line_of(body));
}

Json FolderWatch::with_run(const std::string& id, const std::function<Json(WatchedRun&)>& read) {
  const std::lock_guard lock(mutex_);
  const auto found = runs_.find(id);
  if (found == runs_.end()) throw http::HttpError(404, "there is no such run; it may have been moved or removed");
  return read(*found->second);
}

Json FolderWatch::with_sweep(const std::string& id, const std::function<Json(WatchedSweep&)>& read) {
  const std::lock_guard lock(mutex_);
  const auto found = sweeps_.find(id);
  if (found == sweeps_.end()) throw http::HttpError(404, "there is no such sweep; it may have been moved or removed");
  return read(*found->second);
}

Json FolderWatch::alerts_json() const {
  std::vector<std::pair<double, Json>> all;
  for (const auto& [id, run] : runs_) {
    for (const Alert& alert : run->alerts())
      all.emplace_back(alert.time, alert_json(alert, id, run->place().name, true));
  }
  for (const auto& [id, alert] : sweep_alerts_) {
    const auto sweep = sweeps_.find(id);
    if (sweep != sweeps_.end()) all.emplace_back(alert.time, alert_json(alert, id, sweep->second->place().name, false));
  }
  std::ranges::stable_sort(all, [](const auto& a, const auto& b) { return a.first > b.first; });
  Json out = Json::array();
  for (std::size_t i = 0; i < std::min(all.size(), kAlertsShown); ++i) out.push_back(std::move(all[i].second));
  return out;
}

std::string FolderWatch::overview() const {
  const std::lock_guard lock(mutex_);
  Json out{{"runs", Json::array()}, {"sweeps", Json::array()}, {"alerts", alerts_json()}, {"cut", cut_}};
  for (const auto& [id, run] : runs_) {
    Json json = run->summary_json();
    json["spark"] = run->spark_json(kSparkPoints);
    out["runs"].push_back(std::move(json));
  }
  for (const auto& [id, sweep] : sweeps_) out["sweeps"].push_back(sweep->summary_json());
  return observe::line_of(out);
}

std::size_t FolderWatch::runs() const {
  const std::lock_guard lock(mutex_);
  return runs_.size();
}
std::size_t FolderWatch::experiments() const {
  const std::lock_guard lock(mutex_);
  return sweeps_.size();
}

void FolderWatch::collect(http::Samples& samples) const {
  const std::lock_guard lock(mutex_);
  const double now = wall_seconds();
  for (const auto& [id, run] : runs_) {
    const RunSummary& summary = run->summary();
    const http::Labels labels{{"run", run->place().name}};
    http::Labels with_state = labels;
    with_state.emplace_back("state", std::string(name(summary.state)));
    samples.gauge("trireme_run_state", "1 for the state that the run is in", with_state, 1);
    if (!summary.last) continue;
    const StepRow& last = *summary.last;
    samples.gauge("trireme_step", "Training steps done", labels, static_cast<double>(summary.step));
    samples.gauge("trireme_loss", "Loss of the last step", labels, last.loss);
    samples.gauge("trireme_grad_norm", "Global gradient norm of the last step, before clipping", labels,
                  last.grad_norm);
    samples.gauge("trireme_learning_rate", "Learning rate of the last step", labels, last.lr);
    samples.counter("trireme_tokens_total", "Tokens trained on", labels, last.tokens);
    samples.gauge("trireme_tokens_per_second", "Throughput, the median of the last steps", labels,
                  summary.typical_tokens_per_s);
    if (std::isfinite(last.mfu))
      samples.gauge("trireme_mfu", "Model FLOPs utilisation of the last step", labels, last.mfu);
    if (std::isfinite(last.noise_scale))
      samples.gauge("trireme_noise_scale_tokens", "Gradient noise scale: the batch beyond which more brings little",
                    labels, last.noise_scale);
    if (!run->is_active()) continue;
    const Json ranks = run->ranks_json(now);
    for (const Json& rank : ranks["ranks"]) {
      for (const auto& [use, bytes] : rank["memory"].items()) {
        if (!bytes.is_number()) continue;
        samples.gauge("trireme_memory_bytes", "Memory by rank and use, the most so far",
                      {{"run", run->place().name}, {"rank", std::to_string(rank["rank"].get<int>())}, {"label", use}},
                      bytes.get<double>());
      }
      for (const Json& sent : rank["sent"]) {
        samples.counter("trireme_comm_bytes_total", "Bytes that a rank has sent to others since its process began",
                        {{"run", run->place().name},
                         {"rank", std::to_string(rank["rank"].get<int>())},
                         {"group", sent["group"].get<std::string>()},
                         {"op", sent["op"].get<std::string>()}},
                        sent["bytes"].get<double>());
      }
    }
  }
  for (const auto& [id, sweep] : sweeps_) {
    if (sweep->overview() == nullptr) continue;
    for (const experiment::TrialView& trial : sweep->overview()->trials) {
      samples.gauge("trireme_trial_state", "1 for the state that the trial is in",
                    {{"experiment", sweep->place().name},
                     {"trial", std::to_string(trial.trial)},
                     {"state", std::string(name(trial.state))}},
                    1);
    }
  }
}

}  // namespace trireme::dashboard
