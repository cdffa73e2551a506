#include "trireme/observe/report/time_to_loss.h"

#include <algorithm>
#include <cmath>

namespace trireme::observe {
namespace {

constexpr std::size_t kFewestSteps = 20;

/// Means over the last `window` tokens, from where there are so many.
Curve trailing_means(std::span<const StepRecord> steps, double window) {
  Curve curve;
  double seconds = 0, sum = 0, weight = 0;
  std::size_t first = 0;
  std::int64_t before = 0;
  std::vector<double> tokens;  // of each step
  for (std::size_t i = 0; i < steps.size(); ++i) {
    tokens.push_back(static_cast<double>(steps[i].tokens - before));
    before = steps[i].tokens;
    if (std::isfinite(steps[i].seconds)) seconds += steps[i].seconds;
    if (!std::isfinite(steps[i].loss)) {  // what follows is a new beginning
      first = i + 1;
      sum = weight = 0;
      continue;
    }
    sum += tokens[i] * steps[i].loss;
    weight += tokens[i];
    for (; weight - tokens[first] >= window; ++first) {
      sum -= tokens[first] * steps[first].loss;
      weight -= tokens[first];
    }
    if (weight >= window) curve.push_back({seconds, sum / weight});
  }
  return curve;
}

}  // namespace

Curve loss_by_time(std::span<const StepRecord> steps) {
  Curve curve;
  double seconds = 0;
  for (const StepRecord& step : steps) {
    if (std::isfinite(step.seconds)) seconds += step.seconds;
    curve.push_back({seconds, step.loss});
  }
  return curve;
}

std::vector<TimeToLoss> times_to_loss(const std::vector<std::span<const StepRecord>>& runs) {
  if (runs.size() < 2) return {};
  double fewest = INFINITY;
  for (const auto& steps : runs) {
    if (steps.size() < kFewestSteps) return {};
    fewest = std::min(fewest, static_cast<double>(steps.back().tokens));
  }
  if (!(fewest > 0)) return {};
  std::vector<Curve> curves;
  double begin = -INFINITY, end = -INFINITY;
  for (const auto& steps : runs) {
    curves.push_back(trailing_means(steps, fewest / 20));
    if (curves.back().empty()) return {};
    begin = std::max(begin, curves.back().front().y);
    end = std::max(end, std::ranges::min_element(curves.back(), {}, &Point::y)->y);
  }
  if (!(end < begin)) return {};
  std::vector<TimeToLoss> out;
  for (const double share : {0.5, 0.75, 0.9, 1.0}) {
    TimeToLoss row{.share = share, .loss = begin - share * (begin - end)};
    for (const Curve& curve : curves) {
      // Rounding must not keep the slowest from its own loss.
      const auto at = std::ranges::find_if(curve, [&](const Point& point) { return point.y <= row.loss + 1e-9; });
      row.seconds.push_back(at->x);
    }
    out.push_back(std::move(row));
  }
  return out;
}

}  // namespace trireme::observe
