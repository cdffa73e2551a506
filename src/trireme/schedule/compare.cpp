#include "trireme/schedule/compare.h"

#include <algorithm>

#include "trireme/schedule/check.h"
#include "trireme/schedule/replay.h"

namespace trireme::schedule {

namespace {

/// Steps after which a pipeline that is never emptied is in its steady state: each rank has then been through several
/// times as many micros as there are ranks to fill.
int steps_to_settle(const Shape& shape) { return std::max(4, (4 * shape.ranks + shape.micros - 1) / shape.micros); }

int most(const std::vector<int>& values) { return values.empty() ? 0 : *std::ranges::max_element(values); }

}  // namespace

double chunk_share(const Schedule& schedule) {
  return static_cast<double>(schedule.ranks.size()) / static_cast<double>(schedule.chunks());
}

double pass_share(const Schedule& schedule) { return chunk_share(schedule) / schedule.micro_parts; }

Measures measure(const Kind& kind, const Shape& shape, const Times& times) {
  Shape settled = shape;
  settled.steps = kind.steady ? steps_to_settle(shape) : 1;
  const int chunks = shape.ranks * shape.chunks_per_rank;
  settled.times = times.scaled(static_cast<double>(shape.ranks) / chunks);  // as the list scheduler places them
  const Schedule schedule = build(kind.name, settled);
  const double share = chunk_share(schedule);
  const ReplayOptions options{.times = times.scaled(pass_share(schedule))};
  const Timing timing = replay(schedule, options);

  Measures measures;
  if (kind.steady) {
    Shape longer = settled;
    longer.steps *= 2;
    const Timing more = replay(build(kind.name, longer), options);
    measures.bubble = steady_bubble(timing, more);
    measures.step_time = (more.makespan - timing.makespan) / settled.steps;
  } else {
    measures.bubble = timing.bubble();
    measures.step_time = timing.makespan;
  }
  const Report report = check(schedule);
  measures.memory = most(report.peak_in_flight) * pass_share(schedule);
  measures.versions = most(report.peak_versions);
  measures.weights = most(report.peak_weights) * share;
  measures.delay = report.delay;
  measures.slots = report.slots;
  // Formulas know computing times only.
  const bool plain =
      times.link == 0 && times.reduce == 0 && times.optimizer == 0 && times.stash == 0 && times.predict == 0;
  if (plain) measures.bubble_formula = kind.bubble(settled, times);
  measures.memory_formula = kind.memory(settled);
  measures.weights_formula = kind.weights(settled);
  return measures;
}

}  // namespace trireme::schedule
