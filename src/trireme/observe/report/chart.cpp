#include "trireme/observe/report/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

#include "trireme/base/html.h"
#include "trireme/observe/json_values.h"

namespace trireme::observe {
namespace {

constexpr double kSide = 1000;  // of the SVG's own coordinates

/// Stacks the areas: each one's points become where its upper edge is. All have the same x.
void stack(std::vector<Series>& series) {
  std::vector<Curve> curves;
  for (const Series& one : series) curves.push_back(one.points);
  curves = averaged(curves, kMostPoints / 4);
  for (std::size_t i = 0; i < series.size(); ++i) {
    for (std::size_t at = 0; at < curves[i].size(); ++at) {
      double& y = curves[i][at].y;
      if (!std::isfinite(y)) y = 0;
      if (i > 0) y += curves[i - 1][at].y;
    }
    series[i].points = curves[i];
  }
}

bool has_areas(const Chart& chart) {
  return std::ranges::any_of(chart.series, [](const Series& one) { return one.look == Series::Look::kArea; });
}

/// "step 40", "log10 of parameters 5.2", "12.5 s".
std::string place_text(const Chart& chart, double x) {
  if (chart.by_time) return value_text(x, Quantity::kSeconds);
  return chart.x_name == "step" ? fmt::format("step {}", x) : fmt::format("{} {:.5g}", chart.x_name, x);
}

class Drawing {
 public:
  Drawing(const Chart& chart, Axis x, Axis y, bool clip)
      : chart_(chart), x_(std::move(x)), y_(std::move(y)), clip_(clip) {}

  std::string svg() {
    out_ = fmt::format(R"(<svg{2} viewBox="0 0 {0} {0}" preserveAspectRatio="none" role="img" aria-label="{1}">)",
                       kSide, escaped(summary()), clip_ ? " class=\"clip\"" : "");
    for (const auto& tick : x_.ticks) line("grid", at_x(tick.value), 0, at_x(tick.value), kSide);
    for (const auto& tick : y_.ticks) line("grid", 0, at_y(tick.value), kSide, at_y(tick.value));
    for (const double mark : chart_.marks) line("mark", at_x(mark), 0, at_x(mark), kSide);
    // Areas from the top one down: each covers what is below its edge, and the next one is drawn over it.
    for (auto one = chart_.series.rbegin(); one != chart_.series.rend(); ++one) {
      if (one->look == Series::Look::kArea) area(*one);
    }
    for (const auto look : {Series::Look::kFaint, Series::Look::kLine, Series::Look::kDots}) {
      for (const Series& one : chart_.series) {
        if (one.look == look) curve(one);
      }
    }
    line("base", 0, kSide, kSide, kSide);
    return out_ + "</svg>";
  }

 private:
  double at_x(double x) const { return x_.place(x) * kSide; }
  double at_y(double y) const { return std::clamp((1 - y_.place(y)) * kSide, -kSide, 2 * kSide); }

  void line(const char* kind, double x1, double y1, double x2, double y2) {
    fmt::format_to(std::back_inserter(out_), R"(<path class="{}" d="M{:.1f} {:.1f}L{:.1f} {:.1f}"/>)", kind, x1, y1, x2,
                   y2);
  }

  std::string path_of(const Curve& points) const {
    std::string path;
    bool begun = false;
    for (std::size_t i = 0; i < points.size(); ++i) {
      if (!std::isfinite(points[i].y)) {
        begun = false;
        continue;
      }
      fmt::format_to(std::back_inserter(path), "{}{:.1f} {:.1f}", begun ? 'L' : 'M', at_x(points[i].x),
                     at_y(points[i].y));
      const bool alone = !begun && (i + 1 == points.size() || !std::isfinite(points[i + 1].y));
      if (alone) path += "h0";  // a round end without a length is a dot
      begun = true;
    }
    return path;
  }

  void curve(const Series& series) {
    const std::string path = path_of(series.points);
    if (path.empty()) return;
    const char* kind = series.look == Series::Look::kFaint  ? "faint"
                       : series.look == Series::Look::kDots ? "thin"
                                                            : "line";
    fmt::format_to(std::back_inserter(out_), R"(<path class="{} c{}" d="{}"/>)", kind, series.color, path);
    if (series.look != Series::Look::kDots) return;
    std::string dots;
    for (const Point& point : series.points) {
      if (std::isfinite(point.y)) dots += fmt::format("M{:.1f} {:.1f}h0", at_x(point.x), at_y(point.y));
    }
    // A ring in the page's colour keeps dots apart from lines of the same colour.
    fmt::format_to(std::back_inserter(out_), R"(<path class="ring" d="{0}"/><path class="dots c{1}" d="{0}"/>)", dots,
                   series.color);
  }

  void area(const Series& series) {
    if (series.points.empty()) return;
    fmt::format_to(std::back_inserter(out_), R"(<path class="area f{}" d="{}L{:.1f} {}L{:.1f} {}Z"/>)", series.color,
                   path_of(series.points), at_x(series.points.back().x), kSide, at_x(series.points.front().x), kSide);
  }

  /// For those who hear the page.
  std::string summary() const {
    std::string text = chart_.title;
    for (const Series& one : chart_.series) {
      if (one.name.empty() || one.points.empty() || one.look == Series::Look::kArea) continue;
      const Point &first = one.points.front(), &last = one.points.back();
      text += fmt::format("; {}: {} at {}, {} at {}", one.name, value_text(first.y, chart_.quantity),
                          place_text(chart_, first.x), value_text(last.y, chart_.quantity), place_text(chart_, last.x));
    }
    return text;
  }

