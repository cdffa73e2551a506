// observe/report/time_to_loss.h -- how soon each of several runs comes to a loss, in seconds of its steps.
//
// Steps of synchronous training, parameter servers and L-BFGS are worth different amounts and take different times:
// seconds to a loss are what they have in common.
// Depends on: run_reader, curve.
#pragma once

#include <span>
#include <vector>

#include "trireme/observe/report/curve.h"
#include "trireme/observe/step_record.h"

namespace trireme::observe {

/// The loss over the seconds of all steps so far.
Curve loss_by_time(std::span<const StepRecord> steps);

struct TimeToLoss {
  double share = 0;  ///< of the way from the first loss of all to the lowest that every run reaches
  double loss = 0;
  std::vector<double> seconds;  ///< by run
};

/// For half, three quarters, nine tenths and all of the way. Losses are means over as many tokens in every run: a
/// twentieth of the shortest one's, so that chance does not win. Nothing where runs have too few steps to say.
std::vector<TimeToLoss> times_to_loss(const std::vector<std::span<const StepRecord>>& runs);

}  // namespace trireme::observe
