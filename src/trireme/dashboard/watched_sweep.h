// dashboard/watched_sweep.h -- one experiment as the page shows it: parameters, trials, rungs, queue.
//
// Depends on: catalogue; experiment (overview); observe (JSON).
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "trireme/dashboard/catalogue.h"
#include "trireme/experiment/overview.h"
#include "trireme/observe/json_values.h"

namespace trireme::dashboard {

class WatchedSweep {
 public:
  explicit WatchedSweep(ExperimentPlace place);

  struct Changes {
    bool changed = false;
    std::optional<Alert> alert = {};
  };
  Changes look(double now);

  const ExperimentPlace& place() const { return place_; }
  /// Null when the folder could not be read; `why` says why.
  const experiment::Overview* overview() const { return overview_ ? &*overview_ : nullptr; }

  /// Name, search, state, counts of trials, the best.
  observe::Json summary_json() const;
  /// All of it: parameters, and every trial with setting and evaluations.
  observe::Json json() const;

 private:
  /// What of the folder decides whether it must be read again.
  struct Signature {
    std::uintmax_t journal = 0, bytes_wanted = 0;
    bool locked = false;
    std::size_t running = 0;
    bool operator==(const Signature&) const = default;
  };
  Signature signature() const;

  ExperimentPlace place_;
  std::optional<Signature> seen_;
  std::optional<experiment::Overview> overview_;
  std::string why_;
  bool first_ = true;
};

}  // namespace trireme::dashboard
