#include "trireme/dashboard/watched_run.h"

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/base/mapped_file.h"
#include "trireme/dashboard/json_numbers.h"
#include "trireme/experiment/experiment.h"
#include "trireme/observe/heartbeat.h"

namespace trireme::dashboard {
namespace {

namespace fs = std::filesystem;
using observe::Json;

constexpr std::size_t kRecent = 33;               // steps whose median is a usual one
constexpr std::uint64_t kRecentBytes = 64 << 10;  // in which they stand
constexpr std::size_t kMostAlerts = 200;

double median_of(const std::deque<std::pair<double, double>>& values, double std::pair<double, double>::*part) {
  std::vector<double> all;
  for (const auto& value : values) {
    if (std::isfinite(value.*part)) all.push_back(value.*part);
  }
  if (all.empty()) return 0;
  std::ranges::nth_element(all, all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2));
  return all[all.size() / 2];
}

double modified_at(const fs::path& file) {
  struct stat status {};
  if (::stat(file.c_str(), &status) != 0) return 0;
  return static_cast<double>(status.st_mtim.tv_sec) + 1e-9 * static_cast<double>(status.st_mtim.tv_nsec);
}

}  // namespace

std::string_view name(RunState state) {
  constexpr std::string_view kNames[] = {"waiting", "starting", "running",  "hanging", "pausing",
                                         "paused",  "stopped",  "finished", "failed"};
  return kNames[static_cast<std::size_t>(state)];
}

struct WatchedRun::Detail {
  Series loss, grad_norm, lr, tokens, tokens_per_s, mfu, memory, seconds, elapsed, compute, data, comm, overhead,
      imbalance, noise_scale;
  std::map<std::string, Series> losses;
  std::vector<std::pair<std::string, double>> noise_scales;  // of layers, as they were told last
  double time = 0;

  void add(const StepRow& row) {
    const auto x = static_cast<double>(row.step);
    loss.add(x, row.loss);
    grad_norm.add(x, row.grad_norm);
    lr.add(x, row.lr);
    tokens.add(x, row.tokens);
    tokens_per_s.add(x, row.tokens_per_s);
    mfu.add(x, row.mfu);
    memory.add(x, row.memory);
    seconds.add(x, row.seconds);
    time += std::isfinite(row.seconds) ? row.seconds : 0;
    elapsed.add(x, time);
    compute.add(x, row.compute);
    data.add(x, row.data);
    comm.add(x, row.comm);
    overhead.add(x, row.overhead);
    for (const auto& [term, value] : row.losses) losses[term].add(x, value);
    if (std::isfinite(row.imbalance)) imbalance.add(x, row.imbalance);  // not every step tells loads
    if (std::isfinite(row.noise_scale)) noise_scale.add(x, row.noise_scale);
    if (!row.noise_scales.empty()) noise_scales = row.noise_scales;
  }
};

WatchedRun::WatchedRun(RunPlace place)
    : place_(std::move(place)), metrics_(place_.path / "metrics.jsonl"), events_(place_.path / "events.jsonl") {}

void WatchedRun::forget_steps() {
  loss_.clear();
  recent_.clear();
  if (detail_) detail_ = std::make_shared<Detail>();
  summary_.last.reset();
  summary_.step = 0;
}

void WatchedRun::note_recent(const StepRow& row) {
  recent_.emplace_back(row.seconds, row.tokens_per_s);
  if (recent_.size() > kRecent) recent_.pop_front();
  summary_.last = row;
  summary_.step = row.step;
}

void WatchedRun::take_event(std::string_view line, std::vector<Alert>* fresh) {
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return;
  std::optional<observe::EventRecord> event;
  try {
    event = observe::event_from(json);
  } catch (const IoError&) {
    return;  // a line that a power failure has damaged is no reason to show nothing
  }
  const auto step = event->step().value_or(0);
  if (event->kind == "resume") {
    const auto later = [&](const auto& entry) { return entry.first > step; };
    std::erase_if(validations_, later);
    std::erase_if(checkpoints_, later);
  }
  if (event->kind == "start" || event->kind == "resumed") {
    stop_why_.reset();
    summary_.steps = static_cast<std::int64_t>(event->number_of("steps").value_or(0));
    summary_.parameters = static_cast<std::int64_t>(event->number_of("parameters").value_or(0));
    summary_.ranks = std::max(1, static_cast<int>(event->number_of("ranks").value_or(1)));
    summary_.model = event->text_of("model").value_or("");
    summary_.precision = event->text_of("precision").value_or("");
    if (summary_.started == 0) summary_.started = event->time;
  }
  if (event->kind == "stop") stop_why_ = event->text_of("why").value_or("");
  if (event->kind == "eval") {
    if (const auto loss = event->number_of("loss")) validations_.emplace_back(step, *loss);
  }
  if (event->kind == "checkpoint") checkpoints_.emplace_back(step, event->number_of("seconds").value_or(0));
  auto alert = alert_of(*event);
  // A trial ends at every rung; its sweep tells when it is done.
  if (alert && alert->kind == "finished" && !place_.experiment.empty()) alert.reset();
  if (alert) {
    if (fresh != nullptr) fresh->push_back(*alert);
    alerts_.push_back(std::move(*alert));
    if (alerts_.size() > kMostAlerts) alerts_.erase(alerts_.begin());
  }
}

