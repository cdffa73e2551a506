// observe/report/chart.h -- a chart as a value, and as HTML.
//
// The plot is an SVG that stretches to the width it is given; lines keep their thickness, and all labels are HTML
// beside it, so that they are as legible on a phone as on paper. The page's style and script (page.cpp) belong to it.
// Depends on: curve, axis, html.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trireme/observe/report/axis.h"
#include "trireme/observe/report/curve.h"

namespace trireme::observe {

struct Series {
  enum class Look : std::uint8_t {
    kLine,
    kFaint,  ///< behind a smoothed line
    kDots,   ///< few points, joined by a thin line
    kArea,   ///< stacked on the areas before it
  };
  std::string name;  // in the legend and where one points; empty: in neither
  int color = 0;     // number in the page's palette
  Look look = Look::kLine;
  Curve points;
  bool listed = true;  // in the legend, if it has a name
};

struct Chart {
  std::string title;
  Quantity quantity = Quantity::kPlain;
  std::string unit;  // shown after the title: "nats per token"; the axis' own unit is added
  bool from_zero = false;
  bool wide = false;  // takes a row of its own
  bool legend = true;
  std::vector<Series> series;
  double x_low = 0, x_high = 1;      // steps: the same for all charts of a page, but for those by time
  bool by_time = false;              // x is seconds
  std::string x_name = "step";       // what x is where it is no time
  std::vector<double> marks;         // steps at which the run went on after a stop
  std::vector<std::string> notes{};  // under the chart
};

/// Points that a chart is drawn with, per series.
inline constexpr std::size_t kMostPoints = 1200;

/// The range of y: all values, unless few lie so far out that nothing could be seen of the rest.
struct Range {
  double low = 0, high = 1;
  std::optional<Point> above;  // the highest point, where it lies outside
};
Range range_of(const Chart& chart);

std::string to_html(Chart chart);

}  // namespace trireme::observe
