// optim/update.h -- from gradients to new weights: are they finite, how long are they, one step.
//
//   const UpdateResult result = update(*optimizer, {.learning_rate = now.learning_rate, .gradient_scale = 1.0 /
//   tokens,
//                                                   .loss_scale = &loss_scale});
//
// Reads each gradient once for the norm; everything that scales it (loss scale, 1 / tokens, clipping) is one factor
// that the optimizer's pass multiplies by.
// Depends on: base, spec, nn.
#pragma once

#include "trireme/base/error.h"
#include "trireme/optim/loss_scale.h"
#include "trireme/optim/optimizer.h"

namespace trireme::optim {

struct UpdateOptions {
  double learning_rate = 0;
  double gradient_scale = 1;        ///< without the loss scale
  LossScale* loss_scale = nullptr;  ///< what the loss was multiplied by: fp16
  const AcrossRanks* across = nullptr;
};

struct UpdateResult {
  bool taken = true;         ///< false: a gradient overflowed fp16, nothing has changed
  double gradient_norm = 0;  ///< over all parameters, unscaled, before clipping
  double clip_factor = 1;
};

/// Gradients without a loss scale that are NaN or Inf; nothing has changed.
class NonFiniteGradients : public Error {
 public:
  using Error::Error;
};

/// The first half of an update: everything that ranks must agree on. `step` is what the optimizer is then to be given,
/// where `result.taken`.
struct Decision {
  UpdateResult result;
  StepOptions step;
};
Decision decide(Optimizer& optimizer, const UpdateOptions& options);

/// Clips to the optimizer's optim.grad_clip_norm and steps. Gradients that are NaN or Inf skip the step where the loss
/// is scaled; elsewhere NonFiniteGradients names their parameters.
UpdateResult update(Optimizer& optimizer, const UpdateOptions& options);

}  // namespace trireme::optim
