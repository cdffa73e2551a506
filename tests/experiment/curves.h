// tests/experiment/curves.h -- a thousand synthetic learning curves, for searches to search.
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

#include "trireme/base/random.h"
#include "trireme/experiment/search.h"

namespace trireme::experiment {

/// Power laws L(t) = floor + gap (t + 1)^-rate with noise, in which fast starters often end high: ranks change along
/// the way, as they do in training.
class Curves {
 public:
  static constexpr int kCount = 1000;
  explicit Curves(std::uint64_t seed) {
    const Random random(seed, "curves");
    for (int i = 0; i < kCount; ++i) {
      const auto at = static_cast<std::uint64_t>(4 * i);
      const double quality = random.uniform(at);  // of the setting
      curves_.push_back({.floor = 1.5 + quality + 0.05 * random.normal(at),
                         .gap = 3 + 0.5 * random.normal(at + 1),
                         .rate = 0.35 + 0.1 * random.uniform(at + 2) + 0.15 * quality});
    }
  }

  /// The space: which curve.
  static Space space() { return parse_space(std::vector<std::string>{"curve=int(0,999)"}); }
  static int index_of(const Setting& setting) {
    int index = 0;
    const std::string& text = setting.at(0).value;
    std::from_chars(text.data(), text.data() + text.size(), index);
    return index;
  }
  double loss(int index, std::int64_t step) const {
    const Curve& curve = curves_[static_cast<std::size_t>(index)];
    const Random noise(99, "noise of curve " + std::to_string(index));
    return curve.floor + curve.gap * std::pow(static_cast<double>(step) + 1, -curve.rate) +
           0.02 * noise.normal(static_cast<std::uint64_t>(step));
  }
  double loss(const Setting& setting, std::int64_t step) const { return loss(index_of(setting), step); }
  /// 0: the best of all after `step` steps.
  int rank(int index, std::int64_t step) const {
    const double own = loss(index, step);
    int better = 0;
    for (int i = 0; i < kCount; ++i) better += loss(i, step) < own ? 1 : 0;
    return better;
  }

 private:
  struct Curve {
    double floor, gap, rate;
  };
  std::vector<Curve> curves_;
};

}  // namespace trireme::experiment
