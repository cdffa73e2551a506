// serve/scheduler_log.h -- what happened to a scheduler, as lines of text, and the same again from them.
//
//   LoggedScheduler scheduler(options, &file);         // used as a Scheduler
//   replay(file);                                      // an InternalError at the first plan that differs
//
// Every call is a line; a plan is written too, so that a replay compares it with what the same calls give now:
//   options tokens 64 sequences 8 chunk 16 prefix 1 hash 64 offload 0 groups 0x40
//   add 7 max 12 salt x prompt 5,17,3
//   plan 7:0+3s admits 7
//   done 7=12
//   cancel 7
// Depends on: base, scheduler.h.
#pragma once

#include <iosfwd>
#include <optional>
#include <string>

#include "trireme/serve/scheduler.h"

namespace trireme::serve {

class LoggedScheduler {
 public:
  /// `log` outlives it; null: nothing is written.
  explicit LoggedScheduler(SchedulerOptions options, std::ostream* log = nullptr);

  [[nodiscard]] std::optional<std::string> add(SequenceRequest request);
  bool cancel(RequestId id);
  void propose(RequestId id, std::vector<std::int64_t> drafts);
  StepPlan plan();
  std::vector<RequestId> complete(const StepPlan& plan, std::span<const StepResult> results);

  const Scheduler& scheduler() const { return scheduler_; }

 private:
  Scheduler scheduler_;
  std::ostream* log_;
};

struct Replayed {
  std::int64_t lines = 0, plans = 0;
};
/// A ConfigError for a line that is none of these.
Replayed replay(std::istream& log);

}  // namespace trireme::serve
