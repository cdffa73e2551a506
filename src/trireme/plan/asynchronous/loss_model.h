// plan/asynchronous/loss_model.h -- what a gradient is worth: the model by which asynchronous and synchronous training
// are compared in time to loss, stated rather than hidden.
//
// A synchronous update of B minibatches makes progress B / (B + N), where N is the critical batch in minibatches (the
// gradient noise scale, McCandlish et al. 2018): each of them is worth 1 / (B + N). An update of one minibatch whose
// weights lacked s others is taken to be worth as much as one of the s + 1 in a synchronous batch: 1 / (s + 1 + N). So
// staleness costs what a larger batch costs, neither less nor more; losses fall as exp(-progress / progress_per_e).
// This leaves out that staleness can make a rate unstable: lr x staleness is to be kept as it was.
// Depends on: base.
#pragma once

#include <cmath>

namespace trireme::plan {

struct LossModel {
  double critical_batch = 64;  ///< N, minibatches
  double first_loss = 10, last_loss = 2;
  double progress_per_e = 40;  ///< until the loss has come within 1/e of its end

  /// Of one minibatch whose weights lacked `staleness` others.
  double worth(double staleness) const { return 1 / (staleness + 1 + critical_batch); }
  double loss(double progress) const {
    return last_loss + (first_loss - last_loss) * std::exp(-progress / progress_per_e);
  }
  /// Infinite below the last loss.
  double progress_until(double loss) const {
    return loss <= last_loss ? INFINITY : -progress_per_e * std::log((loss - last_loss) / (first_loss - last_loss));
  }
};

}  // namespace trireme::plan
