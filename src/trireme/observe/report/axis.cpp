#include "trireme/observe/report/axis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace trireme::observe {
namespace {

struct Step {
  double scale;
  const char* unit;
};

constexpr Step kPlain[] = {{1, ""}};
constexpr Step kCounts[] = {{1, ""}, {1e3, "k"}, {1e6, "M"}, {1e9, "G"}, {1e12, "T"}};
constexpr Step kBytes[] = {{1, "B"}, {0x1p10, "KiB"}, {0x1p20, "MiB"}, {0x1p30, "GiB"}, {0x1p40, "TiB"}};
constexpr Step kSeconds[] = {{1e-6, "µs"}, {1e-3, "ms"}, {1, "s"}, {60, "min"}, {3600, "h"}};
constexpr Step kFractions[] = {{0.01, "%"}};

Step step_for(double largest, Quantity quantity) {
  const auto of = [&](const auto& steps) {
    Step chosen = steps[0];
    for (const Step& step : steps) {
      // A number keeps the smaller unit until it has more than two of the larger: 90 s rather than 1.5 min.
      const double from = quantity == Quantity::kSeconds && step.scale >= 60 ? 2 * step.scale : step.scale;
      if (largest >= from) chosen = step;
    }
    return chosen;
  };
  switch (quantity) {
    case Quantity::kPlain:
      return of(kPlain);
    case Quantity::kCount:
      return of(kCounts);
    case Quantity::kBytes:
      return of(kBytes);
    case Quantity::kSeconds:
      return of(kSeconds);
    case Quantity::kFraction:
      return of(kFractions);
  }
  return of(kPlain);
}

/// The smallest of 1, 2, 5 times a power of ten that is not below `width`.
double nice_step(double width) {
  const double power = std::pow(10.0, std::floor(std::log10(width)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= width * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

/// As many digits as neighbours need to differ; powers of ten where zeros would fill the label.
std::string label_of(double value, double step, double largest) {
  if (std::abs(value) < step * 1e-6) return "0";
  if (largest < 1e-3 || largest >= 1e6) {
    const int power = static_cast<int>(std::floor(std::log10(std::abs(value)) + 1e-9));
    const double mantissa = value / std::pow(10.0, power);
    const int digits = std::max(0, power - static_cast<int>(std::floor(std::log10(step) + 1e-9)));
    return fmt::format("{:.{}f}e{}", mantissa, digits, power);
  }
  const int digits = std::max(0, -static_cast<int>(std::floor(std::log10(step) + 1e-9)));
  return fmt::format("{:.{}f}", value, digits);
}

}  // namespace

Axis make_axis(double low, double high, Quantity quantity, int ticks, bool widen) {
  if (!std::isfinite(low) || !std::isfinite(high)) low = 0, high = 1;
  if (high < low) std::swap(low, high);
  // Nothing can be told apart on a range that is as small as the numbers' last digits.
  const double least = std::max(std::abs(low), std::abs(high)) * 1e-9;
  if (high - low <= least) {
    const double room = low == 0 ? 1 : std::abs(low) * 0.1;
    if (low != 0) low -= room;
    high += room;
  }
  const Step unit = step_for(std::max(std::abs(low), std::abs(high)), quantity);
  // Counts carry their unit in each label; other units stand once, in the caption.
  const bool in_label = quantity == Quantity::kCount;
  Axis axis{.low = low / unit.scale,
            .high = high / unit.scale,
            .scale = unit.scale,
            .unit = in_label ? "" : unit.unit,
            .ticks = {}};
  const double step = nice_step((axis.high - axis.low) / std::max(ticks, 1));
  if (widen) {
    axis.low = std::floor(axis.low / step + 1e-9) * step;
    axis.high = std::ceil(axis.high / step - 1e-9) * step;
  }
  const double largest = std::max(std::abs(axis.low), std::abs(axis.high));
  const auto first = static_cast<std::int64_t>(std::ceil(axis.low / step - 1e-9));
  const auto last = static_cast<std::int64_t>(std::floor(axis.high / step + 1e-9));
  for (std::int64_t i = first; i <= last; ++i) {
    const double value = static_cast<double>(i) * step;
    std::string label = label_of(value, step, largest);
    if (in_label && label != "0") label += unit.unit;
    axis.ticks.push_back({value * unit.scale, std::move(label)});
  }
  axis.low *= unit.scale;
  axis.high *= unit.scale;
  return axis;
}

std::string value_text(double value, Quantity quantity) {
  if (std::isnan(value)) return "not a number";
  if (std::isinf(value)) return value > 0 ? "infinite" : "-infinite";
  const Step unit = step_for(std::abs(value), quantity);
  const bool close = quantity == Quantity::kCount || *unit.unit == '\0';  // "12k", but "3 GiB"
  return fmt::format("{:.4g}{}{}", value / unit.scale, close ? "" : " ", unit.unit);
}

}  // namespace trireme::observe
