#include "trireme/observe/report/curve.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace trireme::observe {
namespace {

constexpr double kGap = std::numeric_limits<double>::quiet_NaN();

/// Where stretch `index` of `count` begins in `size` points.
std::size_t begin_of(std::size_t index, std::size_t count, std::size_t size) { return index * size / count; }

void add_extremes(Curve& out, std::span<const Point> stretch) {
  const Point *low = nullptr, *high = nullptr, *gap = nullptr;
  for (const Point& point : stretch) {
    if (!std::isfinite(point.y)) {
      gap = &point;
      continue;
    }
    if (low == nullptr || point.y < low->y) low = &point;
    if (high == nullptr || point.y > high->y) high = &point;
  }
  const Point* chosen[] = {low, high, gap};
  std::ranges::sort(chosen);  // pointers into one array: in the order of x; null first
  const Point* before = nullptr;
  for (const Point* point : chosen) {
    if (point != nullptr && point != before) out.push_back(*point);
    before = point;
  }
}

/// One pass of smoothed(): with a second one, a spike becomes a hill rather than a table.
Curve means_around(const Curve& curve, double width) {
  constexpr double kPerDistance = 1.0 / 6;  // of the distance from the first point
  std::vector<double> sums{0};
  std::vector<std::size_t> counts{0};  // of finite values before each point
  for (const Point& point : curve) {
    const bool finite = std::isfinite(point.y);
    sums.push_back(sums.back() + (finite ? point.y : 0));
    counts.push_back(counts.back() + (finite ? 1 : 0));
  }
  Curve out;
  out.reserve(curve.size());
  std::size_t begin = 0, end = 0;  // both only move on: x minus or plus its share of the distance grows with x
  for (const Point& point : curve) {
    const double reach = std::min(width, (point.x - curve.front().x) * kPerDistance);
    while (curve[begin].x < point.x - reach) ++begin;
    while (end < curve.size() && curve[end].x <= point.x + reach) ++end;
    const auto count = static_cast<double>(counts[end] - counts[begin]);
    out.push_back({point.x, std::isfinite(point.y) ? (sums[end] - sums[begin]) / count : kGap});
  }
  return out;
}

}  // namespace

Curve thinned(const Curve& curve, std::size_t most) {
  if (curve.size() <= std::max<std::size_t>(most, 4)) return curve;
  const std::size_t stretches = std::max<std::size_t>(most / 2, 2) - 1;
  const std::span<const Point> inner(curve.data() + 1, curve.size() - 2);
  Curve out{curve.front()};
  for (std::size_t i = 0; i < stretches; ++i) {
    const std::size_t begin = begin_of(i, stretches, inner.size()), end = begin_of(i + 1, stretches, inner.size());
    add_extremes(out, inner.subspan(begin, end - begin));
  }
  out.push_back(curve.back());
  return out;
}

std::vector<Curve> averaged(const std::vector<Curve>& curves, std::size_t most) {
  if (curves.empty() || curves[0].size() <= most) return curves;
  std::vector<Curve> out(curves.size());
  const std::size_t size = curves[0].size();
  for (std::size_t c = 0; c < curves.size(); ++c) {
    for (std::size_t i = 0; i < most; ++i) {
      const std::size_t begin = begin_of(i, most, size), end = begin_of(i + 1, most, size);
      double sum = 0;
      std::size_t count = 0;
      for (std::size_t at = begin; at < end; ++at) {
        if (!std::isfinite(curves[c][at].y)) continue;
        sum += curves[c][at].y;
        ++count;
      }
      // The ends keep their place, so that the area fills the axis.
      const std::size_t middle = i == 0 ? 0 : i + 1 == most ? size - 1 : (begin + end - 1) / 2;
      out[c].push_back({curves[c][middle].x, count == 0 ? kGap : sum / static_cast<double>(count)});
    }
  }
  return out;
}

Curve smoothed(const Curve& curve, double width) { return means_around(means_around(curve, width), width); }

double quantile(std::vector<double> values, double fraction) {
  std::erase_if(values, [](double value) { return !std::isfinite(value); });
  if (values.empty()) return kGap;
  const auto at = static_cast<std::ptrdiff_t>(fraction * static_cast<double>(values.size() - 1) + 0.5);
  std::ranges::nth_element(values, values.begin() + at);
  return values[static_cast<std::size_t>(at)];
}

double quantile(const Curve& curve, double fraction) {
  std::vector<double> values;
  values.reserve(curve.size());
  for (const Point& point : curve) values.push_back(point.y);
  return quantile(std::move(values), fraction);
}

}  // namespace trireme::observe
