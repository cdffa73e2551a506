// dashboard/watched_run.h -- one run as the page shows it, kept up to date by reading what its files have grown by.
//
// Depends on: alerts, line_tail, series, step_row; observe; experiment (whether a lock is held).
#pragma once

#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/dashboard/alerts.h"
#include "trireme/dashboard/line_tail.h"
#include "trireme/dashboard/series.h"
#include "trireme/dashboard/step_row.h"
#include "trireme/observe/json_values.h"

namespace trireme::dashboard {

enum class RunState : std::uint8_t {
  kWaiting,   ///< its folder is there, and nobody trains
  kStarting,  ///< a process, and no step yet
  kRunning,
  kHanging,
  kPausing,  ///< asked to save and end
  kPaused,   ///< saved; can go on
  kStopped,  ///< paused for good
  kFinished,
  kFailed,  ///< ended without a word
};
std::string_view name(RunState state);

/// Where a run is, and what it belongs to.
struct RunPlace {
  std::string id;  ///< in addresses: digits and letters that a client cannot make a path of
  std::string name;
  std::filesystem::path path;
  std::string experiment = {};  ///< id, where it is a trial
  int trial = -1;
};

struct RunSummary {
  RunState state = RunState::kWaiting;
  std::string why = {};
  std::int64_t step = 0, steps = 0, saved = -1;
  std::optional<StepRow> last = {};
  double typical_seconds = 0;  ///< of the last steps, the median; 0: not known
  double typical_tokens_per_s = 0;
  std::optional<double> eta_seconds = {};
  std::optional<std::pair<std::int64_t, double>> validation = {}, best_validation = {};  ///< step and loss
  std::string model = {}, precision = {}, note = {};
  std::int64_t parameters = 0;
  int ranks = 1;
  double started = 0, updated = 0;
};

class WatchedRun {
 public:
  explicit WatchedRun(RunPlace place);

  struct Changes {
    bool changed = false;    ///< the summary is another one
    bool restarted = false;  ///< steps were taken back, or many came at once: curves must be asked for again
    std::vector<StepRow> rows = {};
    std::vector<Alert> alerts = {};  ///< that are new
  };
  /// Reads what is new.
  Changes look(double now);

  const RunPlace& place() const { return place_; }
  const RunSummary& summary() const { return summary_; }
  const std::vector<Alert>& alerts() const { return alerts_; }
  bool is_active() const { return locked_; }

  observe::Json summary_json() const;
  /// The loss in at most `points` points.
  observe::Json spark_json(std::size_t points) const;
  /// Curves by name; `names` chooses, empty: all. The first call reads the file once more.
  observe::Json series_json(const std::vector<std::string>& names);
  observe::Json recipe_json() const;
  /// The last steps of every rank, memory by use, stragglers, verdict, timeline.
  observe::Json ranks_json(double now) const;
  /// Loads of experts in the last steps, by layer and by the ranks that have them; null where no step tells them.
  observe::Json experts_json() const;
  /// The last step of a pipeline as it ran; null without one. IoError, ConfigError where its file is damaged.
  observe::Json pipeline_json() const;

 private:
  struct Detail;  // all curves; only of runs that somebody opened
  void take_event(std::string_view line, std::vector<Alert>* fresh);
  void note_recent(const StepRow& row);
  void forget_steps();
  RunState state_now(double now);

  RunPlace place_;
  LineTail metrics_, events_;
  Series loss_;
  std::shared_ptr<Detail> detail_;                // shared: the type is not known here
  std::deque<std::pair<double, double>> recent_;  // seconds and tokens/s of the last steps
  std::vector<std::pair<std::int64_t, double>> validations_;
  std::vector<std::pair<std::int64_t, double>> checkpoints_;  // step, seconds
  std::vector<Alert> alerts_;
  RunSummary summary_;
  std::optional<std::string> stop_why_;
  bool locked_ = false, first_look_ = true;
  double heartbeat_ = 0;  // when it was last written
  double noted_ = 0;      // likewise, the note
  std::string shown_;     // the summary as it was last told
};

}  // namespace trireme::dashboard
