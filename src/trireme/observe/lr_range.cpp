#include "trireme/observe/lr_range.h"

#include <algorithm>
#include <cmath>

namespace trireme::observe {

std::optional<LrRange> lr_range_of(std::span<const StepRecord> steps) {
  constexpr std::size_t kEnough = 10;
  constexpr double kDecay = 0.9, kDiverged = 4;
  if (steps.size() < kEnough || steps[0].lr <= 0) return std::nullopt;
  const double factor = steps[1].lr / steps[0].lr;
  if (!(factor > 1 + 1e-9)) return std::nullopt;
  for (std::size_t i = 1; i < steps.size(); ++i) {
    const double one = std::pow(steps[i].lr / steps[0].lr, 1 / static_cast<double>(i));
    if (std::abs(one / factor - 1) > 1e-6) return std::nullopt;
  }
  LrRange range;
  double average = 0, weight = 0, lowest = INFINITY;
  for (const StepRecord& step : steps) {
    if (!std::isfinite(step.loss)) break;
    average = kDecay * average + (1 - kDecay) * step.loss;
    weight = kDecay * weight + (1 - kDecay);
    const double loss = average / weight;
    if (range.points.size() > kEnough && loss > kDiverged * lowest) break;
    range.points.push_back({step.lr, loss});
    if (loss < lowest) lowest = loss, range.lowest = step.lr;
  }
  // Over a few steps to either side: one step's difference is noise.
  constexpr std::size_t kSide = 3;
  double fastest = 0;
  range.steepest = range.lowest / 10;
  for (std::size_t i = kSide; i + kSide < range.points.size(); ++i) {
    const LrRange::Point &before = range.points[i - kSide], &after = range.points[i + kSide];
    const double slope = (after.loss - before.loss) / std::log(after.lr / before.lr);
    if (slope < fastest) fastest = slope, range.steepest = range.points[i].lr;
  }
  return range;
}

}  // namespace trireme::observe
