#include "trireme/science/tasks/emergence.h"

#include <algorithm>
#include <cmath>

namespace trireme::science {

Sharpness sharpness_of(std::vector<ScaledValue> points, const SharpnessOptions& options) {
  Sharpness result;
  if (points.size() < 2) return result;
  std::sort(points.begin(), points.end(), [](const auto& one, const auto& other) { return one.scale < other.scale; });
  const double sign = options.higher_is_better ? 1 : -1;
  // The best so far: a metric that falls back by noise does not begin its rise again.
  std::vector<double> best;
  for (const ScaledValue& point : points)
    best.push_back(best.empty() ? sign * point.value : std::max(best.back(), sign * point.value));
  result.rise = best.back() - best.front();
  if (result.rise > 0) {
    const auto crossing = [&](double share) {
      const double level = best.front() + share * result.rise;
      std::size_t i = 1;
      while (best[i] < level) ++i;
      const double part = best[i] == best[i - 1] ? 0 : (level - best[i - 1]) / (best[i] - best[i - 1]);
      const double from = std::log10(points[i - 1].scale), to = std::log10(points[i].scale);
      return from + std::clamp(part, 0.0, 1.0) * (to - from);
    };
    result.width = crossing(0.9) - crossing(0.1);
  }
  const auto [low, high] = std::minmax_element(
      points.begin(), points.end(), [](const auto& one, const auto& other) { return one.value < other.value; });
  std::vector<double> steps;
  for (std::size_t i = 1; i < points.size(); ++i) {
    const double step = points[i].value - points[i - 1].value;
    steps.push_back(step * step);
  }
  std::sort(steps.begin(), steps.end());
  const std::size_t middle = steps.size() / 2;
  const double median = steps.size() % 2 == 1 ? steps[middle] : (steps[middle - 1] + steps[middle]) / 2;
  if (median > 0) {
    const double direction = high->scale > low->scale ? 1 : -1;
    result.score = direction * sign * (high->value - low->value) / std::sqrt(median);
  }
  if (options.chance) {
    const double level = sign * *options.chance + options.margin * std::abs(best.back() - sign * *options.chance);
    for (auto point = points.rbegin(); point != points.rend(); ++point) {
      const double surely = options.higher_is_better ? point->low : -point->high;
      if (surely <= level) break;
      result.leaves_chance = point->scale;
    }
  }
  return result;
}

}  // namespace trireme::science
