// bench/times.h -- samples of one side of a comparison: their median and quartiles.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <utility>
#include <vector>

#include "trireme/base/stopwatch.h"

namespace trireme::bench {

using Clock = std::chrono::steady_clock;

using trireme::seconds_since;

/// Of one call.
template <typename Body>
double seconds_of(Body&& body) {
  const auto begin = Clock::now();
  body();
  return seconds_since(begin);
}

struct Times {
  std::vector<double> seconds;
  double quantile(double q) const {
    std::vector<double> sorted = seconds;
    std::sort(sorted.begin(), sorted.end());
    return sorted.empty() ? 0 : sorted[static_cast<std::size_t>(q * static_cast<double>(sorted.size() - 1) + 0.5)];
  }
  double median() const { return quantile(0.5); }
  double least() const { return quantile(0); }
};

inline double median(std::vector<double> values) { return Times{std::move(values)}.median(); }

}  // namespace trireme::bench
