#include "trireme/experiment/sweep.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <numeric>
#include <set>
#include <thread>

#include "trireme/base/child_process.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/stopwatch.h"
#include "trireme/experiment/scheduler.h"
#include "trireme/experiment/store.h"
#include "trireme/observe/heartbeat.h"

namespace trireme::experiment {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

std::atomic<int> sweep_signal = 0;
void on_sweep_signal(int signal) { sweep_signal = signal; }

/// SIGINT and SIGTERM pause the sweep, while it lives.
class SweepSignals {
 public:
  SweepSignals() {
    sweep_signal = 0;
    struct sigaction action {};
    action.sa_handler = &on_sweep_signal;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, &before_int_);
    sigaction(SIGTERM, &action, &before_term_);
  }
  ~SweepSignals() {
    sigaction(SIGINT, &before_int_, nullptr);
    sigaction(SIGTERM, &before_term_, nullptr);
  }

 private:
  struct sigaction before_int_ {
  }, before_term_{};
};

/// A job that was asked for and has no result yet.
struct OpenJob {
  int id = 0;  // the scheduler's name for it; ascending, so older ones come first
  Job job;
  Grants grants;           // empty: waits for slots
  std::vector<int> slots;  // which ones of this machine; on nodes of an allocation Slurm knows
  std::unique_ptr<ChildProcess> process;
  Clock::time_point begun{};
  std::int64_t begun_at = 0;          // the step that it was at then
  QueueMeter::Nanoseconds since = 0;  // it waits, or has its slots
  bool ending = false;
};

/// One experiment while it is being run.
struct Live {
  explicit Live(const fs::path& path)
      : folder(path),
        experiment(folder.read()),
        lock(folder),
        journal(folder),
        search(make_search(experiment.search, experiment.options)) {}

  ExperimentFolder folder;
  Experiment experiment;
  ExperimentLock lock;
  JournalFile journal;
  std::unique_ptr<Search> search;
  std::vector<OpenJob> open;
  double seconds_per_step = kUnknownTime;  // as the last job measured it
  std::vector<int> changed;                // trials whose runs the store has not read again
  bool leaving = false;                    // asked to pause or stop
  bool left = false;                       // done, or nothing of it runs any more
};

std::int64_t step_of(const ExperimentFolder& folder, const Job& job) {
  const auto heartbeat = observe::read_heartbeat(folder.run(job.trial, job.draw));
  return std::clamp(heartbeat ? heartbeat->step : job.from, job.from, job.until);
}

class Sweep {
 public:
  explicit Sweep(const SweepOptions& options);
  SweepEnd go();

 private:
  void look_for_wishes();
  void ask_searches();
  bool schedule();
  void start(Live& live, OpenJob& open, const Grants& grants);
  OpenJob wait_for_slots(Job job);
  void to_waiting(OpenJob& open);
  void to_running(OpenJob& open);
  TrialPlace place_of(const Grants& grants) const;
  void ask_to_stop(Live& live, OpenJob& open) const;
  bool collect();
  void tell(Live& live, std::size_t index, const Result& result);
  void record();
  SchedulerState state() const;
  int free_slots() const;
  std::vector<Overview> overviews() const;

  const SweepOptions& options_;
  std::vector<int> nodes_;  // slots of each
  SweepSignals signals_;
  std::vector<std::unique_ptr<Live>> lives_;
  std::unique_ptr<Store> store_;
  bool imported_ = false;  // all runs, once
  int next_id_ = 0;
  QueueMeter waiting_, running_;
};

Sweep::Sweep(const SweepOptions& options) : options_(options), nodes_(options.nodes) {
  if (!options.allocation.nodes.empty()) {
    nodes_.clear();
    for (const launch::Allocation::Node& node : options.allocation.nodes) nodes_.push_back(node.slots);
  }
  TRIREME_CHECK(!options.experiments.empty(), "there is no experiment to run");
  for (const fs::path& path : options.experiments) {
    Live& live = *lives_.emplace_back(std::make_unique<Live>(path));
    live.folder.want(Wanted::kRunning);
    for (Job& job : replay(*live.search, live.folder.read_journal())) {
      live.open.push_back(wait_for_slots(std::move(job)));
    }
    if (!live.open.empty()) {
      log_info("{}: going on with {} that had no result", path.string(), counted(live.open.size(), "job"));
    }
  }
  store_ = std::make_unique<Store>(options.store.empty() ? store_beside(options.experiments.front()) : options.store);
}

OpenJob Sweep::wait_for_slots(Job job) {
  OpenJob open{.id = next_id_++, .job = std::move(job), .since = QueueMeter::now()};
  waiting_.arrive(open.since);
  return open;
}

void Sweep::to_running(OpenJob& open) {
  const QueueMeter::Nanoseconds now = QueueMeter::now();
  waiting_.depart(open.since, now);
  running_.arrive(now);
  open.since = now;
}

void Sweep::to_waiting(OpenJob& open) {
  const QueueMeter::Nanoseconds now = QueueMeter::now();
  running_.depart(open.since, now);
  waiting_.arrive(now);
  open.since = now;
}

