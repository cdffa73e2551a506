// observe/lr_range.h -- what a learning-rate range test shows (Smith 2015): the loss over the rate, and which rate to
// take.
//
// A run with lr_schedule.kind = "range-test" multiplies its rate by the same factor in every step. While the rate is
// too low the loss hardly falls, then it falls fastest, then it rises. The loss is smoothed (decay 0.9, bias
// corrected).
// Depends on: base, step_record.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "trireme/observe/step_record.h"

namespace trireme::observe {

struct LrRange {
  struct Point {
    double lr = 0, loss = 0;  ///< smoothed
  };
  std::vector<Point> points;  ///< until the loss has risen to four times its lowest, or is not finite
  double steepest = 0;        ///< the rate at which the loss falls fastest over log(rate): a peak to start from
  double lowest = 0;          ///< the rate with the lowest loss: already too high
};

/// Nothing where the steps are of no range test: fewer than 10, or a rate that does not grow by one factor.
std::optional<LrRange> lr_range_of(std::span<const StepRecord> steps);

}  // namespace trireme::observe
