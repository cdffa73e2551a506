// parallel/compress/adam_moments.h -- the moments of an optimizer by parameter, for methods that exchange them.
//
// Depends on: nn, optim.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "trireme/nn/state.h"
#include "trireme/optim/optimizer.h"

namespace trireme::parallel {

class AdamMoments {
 public:
  explicit AdamMoments(optim::Optimizer& optimizer) { optimizer.add_state(state_); }
  /// Flat, in the optimizer's own memory.
  at::Tensor m(const std::string& name) const { return state_.at("optim/m/" + name).tensor.view({-1}); }
  at::Tensor v(const std::string& name) const { return state_.at("optim/v/" + name).tensor.view({-1}); }
  const nn::State& all() const { return state_; }

 private:
  nn::State state_;
};

}  // namespace trireme::parallel
