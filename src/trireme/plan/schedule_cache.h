// plan/schedule_cache.h -- what a search asks of schedules again and again, each built and executed once.
//
// A search looks at many thousand configurations, which share a few hundred schedules. Above four micro-batches a rank
// a schedule that is emptied at the end of a step only repeats its middle: loads and idle times are those of that
// many, and passes are scaled. Equal to what whole schedules give (tests/plan/stages_test.cpp).
// Depends on: stages, makespan, schedule.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "trireme/plan/stages.h"
#include "trireme/schedule/times.h"

namespace trireme::plan {

/// Of one model.
class ScheduleCache {
 public:
  explicit ScheduleCache(const Job& job) : job_(job) {}

  struct Loads {
    std::vector<StageLoad> all;      ///< stage_loads() of the job with that configuration
    std::vector<StageLoad> fullest;  ///< of them, those that no other is as full as in every respect
  };
  const Loads& loads(const ParallelConfig& config);

  /// stage_table() of one step. Valid until the next one is asked for: tables are large, and few are kept.
  const schedule::Schedule& table(const ParallelConfig& config, std::int64_t micros);

  /// How long the ranks of a pipeline of equal stages stand still in a step, in units of one micro-batch's passes
  /// through a rank's share of the model, which take `times`. Ratios of passes are rounded to parts of 64.
  double idle(const ParallelConfig& config, const schedule::Times& times);

 private:
  /// Kind, ranks, chunks a rank, micro-batches, ranks of stages, whether stages are recomputed.
  using TableKey = std::tuple<std::string, int, int, std::int64_t, std::vector<int>, bool>;
  using LoadKey = std::pair<TableKey, std::string>;  // and the split
  using IdleKey = std::tuple<TableKey, int, int>;
  static TableKey key_of(const ParallelConfig& config, std::int64_t micros);
  double replayed_idle(const ParallelConfig& config, std::int64_t micros, const schedule::Times& times);

  const Job& job_;
  std::map<TableKey, schedule::Schedule> tables_;
  std::size_t kept_ = 0;                             // instructions in them
  std::map<LoadKey, std::vector<StageLoad>> built_;  // of a table as it was built
  std::map<LoadKey, Loads> loads_;
  std::map<IdleKey, double> idle_;  // of a table as it was built
};

}  // namespace trireme::plan
