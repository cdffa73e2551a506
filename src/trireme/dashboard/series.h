// dashboard/series.h -- a curve of any length in bounded memory, made point by point.
//
// Points are gathered in bins of equally many; when there are too many bins, neighbours are joined. Of each
// the lowest and the highest point are kept, so that no spike is lost, and the mean. Adding a point costs the same at
// step ten and at step ten million.
// Depends on: observe (curve).
#pragma once

#include <cstddef>
#include <vector>

#include "trireme/observe/report/curve.h"

namespace trireme::dashboard {

class Series {
 public:
  /// At most `bins` of them, an even number.
  explicit Series(std::size_t bins = 256) : most_(bins) {}

  /// By x, ascending. A y that is NaN or Inf is a gap.
  void add(double x, double y);
  void clear();
  std::size_t count() const { return count_; }

  /// First and last point, and of each bin the lowest, the highest and one gap: at most three times `bins`.
  observe::Curve points() const;
  /// The mean of each bin, at its middle: for areas that are stacked.
  observe::Curve means() const;

 private:
  struct Bin {
    observe::Point low, high, gap;
    double first = 0, last = 0;  // x
    double sum = 0;
    std::size_t finite = 0, gaps = 0;
  };
  static Bin joined(const Bin& a, const Bin& b);

  std::size_t most_;
  std::size_t length_ = 1;  // points in a bin
  std::size_t in_last_ = 0;
  std::size_t count_ = 0;
  observe::Point first_, last_;
  std::vector<Bin> bins_;
};

}  // namespace trireme::dashboard