int Sweep::free_slots() const {
  int free = std::accumulate(nodes_.begin(), nodes_.end(), 0);
  for (const auto& live : lives_) {
    for (const OpenJob& open : live->open) {
      for (const Grant& grant : open.grants) free -= grant.slots;
    }
  }
  return free;
}

/// Pauses and stops that somebody asked for, by a file in the folder or by a signal to us.
void Sweep::look_for_wishes() {
  for (const auto& live : lives_) {
    if (live->left || live->leaving) continue;
    if (sweep_signal == 0 && live->folder.wanted() == Wanted::kRunning) continue;
    live->leaving = true;
    for (OpenJob& open : live->open) {
      if (open.process) ask_to_stop(*live, open);
    }
  }
}

void Sweep::ask_to_stop(Live& live, OpenJob& open) const {
  open.ending = true;
  observe::ask_to_stop(live.folder.run(open.job.trial, open.job.draw));
}

/// A search is asked only when there is somebody to do the job: what it answers later may be better.
void Sweep::ask_searches() {
  int free = free_slots();
  for (const auto& live : lives_) {
    if (live->leaving || live->left) continue;
    const bool waits = std::ranges::any_of(live->open, [](const OpenJob& open) { return open.grants.empty(); });
    if (waits || free < live->experiment.slots_per_trial) continue;
    if (const std::optional<Job> job = live->search->next()) {
      live->journal.append(*job);
      live->open.push_back(wait_for_slots(*job));
      free -= live->experiment.slots_per_trial;
    } else if (live->open.empty()) {
      live->left = true;
    }
  }
}

SchedulerState Sweep::state() const {
  SchedulerState state{.nodes = nodes_, .weights = {}, .tasks = {}};
  for (const auto& live : lives_) {
    const int experiment = static_cast<int>(state.weights.size());
    state.weights.push_back(live->experiment.weight);
    for (const OpenJob& open : live->open) {
      if (open.grants.empty() && live->leaving) continue;
      // A run that another life of ours left saves and ends by itself; until then its folder is not free.
      const fs::path lock = live->folder.run(open.job.trial, open.job.draw) / "lock";
      if (open.grants.empty() && is_file_locked(lock)) continue;
      const std::int64_t at = open.process ? step_of(live->folder, open.job) : open.job.from;
      state.tasks.push_back(
          {.id = open.id,
           .experiment = experiment,
           .slots = live->experiment.slots_per_trial,
           .priority = live->experiment.priority,
           .submitted = open.id,
           .seconds = live->seconds_per_step * static_cast<double>(std::max<std::int64_t>(open.job.until - at, 1)),
           .grants = open.grants,
           .ending = open.ending});
    }
  }
  return state;
}

/// Carries out what the scheduler decides; true: something was started.
bool Sweep::schedule() {
  const Decision decision = decide(state());
  const auto with = [&](int id, auto&& act) {
    for (const auto& live : lives_) {
      const auto open = std::ranges::find(live->open, id, &OpenJob::id);
      if (open != live->open.end()) return act(*live, *open);
    }
  };
  for (const int id : decision.impossible) {
    with(id, [&](Live& live, OpenJob&) {
      throw ConfigError(fmt::format("a trial of {} needs {} slots, and the nodes have {}", live.experiment.name,
                                    live.experiment.slots_per_trial, fmt::join(nodes_, ", ")),
                        "give more --slots");
    });
  }
  for (const int id : decision.preempt) {
    with(id, [&](Live& live, OpenJob& open) {
      log_info("{}: trial {} saves and gives its slots back", live.experiment.name, open.job.trial);
      ask_to_stop(live, open);
    });
  }
  for (const Decision::Start& begun : decision.start) {
    with(begun.task, [&](Live& live, OpenJob& open) { start(live, open, begun.grants); });
  }
  return !decision.start.empty();
}

/// Slots of this machine that nobody has, lowest first; or what a trial gets of nodes of an allocation.
TrialPlace Sweep::place_of(const Grants& grants) const {
  TrialPlace place{.mpi = options_.mpi};
  const launch::Allocation& allocation = options_.allocation;
  for (const Grant& grant : grants) {
    if (allocation.nodes.empty()) {
      std::set<int> taken;
      for (const auto& live : lives_) {
        for (const OpenJob& other : live->open) taken.insert(other.slots.begin(), other.slots.end());
      }
      for (int slot = 0, left = grant.slots; left > 0; ++slot) {
        if (taken.contains(slot)) continue;
        place.slots.push_back(slot);
        --left;
      }
    } else {
      place.nodes.push_back({.name = allocation.nodes[static_cast<std::size_t>(grant.node)].name,
                             .slots = grant.slots,
                             .cores = grant.slots * allocation.cores_per_slot(),
                             .megabytes = grant.slots * allocation.megabytes_per_slot()});
    }
  }
  return place;
}

