#include "trireme/dashboard/series.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace trireme::dashboard {

void Series::clear() { *this = Series(most_); }

Series::Bin Series::joined(const Bin& a, const Bin& b) {
  Bin out = a;
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
  Bin one{.low = point, .high = point, .gap = point, .first = x, .last = x};
  if (std::isfinite(y)) {
    one.sum = y;
    one.finite = 1;
  } else {
    one.gaps = 1;
  }
  if (in_last_ > 0 && in_last_ < length_) {
    bins_.back() = joined(bins_.back(), one);
    ++in_last_;
    return;
  }
  if (bins_.size() == most_) {
    for (std::size_t i = 0; i < most_ / 2; ++i) bins_[i] = joined(bins_[2 * i], bins_[2 * i + 1]);
    bins_.resize(most_ / 2);
    length_ *= 2;
  }
  bins_.push_back(one);
  in_last_ = 1;
}

observe::Curve Series::points() const {
  observe::Curve out;
  if (count_ == 0) return out;
  const auto add_point = [&](const observe::Point& point) {
    if (out.empty() || point.x > out.back().x) out.push_back(point);
  };
  add_point(first_);
  for (const Bin& bin : bins_) {
    std::array<observe::Point, 3> chosen{bin.low, bin.high, bin.gap};
    std::size_t size = 0;
    if (bin.finite > 0) size = 2;
    if (bin.gaps > 0) chosen[size++] = bin.gap;
    std::sort(chosen.begin(), chosen.begin() + static_cast<std::ptrdiff_t>(size),
              [](const observe::Point& a, const observe::Point& b) { return a.x < b.x; });
    for (std::size_t i = 0; i < size; ++i) add_point(chosen[i]);
  }
  add_point(last_);
  return out;
}

observe::Curve Series::means() const {
  observe::Curve out;
  for (std::size_t i = 0; i < bins_.size(); ++i) {
    const Bin& bin = bins_[i];
    const double mean =
        bin.finite > 0 ? bin.sum / static_cast<double>(bin.finite) : std::numeric_limits<double>::quiet_NaN();
    // The ends keep their place, so that an area fills its axis.
    const double x = i == 0 ? bin.first : i + 1 == bins_.size() ? bin.last : (bin.first + bin.last) / 2;
    out.push_back({x, mean});
  }
  return out;
}

}  // namespace trireme::dashboard
