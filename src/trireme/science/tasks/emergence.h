// science/tasks/tasks/emergence.h -- how a metric grows over a family of models: by a jump or smoothly (Wei 2022,
// Schaeffer 2023).
//
// Two numbers say how sharp a curve is. Its width: decades of scale between 10 % and 90 % of its rise. And Schaeffer's
// emergence score, the rise over the root of the median squared step between neighbouring scales: a curve that lies
// flat and then jumps has a large one, a straight line of n steps has n. If a token is right with p = exp(-(c/N)^a), L
// tokens are with p^L = exp(-L (c/N)^a): the same curve moved by log10(L)/a decades, as wide as before. What makes it
// look emergent is that the models at hand begin where p has risen and p^L has not, which the score sees and the width
// does not.
// Depends on: std.
#pragma once

#include <optional>
#include <vector>

namespace trireme::science {

struct ScaledValue {
  double scale = 0;  ///< parameters, or FLOPs
  double value = 0;
  double low = 0, high = 0;  ///< 95 %
};

struct Sharpness {
  std::optional<double> width;          ///< decades; none where the metric does not improve
  double rise = 0;                      ///< from the worst to the best value
  std::optional<double> score;          ///< none where the median step is 0: flat but for a few jumps
  std::optional<double> leaves_chance;  ///< the smallest scale from which on every interval is beyond chance + margin
};

struct SharpnessOptions {
  bool higher_is_better = true;
  std::optional<double> chance = {};
  double margin = 0.05;  ///< of the range from chance to the best value
};
/// Of points in any order.
Sharpness sharpness_of(std::vector<ScaledValue> points, const SharpnessOptions& options);

}  // namespace trireme::science
