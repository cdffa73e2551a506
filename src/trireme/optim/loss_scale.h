// optim/loss_scale.h -- the factor that keeps fp16's small gradients from vanishing (Micikevicius et al. 2017).
//
// The loss is multiplied by scale() before backward; the update divides by it. When a gradient overflows, the step is
// skipped and the scale falls; after so many good steps in a row it grows.
// Depends on: base, spec, nn.
#pragma once

#include <cstdint>

#include "trireme/spec/optim.h"

namespace trireme::nn {
class State;
}

namespace trireme::optim {

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

}  // namespace trireme::optim
