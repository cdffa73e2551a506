// science/minimize.h -- the minimum of a smooth function of a few variables, by limited-memory BFGS.
//
// Depends on: std.
#pragma once

#include <functional>
#include <span>
#include <vector>

namespace trireme::science {

/// The value at `x`; writes the gradient there.
using SmoothFunction = std::function<double(std::span<const double> x, std::span<double> gradient)>;

struct MinimizeOptions {
  int iterations = 500;
  double tolerance = 1e-10;  ///< of the largest element of the gradient, relative to 1 + |value|
};

struct Minimum {
  std::vector<double> x;
  double value = 0;
  bool converged = false;
};

/// From `start` downhill; never worse than it. A point where the function is NaN or infinite is stepped back from.
Minimum minimize(const SmoothFunction& function, std::vector<double> start, const MinimizeOptions& options = {});

}  // namespace trireme::science
