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
  std::optional<Sized> best;
  for (int size = gpus; size >= 1; size /= 2) {
    std::optional<Sized> sized = try_size(hardware, job, size, options);
    if (!sized) continue;
    const double rate = sized->tokens_per_second(job);
    if (objective == Objective::kSmallest) {
      if (days_for(tokens, rate) <= days) best = std::move(sized);  // sizes only get smaller
    } else if (!best || rate / size > best->tokens_per_second(job) / best->gpus) {
      best = std::move(sized);
    }
  }
  return best;
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