RunState WatchedRun::state_now(double now) {
  const bool stop_asked = observe::asked_to_stop(place_.path);
  if (locked_) {
    if (stop_asked) return RunState::kPausing;
    if (!summary_.last && heartbeat_ == 0) return RunState::kStarting;
    const Verdict verdict = verdict_of({.running = true,
                                        .silence = heartbeat_ > 0 ? std::optional(now - heartbeat_) : std::nullopt,
                                        .step_seconds = summary_.typical_seconds});
    summary_.why = verdict.state == Verdict::State::kHanging ? verdict.text : "";
    return verdict.state == Verdict::State::kHanging ? RunState::kHanging : RunState::kRunning;
  }
  summary_.why = "";
  if (stop_why_ == "finished") return RunState::kFinished;
  if (fs::exists(place_.path / "wanted")) return RunState::kStopped;
  if (stop_why_) return RunState::kPaused;
  if (!summary_.last && !events_.exists()) return RunState::kWaiting;
  summary_.why = "its process ended without a word; log.txt and the terminal may say why";
  return RunState::kFailed;
}

WatchedRun::Changes WatchedRun::look(double now) {
  Changes changes;
  const bool bulk = metrics_.offset() == 0;
  bool forgot = false;
  const auto change = metrics_.read(
      [&] {
        forget_steps();
        forgot = true;
      },
      [&](std::string_view line) {
        if (bulk || forgot) {  // only the end of what comes at once is looked at closely
          if (const auto loss = scan_loss(line)) loss_.add(static_cast<double>(loss->first), loss->second);
          if (detail_) {
            if (const auto row = scan_row(line)) detail_->add(*row);
          }
          return;
        }
        const auto row = scan_row(line);
        if (!row) return;
        loss_.add(static_cast<double>(row->step), row->loss);
        if (detail_) detail_->add(*row);
        note_recent(*row);
        changes.rows.push_back(*row);
      });
  if ((bulk || forgot) && change != LineTail::Change::kNone) {
    for (const std::string& line : last_lines(metrics_.file(), kRecentBytes)) {
      if (const auto row = scan_row(line)) note_recent(*row);
    }
    changes.restarted = true;
  }
  events_.read(
      [&] {
        validations_.clear();
        checkpoints_.clear();
        alerts_.clear();
        stop_why_.reset();
        summary_.started = 0;
      },
      [&](std::string_view line) { take_event(line, first_look_ ? nullptr : &changes.alerts); });

  locked_ = experiment::is_file_locked(place_.path / "lock");
  if (const double beat = modified_at(place_.path / "heartbeat.json"); beat != heartbeat_) {
    heartbeat_ = beat;
    if (const auto heartbeat = observe::read_heartbeat(place_.path)) summary_.saved = heartbeat->saved;
  }
  // A heartbeat is of the last step; a run that stops saves after it.
  if (!checkpoints_.empty()) summary_.saved = std::max(summary_.saved, checkpoints_.back().first);
  summary_.typical_seconds = median_of(recent_, &std::pair<double, double>::first);
  summary_.typical_tokens_per_s = median_of(recent_, &std::pair<double, double>::second);
  if (!validations_.empty()) {
    summary_.validation = validations_.back();
    summary_.best_validation = *std::ranges::min_element(
        validations_, {}, [](const auto& entry) { return std::isfinite(entry.second) ? entry.second : HUGE_VAL; });
  }
  const RunState before = summary_.state;
  summary_.state = state_now(now);
  summary_.updated = std::max({metrics_.modified(), events_.modified(), heartbeat_});
  const bool trains = summary_.state == RunState::kRunning || summary_.state == RunState::kPausing;
  summary_.eta_seconds =
      trains && summary_.steps > summary_.step && summary_.typical_seconds > 0
          ? std::optional(static_cast<double>(summary_.steps - summary_.step) * summary_.typical_seconds)
          : std::nullopt;
  const auto tell = [&](Severity severity, std::string kind, std::string text) {
    Alert alert{
        .time = now, .severity = severity, .kind = std::move(kind), .text = std::move(text), .step = summary_.step};
    alerts_.push_back(alert);
    if (!first_look_) changes.alerts.push_back(std::move(alert));
  };
  if (summary_.state == RunState::kHanging && before != RunState::kHanging)
    tell(Severity::kCritical, "hanging", summary_.why);
  if (summary_.state == RunState::kFailed && before != RunState::kFailed) {
    tell(Severity::kCritical, "failed", summary_.why);
    alerts_.back().time = summary_.updated;
  }
  if (const fs::path note = place_.path / "note.txt"; modified_at(note) != noted_) {
    noted_ = modified_at(note);
    summary_.note.clear();
    try {
      if (noted_ > 0) summary_.note = read_text_file(note, 64 << 10);
    } catch (const Error&) {  // it was taken away just now
    }
  }
  first_look_ = false;
  const std::string shown = observe::line_of(summary_json());
  changes.changed = shown != shown_ || change != LineTail::Change::kNone;
  shown_ = shown;
  return changes;
}