void Sweep::start(Live& live, OpenJob& open, const Grants& grants) {
  const Job& job = open.job;
  TrialPlace place = place_of(grants);
  TrialCommand command = trial_command(live.folder, live.experiment, job, options_.program, place);
  if (command.words.empty()) {
    log_warn("trial {} cannot be trained: {}", job.trial, command.why);
    const auto index = static_cast<std::size_t>(&open - live.open.data());
    tell(live, index, {.trial = job.trial, .step = job.from, .end = Result::End::kInvalid});
    return;
  }
  if (job.copy_of) {
    const Journal journal = live.folder.read_journal();
    int draw = 0;
    for (const auto& entry : journal) {
      if (const Job* other = std::get_if<Job>(&entry); other != nullptr && other->trial == *job.copy_of)
        draw = other->draw;
    }
    copy_run(live.folder.run(*job.copy_of, draw), live.folder.run(job.trial, job.draw));
  }
  to_running(open);
  open.grants = grants;
  open.slots = std::move(place.slots);
  open.begun = Clock::now();
  open.begun_at = step_of(live.folder, job);
  open.process = std::make_unique<ChildProcess>(
      std::move(command.words),
      ChildProcess::Options{.output = live.folder.log(job.trial, job.draw), .directory = live.experiment.directory});
}

/// Processes that have ended; true: there was one.
bool Sweep::collect() {
  bool some = false;
  for (const auto& live : lives_) {
    for (std::size_t i = live->open.size(); i-- > 0;) {
      OpenJob& open = live->open[i];
      if (!open.process) continue;
      const std::optional<int> status = open.process->poll();
      if (!status) {
        if (open.ending) ask_to_stop(*live, open);  // again: what starts just then takes an old wish back
        continue;
      }
      some = true;
      if (*status == 127) {
        throw ConfigError(fmt::format("{} cannot be started", options_.program.program),
                          fmt::format("see {}", live->folder.log(open.job.trial, open.job.draw).string()));
      }
      const std::int64_t steps = open.job.until - open.begun_at;
      if (*status == 0 && steps > 0) live->seconds_per_step = seconds_since(open.begun) / static_cast<double>(steps);
      if (const auto result = result_of(live->folder, open.job, *status)) {
        tell(*live, i, *result);
      } else {  // it has saved, and waits for slots again
        live->changed.push_back(open.job.trial);
        to_waiting(open);
        open.process.reset();
        open.grants.clear();
        open.slots.clear();
        open.ending = false;
      }
    }
    if (live->leaving &&
        std::ranges::none_of(live->open, [](const OpenJob& open) { return open.process != nullptr; })) {
      live->left = true;
    }
  }
  return some;
}

void Sweep::tell(Live& live, std::size_t index, const Result& result) {
  live.journal.append(result);
  live.search->tell(result);
  live.changed.push_back(result.trial);
  const OpenJob& open = live.open[index];
  (open.grants.empty() ? waiting_ : running_).depart(open.since);
  live.open.erase(live.open.begin() + static_cast<std::ptrdiff_t>(index));
}

std::vector<Overview> Sweep::overviews() const {
  std::vector<Overview> out;
  for (const auto& live : lives_) {
    std::vector<int> running;
    for (const OpenJob& open : live->open) {
      if (open.process) running.push_back(open.job.trial);
    }
    Overview overview = overview_of(live->folder, &running);
    if (live->left && overview.state == ExperimentState::kRunning) overview.state = ExperimentState::kPaused;
    for (TrialView& trial : overview.trials) {
      const auto open = std::ranges::find(live->open, trial.trial, [](const OpenJob& one) { return one.job.trial; });
      if (open != live->open.end()) trial.step = step_of(live->folder, open->job);
    }
    out.push_back(std::move(overview));
  }
  return out;
}

/// Into the store. It is an index: a sweep does not end for want of it.
void Sweep::record() {
  const std::vector<Overview> all = overviews();
  try {
    for (std::size_t i = 0; i < lives_.size(); ++i) {
      store_->import(all[i], imported_ ? &lives_[i]->changed : nullptr);
      lives_[i]->changed.clear();
      std::vector<std::pair<int, Grant>> held;
      for (const OpenJob& open : lives_[i]->open) {
        for (const Grant& grant : open.grants) held.emplace_back(open.job.trial, grant);
      }
      store_->hold_slots(all[i].folder, held);
    }
    imported_ = true;
  } catch (const IoError& error) {
    log_warn("{}; the sweep goes on, its folders hold everything", error.message());
  }
  if (options_.show) options_.show(all);
}

SweepEnd Sweep::go() {
  auto shown = Clock::now();
  record();
  while (true) {
    bool changed = collect();
    look_for_wishes();
    for (bool again = true; again;) {
      ask_searches();
      again = schedule();
      changed = changed || again;
    }
    const bool over = std::ranges::all_of(lives_, [](const auto& live) { return live->left; });
    if (changed || over) {
      record();
      shown = Clock::now();
    } else if (options_.show && Clock::now() - shown > options_.show_every) {
      options_.show(overviews());
      shown = Clock::now();
    }
    if (over) {
      return {.interrupted = sweep_signal != 0,
              .overviews = overviews(),
              .waiting = waiting_.read(),
              .running = running_.read()};
    }
    std::this_thread::sleep_for(options_.look);
  }
}

}  // namespace

SweepEnd run_sweeps(const SweepOptions& options) { return Sweep(options).go(); }

}  // namespace trireme::experiment
