// pipeline/post_validation.h -- an optimizer step taken before the gradients of all stages are known to be finite and
// short.
//
// Zero-bubble schedules (Qi et al. 2024, section 4): waiting at every step for the norm over all stages would align the
// ranks again and bring the bubble back. So each steps as if nothing had to be clipped, and asks when the sum has come
// in; if it was wrong, which is rare in a healthy run, weights and moments are put back to the bit and the step is
// taken as the norm says. The price is a copy of both, held until then.
// Depends on: base, comm, nn, optim.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "trireme/nn/state.h"
#include "trireme/optim/update.h"
#include "trireme/pipeline/reduction.h"

namespace trireme::pipeline {

class PostValidatedUpdate {
 public:
  /// Both borrowed.
  PostValidatedUpdate(optim::Optimizer& optimizer, GradientReduction& reduction);
  PostValidatedUpdate(const PostValidatedUpdate&) = delete;
  PostValidatedUpdate& operator=(const PostValidatedUpdate&) = delete;

  /// Steps at once. The one before must be settled.
  void take(const optim::UpdateOptions& options);
  /// Waits for the norm over all stages: whether the step was right. The same on every rank.
  bool validated();
  /// Only where it does not stand: puts everything back and steps as optim::update would have. Gradients that are no
  /// numbers are optim::NonFiniteGradients without a loss scale.
  void redo();
  /// Of the last step that was settled.
  const optim::UpdateResult& result() const { return result_; }
  int redone() const { return redone_; }

 private:
  void keep();
  void put_back();

  optim::Optimizer& optimizer_;
  GradientReduction& reduction_;
  nn::State state_;                    // of the optimizer
  std::vector<at::Tensor> kept_;       // master weights, then moments
  std::vector<at::Tensor> gradients_;  // of this step, while the next one's may arise already
  std::int64_t steps_before_ = 0;
  optim::UpdateOptions options_;
  std::vector<double> squares_;
  double sum_ = 0, scale_ = 1;
  comm::Work norm_;
  optim::UpdateResult result_;
  int redone_ = 0;
};

}  // namespace trireme::pipeline