  const Chart& chart_;
  Axis x_, y_;
  bool clip_;  // some points lie outside
  std::string out_;
};

/// What the page's script shows where one points; numbers are those of the picture.
std::string data_of(const Chart& chart, const Axis& x, const Axis& y) {
  std::string out = fmt::format(
      R"({{"x":[{},{}],"y":[{:.6g},{:.6g}],"scale":{},"unit":"{}","count":{},"time":{},"of":"{}","series":[)", x.low,
      x.high, y.low, y.high, y.scale, y.unit, chart.quantity == Quantity::kCount, chart.by_time, chart.x_name);
  bool first = true;
  const Series* below = nullptr;
  for (const Series& one : chart.series) {
    if (one.name.empty()) continue;
    fmt::format_to(std::back_inserter(out), R"({}{{"name":{},"color":{},"points":[)", first ? "" : ",",
                   line_of(Json(one.name)), one.color);
    first = false;
    for (std::size_t i = 0; i < one.points.size(); ++i) {
      const bool area = one.look == Series::Look::kArea;
      const double value = one.points[i].y - (area && below != nullptr ? below->points[i].y : 0);
      if (std::isfinite(value)) {
        fmt::format_to(std::back_inserter(out), "{}[{},{:.6g}]", i == 0 ? "" : ",", one.points[i].x, value);
      } else {
        fmt::format_to(std::back_inserter(out), "{}[{},null]", i == 0 ? "" : ",", one.points[i].x);
      }
    }
    out += "]}";
    if (one.look == Series::Look::kArea) below = &one;
  }
  return script_json(out + "]}");
}

std::string legend_of(const Chart& chart) {
  std::string out;
  for (const Series& one : chart.series) {
    if (one.name.empty() || !one.listed) continue;
    const char* look = one.look == Series::Look::kFaint  ? "faint"
                       : one.look == Series::Look::kDots ? "dot"
                       : one.look == Series::Look::kArea ? "box"
                                                         : "line";
    out += fmt::format(R"(<li><i class="key {} k{}"></i>{}</li>)", look, one.color, escaped(one.name));
  }
  return fmt::format(R"(<ul class="legend">{}</ul>)", out);
}

}  // namespace

Range range_of(const Chart& chart) {
  double low = INFINITY, high = -INFINITY;
  Point highest{0, -INFINITY};
  std::vector<double> all;
  const bool areas = has_areas(chart);
  for (const Series& one : chart.series) {
    // Of stacked areas the top one's edge is the whole; what is usual must not be told from its parts.
    const bool counts = !areas || &one == &chart.series.back();
    for (const Point& point : one.points) {
      if (!std::isfinite(point.y)) continue;
      low = std::min(low, point.y);
      high = std::max(high, point.y);
      if (point.y > highest.y) highest = point;
      if (counts) all.push_back(point.y);
    }
  }
  if (all.empty()) return {};
  Range range{.low = chart.from_zero ? std::min(low, 0.0) : low, .high = high, .above = std::nullopt};
  const double most = quantile(all, 0.98), usual = most - range.low;
  if (usual > 0 && high - range.low > 4 * usual) {
    range.high = range.low + 1.5 * usual;
    range.above = highest;
  }
  return range;
}

std::string to_html(Chart chart) {
  const bool areas = has_areas(chart);
  if (areas) stack(chart.series);
  const Range range = range_of(chart);  // of all points: thinning would change what is usual
  if (!areas) {
    for (Series& one : chart.series) one.points = thinned(one.points, kMostPoints);
  }
  const Axis y = make_axis(range.low, range.high, chart.quantity, chart.wide ? 7 : 5, true);
  const Axis x = make_axis(chart.x_low, chart.x_high, chart.by_time ? Quantity::kSeconds : Quantity::kCount,
                           chart.wide ? 8 : 5, false);
  if (range.above) {
    chart.notes.push_back(fmt::format("Peaks lie above the chart, the highest is {} at {}.",
                                      value_text(range.above->y, chart.quantity), place_text(chart, range.above->x)));
  }
  std::string unit = chart.unit;
  if (!y.unit.empty()) unit += fmt::format("{}{}", unit.empty() ? "" : ", ", y.unit);
  if (chart.by_time) unit += fmt::format("{}over {}", unit.empty() ? "" : ", ", x.unit);
  std::string y_labels, x_labels, notes;
  for (const auto& tick : y.ticks) {
    y_labels += fmt::format(R"(<span style="top:{:.2f}%">{}</span>)", (1 - y.place(tick.value)) * 100, tick.label);
  }
  for (const auto& tick : x.ticks) {
    x_labels += fmt::format(R"(<span style="left:{:.2f}%">{}</span>)", x.place(tick.value) * 100, tick.label);
  }
  for (const std::string& note : chart.notes) notes += fmt::format("<p class=\"note\">{}</p>", escaped(note));
  return fmt::format(R"(<figure class="chart{}"><figcaption><b>{}</b>{}</figcaption>{}
<div class="plot"><div class="y">{}</div><div class="area-box" tabindex="0">{}<script type="application/json">{}</script></div><div class="x">{}</div></div>
{}</figure>
)",
                     chart.wide ? " wide" : "", escaped(chart.title),
                     unit.empty() ? "" : fmt::format(" <small>{}</small>", escaped(unit)),
                     chart.legend ? legend_of(chart) : "", y_labels,
                     Drawing(chart, x, y, range.above.has_value()).svg(), data_of(chart, x, y), x_labels, notes);
}

}  // namespace trireme::observe
