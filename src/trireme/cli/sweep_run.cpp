#include "trireme/cli/sweep_run.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>

#include "trireme/base/cores.h"
#include "trireme/base/env.h"
#include "trireme/base/log.h"
#include "trireme/base/print.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/cli/program.h"
#include "trireme/experiment/sweep.h"

namespace trireme::cli {
namespace {

namespace fs = std::filesystem;
using experiment::Overview;

/// On a terminal the table is drawn over itself; elsewhere each result is a line of the log.
class LiveTable {
 public:
  LiveTable() : terminal_(::isatty(STDERR_FILENO) == 1 && log_level() <= LogLevel::kInfo) {
    if (terminal_) divert_log([this](std::string_view line) { messages_.emplace_back(line); });
  }
  ~LiveTable() {
    if (!terminal_) return;
    clear();
    say_messages();
    divert_log(nullptr);
  }
  LiveTable(const LiveTable&) = delete;
  LiveTable& operator=(const LiveTable&) = delete;

  void show(const std::vector<Overview>& overviews) {
    if (!terminal_) return tell(overviews);
    winsize size{};
    const bool known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0;
    const std::size_t rows = known ? size.ws_row : 24, columns = known ? size.ws_col : 80;
    std::string text;
    const std::size_t each = std::max<std::size_t>(rows / overviews.size(), 6) - 4;  // less its heading and the rest
    for (const Overview& overview : overviews) text += table_text(overview, each);
    clear();
    say_messages();
    for (const std::string& line : split(text, '\n')) {
      if (line.empty()) continue;
      std::cerr << line.substr(0, columns - 1) << "\n";
      ++lines_;
    }
    std::cerr.flush();
  }

 private:
  void clear() {
    if (lines_ > 0) std::cerr << "\x1b[" << lines_ << "A\x1b[J";
    lines_ = 0;
  }
  /// Above the table: between two drawings they would break it.
  void say_messages() {
    for (const std::string& message : messages_) std::cerr << trimmed(message) << "\n";
    messages_.clear();
  }
  /// What is new since the last time.
  void tell(const std::vector<Overview>& overviews) {
    told_.resize(overviews.size());
    for (std::size_t i = 0; i < overviews.size(); ++i) {
      for (const experiment::TrialView& trial : overviews[i].trials) {
        std::size_t& told = told_[i][trial.trial];
        if (trial.losses.size() <= told) continue;
        told = trial.losses.size();
        log_info("{}: trial {}: loss {:.4f} at step {}: {}", overviews[i].experiment.name, trial.trial,
                 trial.losses.rbegin()->second, trial.losses.rbegin()->first, to_text(trial.setting));
      }
    }
  }

  bool terminal_;
  int lines_ = 0;
  std::vector<std::string> messages_;
  std::vector<std::map<int, std::size_t>> told_;  // evaluations of each trial
};

}  // namespace

void SlotFlags::add_to(Command& command) {
  command
      .add_option("--slots", slots,
                  "slots of this machine (1), or with --slurm of each node (the tasks that the allocation has there): "
                  "trials share them, with the cores, and a GPU belongs to each where trials train on GPUs")
      .positive();
  command.add_flag("--slurm", slurm,
                   "slots are on the nodes of the Slurm allocation that this runs in (salloc, sbatch): trials are job "
                   "steps, started with srun");
  command.add_option("--mpi", mpi, "with --slurm: srun's --mpi, for trials with slots on several nodes")
      .type_name("TYPE")
      .show_default();
  command.add_option("--restarts", restarts, "restarts of a crashed trial that brought no new checkpoint")
      .not_negative();
  command.add_option("--store", store, "the store of experiments; default: experiments.db beside the folder");
}

std::string best_text(const Overview& overview) {
  if (!overview.best) return "no trial was evaluated\n";
  const experiment::Best& best = *overview.best;
  return fmt::format("best: trial {}, validation loss {:.4f} at step {}: {}\n  its run: {}\n", best.trial, best.value,
                     best.step, to_text(best.setting),
                     experiment::ExperimentFolder(overview.folder).run(best.trial, best.draw).string());
}

int run_experiments(const std::vector<fs::path>& folders, const SlotFlags& flags, Context& context) {
  experiment::SweepEnd end;
  {
    const int slots = flags.slots.value_or(1);
    launch::Allocation allocation;
    if (flags.slurm) {
      allocation = launch::slurm_allocation(flags.slots.value_or(0), &env);
      for (const launch::Allocation::Node& node : allocation.nodes) {
        log_info("node {}: {}, {} cores each", node.name, counted(static_cast<std::size_t>(node.slots), "slot"),
                 allocation.cores_per_slot());
      }
    }
    const int threads = flags.slurm ? allocation.cores_per_slot() : std::max(usable_cores() / slots, 1);
    LiveTable table;
    end = experiment::run_sweeps({.experiments = folders,
                                  .nodes = {slots},
                                  .allocation = std::move(allocation),
                                  .mpi = flags.mpi,
                                  .store = flags.store,
                                  .program = {.program = fs::read_symlink("/proc/self/exe").string(),
                                              .restarts = flags.restarts,
                                              .threads = threads},
                                  .show = [&](const std::vector<Overview>& all) { table.show(all); }});
  }
  if (end.running.departures > 0) {
    log_info("{}: {:.2f} had their slots at a time, {} each; {:.2f} waited for slots, {} each",
             counted(static_cast<std::size_t>(end.running.departures), "job"), end.running.length(),
             short_seconds(end.running.wait()), end.waiting.length(), short_seconds(end.waiting.wait()));
  }
  bool all_done = true;
  for (const Overview& overview : end.overviews) {
    fmt::print(context.out, "{}{}", table_text(overview), best_text(overview));
    if (overview.state == experiment::ExperimentState::kDone) continue;
    all_done = false;
    fmt::print(context.out, "{}; go on with: trireme experiments resume {}\n", name(overview.state),
               overview.folder.string());
  }
  return end.interrupted ? kExitInterrupted : all_done ? kExitFine : kExitFailed;
}

}  // namespace trireme::cli
