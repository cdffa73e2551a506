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

#include <cstdint>
#include <functional>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/optim/optimizer.h"
#include "trireme/spec/optim.h"

namespace trireme::nn {
class State;
}

namespace trireme::optim {

/// The factor that keeps fp16's small gradients from vanishing (Micikevicius et al. 2017).
///
/// The loss is multiplied by scale() before backward; the update divides by it. When a gradient overflows, the step is
/// skipped and the scale falls; after so many good steps in a row it grows.
class LossScale {
 public:
  explicit LossScale(const spec::LossScaleConfig& config) : config_(config), scale_(config.initial) {}

  double scale() const { return scale_; }
  /// After a backward pass: whether its step is to be taken. Every rank must say the same; a norm summed over ranks
  /// does. An Error when gradients overflow at the minimum already.
  bool take(bool finite);

  std::int64_t skipped() const { return skipped_; }        ///< in the whole run
  std::int64_t good_steps() const { return good_steps_; }  ///< since the last change

  /// "loss_scale": all of the above.
  void add_state(nn::State& state);

 private:
  spec::LossScaleConfig config_;
  double scale_;
  std::int64_t good_steps_ = 0, skipped_ = 0;
};

struct UpdateOptions {
  double learning_rate = 0;
  double gradient_scale = 1;        ///< without the loss scale
  LossScale* loss_scale = nullptr;  ///< what the loss was multiplied by: fp16
  const AcrossRanks* across = nullptr;
  /// With a loss scale, where copies of the model step by gradients of their own: whether those of all copies are
  /// finite, told whether this one's are. Every rank calls it in every step. Null: copies have the same gradients.
  std::function<bool(bool finite)> all_finite = nullptr;
};

struct UpdateResult {
  bool taken = true;         ///< false: a gradient (of some copy) overflowed fp16, nothing has changed
  double gradient_norm = 0;  ///< over all parameters, unscaled, before clipping
  double clip_factor = 1;
  std::vector<double> squares = {};  ///< of each trainable parameter's gradient, whole and unscaled
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
