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

#include <cstddef>
#include <string>
#include <vector>

#include "trireme/nn/state.h"
#include "trireme/optim/update.h"
#include "trireme/pipeline/reduction.h"
#include "trireme/schedule/schedule.h"

namespace trireme::pipeline {

// What ranks can do of the next step before anything depends on its backward passes.
//
// Where an update is validated after the fact (zero-bubble schedules), ranks go on with these forwards meanwhile. When
// it turns out wrong, all of them go back to where their window begins: nobody has used a gradient yet, so nothing else
// has to be undone. Messages that only one end has posted by then are evened out first; both ends know them from the
// table.

/// By rank, positions [begin, end) in its list: behind an optimizer step, up to the first instruction that depends on a
/// backward pass of the next step, on whatever rank.
struct SpeculationWindow {
  std::vector<std::size_t> begin, end;
};

/// After each optimizer step of the table, in order.
std::vector<SpeculationWindow> find_speculation_windows(const schedule::Schedule& table);

/// What this rank must still send, and receive, so that every transfer of the step after update `step` that some rank
/// has posted by the end of its window has its other end.
struct Unmatched {
  std::vector<schedule::Instruction> sends, receives;
  /// Posted before the window began, while the last step was ending: to be posted again.
  std::vector<schedule::Instruction> early_receives;
};
Unmatched find_unmatched(const schedule::Schedule& table, const SpeculationWindow& window, int step, int rank);

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
  /// Only where it does not stand: puts everything back and steps as optim::update would have. NaN or Inf in
  /// gradients is optim::NonFiniteGradients without a loss scale.
  void redo();
  /// Of the last step that was settled.
  const optim::UpdateResult& result() const { return result_; }
  int redone() const { return redone_; }
  /// Of what a step that is taken back is restored from.
  std::int64_t bytes() const;

 private:
  void keep();
  void put_back();
  void hold_gradients();
  void release_gradients();
  void restore_gradients();
  void step(double gradient_scale);
  /// Sums over the parts of this stage's parameters that other ranks hold; null: this rank holds them whole.
  const optim::AcrossRanks* within();

  optim::Optimizer& optimizer_;
  GradientReduction& reduction_;
  nn::State state_;                       // of the optimizer
  std::vector<at::Tensor> kept_;          // master weights, then moments
  std::vector<std::string> kept_values_;  // of the optimizer, as JSON
  bool settled_ = true;
  std::vector<at::Tensor> gradients_;  // of this step, as layers made them, while the next one's may arise already;
                                       // of those that lie apart from what layers make, DataParallel keeps them
  std::int64_t steps_before_ = 0;
  optim::UpdateOptions options_;
  std::vector<double> squares_;
  double sum_ = 0, scale_ = 1;
  comm::Work norm_;
  optim::UpdateResult result_;
  int redone_ = 0;
};

}  // namespace trireme::pipeline
