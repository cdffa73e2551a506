#include "trireme/dashboard/series.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace trireme::dashboard {

void Series::clear() { *this = Series(most_); }

Series::Stretch Series::joined(const Stretch& a, const Stretch& b) {
  Stretch out = a;
  if (b.finite > 0 && (a.finite == 0 || b.low.y < a.low.y)) out.low = b.low;
  if (b.finite > 0 && (a.finite == 0 || b.high.y > a.high.y)) out.high = b.high;
  if (b.gaps > 0) out.gap = b.gap;
  out.last = b.last;
  out.sum += b.sum;
  out.finite += b.finite;
  out.gaps += b.gaps;
  return out;
}

void Series::add(double x, double y) {
  const observe::Point point{x, y};
  if (count_++ == 0) first_ = point;
  last_ = point;
  Stretch one{.low = point, .high = point, .gap = point, .first = x, .last = x};
  if (std::isfinite(y)) {
    one.sum = y;
    one.finite = 1;
  } else {
    one.gaps = 1;
  }
  if (in_last_ > 0 && in_last_ < length_) {
    stretches_.back() = joined(stretches_.back(), one);
    ++in_last_;
    return;
  }
  if (stretches_.size() == most_) {
    for (std::size_t i = 0; i < most_ / 2; ++i) stretches_[i] = joined(stretches_[2 * i], stretches_[2 * i + 1]);
    stretches_.resize(most_ / 2);
    length_ *= 2;
  }
  stretches_.push_back(one);
  in_last_ = 1;
}

observe::Curve Series::points() const {
  observe::Curve out;
  if (count_ == 0) return out;
  const auto add_point = [&](const observe::Point& point) {
    if (out.empty() || point.x > out.back().x) out.push_back(point);
  };
  add_point(first_);
  for (const Stretch& stretch : stretches_) {
    std::array<observe::Point, 3> chosen{stretch.low, stretch.high, stretch.gap};
    std::size_t size = 0;
    if (stretch.finite > 0) size = 2;
    if (stretch.gaps > 0) chosen[size++] = stretch.gap;
    std::sort(chosen.begin(), chosen.begin() + static_cast<std::ptrdiff_t>(size),
              [](const observe::Point& a, const observe::Point& b) { return a.x < b.x; });
    for (std::size_t i = 0; i < size; ++i) add_point(chosen[i]);
  }
  add_point(last_);
  return out;
}

observe::Curve Series::means() const {
  observe::Curve out;
  for (std::size_t i = 0; i < stretches_.size(); ++i) {
    const Stretch& stretch = stretches_[i];
    const double mean = stretch.finite > 0 ? stretch.sum / static_cast<double>(stretch.finite)
                                           : std::numeric_limits<double>::quiet_NaN();
    // The ends keep their place, so that an area fills its axis.
    const double x = i == 0                       ? stretch.first
                     : i + 1 == stretches_.size() ? stretch.last
                                                  : (stretch.first + stretch.last) / 2;
    out.push_back({x, mean});
  }
  return out;
}

}  // namespace trireme::dashboard
