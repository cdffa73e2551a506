// observe/report/curve.h -- a line of a chart as points, and how many points become few without changing the picture.
//
// Depends on: std.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace trireme::observe {

struct Point {
  double x = 0, y = 0;
  bool operator==(const Point&) const = default;
};

/// By x, ascending. A y that is NaN or Inf is a gap.
using Curve = std::vector<Point>;

/// At most about `most` points: of each stretch the lowest and the highest, so that no spike is lost, and the first and
/// last of all. A stretch with a gap keeps one point of it.
Curve thinned(const Curve& curve, std::size_t most);

/// At most `most` points, each the mean of a stretch: for areas that are stacked, where extremes of the parts would not
/// belong together. All curves must have the same x.
std::vector<Curve> averaged(const std::vector<Curve>& curves, std::size_t most);

/// The mean around each point, over `width` to both sides where that much is known, and over less near the first point,
/// in proportion to the distance from it: curves that fall steeply at first are not dragged behind. Gaps are stepped
/// over.
Curve smoothed(const Curve& curve, double width);

/// The value below which `fraction` of the finite y lie; NaN without any.
double quantile(const Curve& curve, double fraction);
/// The same of plain values.
double quantile(std::vector<double> values, double fraction);

}  // namespace trireme::observe
