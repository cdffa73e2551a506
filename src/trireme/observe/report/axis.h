// observe/report/axis.h -- an axis: its range, its unit and its ticks at 1, 2 or 5 times a power of ten.
//
// Depends on: std.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::observe {

/// What the numbers are: decides how they are written.
enum class Quantity : std::uint8_t { kPlain, kCount, kBytes, kSeconds, kFraction };

struct Axis {
  double low = 0, high = 1;  // of the values
  double scale = 1;          // a value divided by it is what the labels show
  std::string unit;          // what that is: "GiB", "ms", "%"; empty for plain numbers
  struct Tick {
    double value;
    std::string label;  // without the unit, with "k" or "M" for counts
  };
  std::vector<Tick> ticks;  // ascending, inside [low, high]

  /// Where a value stands: 0 at low, 1 at high.
  double place(double value) const { return (value - low) / (high - low); }
};

/// About `ticks` of them. With `widen` the range grows to whole ticks, as a y axis wants; without it stays (x axes).
/// Takes any range: an empty one is widened, what is NaN or Inf is taken for 0 to 1.
Axis make_axis(double low, double high, Quantity quantity, int ticks, bool widen);

/// A value with its unit, to four digits: "12.35k", "3.2 GiB", "41.2 %".
std::string value_text(double value, Quantity quantity);

}  // namespace trireme::observe
