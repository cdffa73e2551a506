#include "trireme/plan/sizes.h"

#include <algorithm>

namespace trireme::plan {
namespace {

constexpr Named<Objective> kObjectives[] = {
    {"time", Objective::kTime}, {"per-gpu", Objective::kPerGpu}, {"smallest", Objective::kSmallest}};
constexpr int kMostDevices = 1 << 20;

std::optional<Sized> try_size(const cost::Hardware& hardware, const Job& job, int gpus, const SearchOptions& options) {
  try {
    Sized sized{.gpus = gpus, .found = search(hardware, job, gpus, options)};
    if (sized.found.best.empty()) return std::nullopt;
    return sized;
  } catch (const config::ProblemsError&) {
    return std::nullopt;  // what is given does not go with this many: another size may do
  }
}

}  // namespace

std::span<const Named<Objective>> enum_names(std::type_identity<Objective>) { return kObjectives; }

double Sized::tokens_per_second(const Job& job) const { return job.tokens() / found.best.front().step_seconds(); }

double days_for(double tokens, double tokens_per_second) { return tokens / tokens_per_second / 86400; }

std::optional<Sized> choose_size(const cost::Hardware& hardware, const Job& job, int gpus, const SearchOptions& options,
                                 Objective objective, double tokens, double days) {
  if (objective == Objective::kTime) return try_size(hardware, job, gpus, options);
  // Of each size only its rate is asked; what else there is to tell, of the chosen one alone.
  SearchOptions rates = options;
  rates.decisions = rates.front = false;
  ScheduleCache schedules(job);
  if (!rates.schedules) rates.schedules = &schedules;
  int best = 0;
  double best_rate = 0;
  for (int size = gpus; size >= 1; size /= 2) {
    const std::optional<Sized> sized = try_size(hardware, job, size, rates);
    if (!sized) continue;
    const double rate =
        objective == Objective::kSmallest ? sized->tokens_per_second(job) : sized->tokens_per_second(job) / size;
    if (objective == Objective::kSmallest ? days_for(tokens, rate) > days : rate <= best_rate) continue;
    best = size, best_rate = rate;  // of those that keep the deadline the last, as sizes only get smaller
  }
  return best > 0 ? try_size(hardware, job, best, options) : std::nullopt;
}

std::optional<Sized> nearest_that_fits(const cost::Hardware& hardware, const Job& job, int gpus,
                                       const SearchOptions& options) {
  SearchOptions open = options;
  open.given.dp.reset();  // more devices are more copies, or more parts
  for (int size = std::max(1, gpus) * 2; size <= kMostDevices; size *= 2) {
    if (std::optional<Sized> sized = try_size(hardware, job, size, open)) return sized;
  }
  return std::nullopt;
}

}  // namespace trireme::plan
