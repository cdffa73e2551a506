#include "trireme/schedule/waves.h"

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme::schedule {

WaveLaw WaveLaw::of(const Schedule& schedule) {
  TRIREME_CHECK(schedule.weights == WeightChoice::kWaves && schedule.update_every > 0,
                "schedule {} is not synchronised in waves", schedule.name);
  const auto workers = static_cast<int>(schedule.routes.size());
  return {.minibatches = schedule.update_every / workers, .clock_distance = schedule.clock_distance};
}

int WaveLaw::version(int minibatch) const { return std::max(0, (minibatch + 1) / minibatches - 1 - clock_distance); }

int WaveLaw::own_until(int minibatch) const { return std::max(0, minibatch - minibatches + 1); }

void StalenessMonitor::met(int minibatch, int waves, int own) {
  const int by_itself = minibatch - std::max(own, waves * law.minibatches);
  const int of_others = minibatch - waves * law.minibatches;
  local = std::max(local, by_itself);
  global = std::max(global, of_others);
  TRIREME_CHECK(by_itself <= law.local_bound(),
                "minibatch {} lacks {} updates of its own virtual worker, at most {} may", minibatch, by_itself,
                law.local_bound());
  TRIREME_CHECK(of_others <= law.global_bound(),
                "minibatch {} lacks {} updates of each other virtual worker, at most {} may", minibatch, of_others,
                law.global_bound());
}

int own_number(const Schedule& schedule, int micro) {
  const int each = WaveLaw::of(schedule).minibatches;
  return schedule.step_of(micro) * each + micro % each;
}

}  // namespace trireme::schedule