Json WatchedRun::summary_json() const {
  const RunSummary& s = summary_;
  const bool training =
      s.state == RunState::kRunning || s.state == RunState::kStarting || s.state == RunState::kHanging;
  const bool can_go_on = !locked_ && s.state != RunState::kFinished && fs::exists(place_.path / "recipe.toml");
  const bool is_trial = !place_.experiment.empty();
  Json out{{"id", place_.id},
           {"name", place_.name},
           {"state", name(s.state)},
           {"why", s.why},
           {"step", s.step},
           {"steps", s.steps},
           {"saved", s.saved},
           {"loss", s.last ? short_number(s.last->loss) : Json()},
           {"grad_norm", s.last ? short_number(s.last->grad_norm) : Json()},
           {"lr", s.last ? short_number(s.last->lr) : Json()},
           {"tokens", s.last ? Json(static_cast<std::int64_t>(s.last->tokens)) : Json()},
           {"tokens_per_s", short_number(s.typical_tokens_per_s)},
           {"mfu", s.last ? short_number(s.last->mfu) : Json()},
           {"memory", s.last ? Json(static_cast<std::int64_t>(s.last->memory)) : Json()},
           {"step_seconds", short_number(s.typical_seconds)},
           {"eta", s.eta_seconds ? Json(std::round(*s.eta_seconds)) : Json()},
           {"ranks", s.ranks},
           {"model", s.model},
           {"precision", s.precision},
           {"parameters", s.parameters},
           {"started", s.started},
           {"updated", std::floor(s.updated)},
           {"note", s.note}};
  if (is_trial) {
    out["experiment"] = place_.experiment;
    out["trial"] = place_.trial;
  }
  if (s.validation) {
    out["validation"] = {{"step", s.validation->first}, {"loss", short_number(s.validation->second)}};
    out["best_validation"] = {{"step", s.best_validation->first}, {"loss", short_number(s.best_validation->second)}};
  }
  // A trial is paused and resumed with its sweep, which would start it again.
  out["can"] = {{"pause", training && !is_trial},
                {"stop", !is_trial && s.state != RunState::kFinished && s.state != RunState::kStopped},
                {"resume", can_go_on && !is_trial},
                {"save", training}};
  return out;
}

Json WatchedRun::spark_json(std::size_t points) const { return curve_json(observe::thinned(loss_.points(), points)); }

Json WatchedRun::series_json(const std::vector<std::string>& names) {
  if (!detail_) {
    auto detail = std::make_shared<Detail>();
    metrics_.again([&](std::string_view line) {
      if (const auto row = scan_row(line)) detail->add(*row);
    });
    detail_ = std::move(detail);
  }
  Json out = Json::object();
  const auto wanted = [&](std::string_view curve) {
    return names.empty() || std::ranges::find(names, curve) != names.end();
  };
  const auto put = [&](const char* curve, const Series& series) {
    if (wanted(curve)) out[curve] = curve_json(series.points());
  };
  const Detail& d = *detail_;
  put("loss", d.loss);
  put("grad_norm", d.grad_norm);
  put("lr", d.lr);
  put("tokens", d.tokens);
  put("tokens_per_s", d.tokens_per_s);
  put("mfu", d.mfu);
  put("memory", d.memory);
  put("seconds", d.seconds);
  put("elapsed", d.elapsed);
  if (wanted("breakdown")) {
    out["breakdown"] = {{"compute", curve_json(d.compute.means())},
                        {"data", curve_json(d.data.means())},
                        {"comm", curve_json(d.comm.means())},
                        {"overhead", curve_json(d.overhead.means())}};
  }
  if (wanted("losses") && !d.losses.empty()) {
    for (const auto& [term, series] : d.losses) out["losses"][term] = curve_json(series.points());
  }
  if (d.imbalance.count() > 0) put("imbalance", d.imbalance);
  if (d.noise_scale.count() > 0) put("noise_scale", d.noise_scale);
  if (wanted("noise_scales")) {
    for (const auto& [layer, scale] : d.noise_scales) out["noise_scales"][layer] = short_number(scale);
  }
  if (wanted("validation")) {
    observe::Curve curve;
    for (const auto& [step, loss] : validations_) curve.push_back({static_cast<double>(step), loss});
    out["validation"] = curve_json(curve);
  }
  if (wanted("checkpoints")) {
    observe::Curve curve;
    for (const auto& [step, seconds] : checkpoints_) curve.push_back({static_cast<double>(step), seconds});
    out["checkpoints"] = curve_json(curve);
  }
  return out;
}

Json WatchedRun::recipe_json() const {
  const fs::path file = place_.path / "recipe.toml";
  return {{"recipe", fs::exists(file) ? Json(read_text_file(file, 4 << 20)) : Json()}};
}

}  // namespace trireme::dashboard
