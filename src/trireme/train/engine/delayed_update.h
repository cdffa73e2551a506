// train/engine/delayed_update.h -- an update that nobody waits for: it is started with the step, and what it found (the
// loss, the gradients' norm, whether it was taken at all) is read when it is there.
//
// On a GPU norm, clipping and the optimizer are one recording (from the third step on) whose numbers lie in its memory
// (kernels/device_scalars.h). Where a loss or norm is NaN or Inf nothing is updated, by this step or any that was
// started since, until go_on(): whoever reads it later still finds the weights before that step. The same bits as
// optim::update. On the CPU it is the same in plain code, told as late: what holds the order of things in tests.
//
// A recording is made anew when a gradient lies elsewhere than it did. One rank only; optimizers that go through each
// tensor by itself; no loss scale.
// Depends on: kernels, nn, optim.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "trireme/device/stream.h"
#include "trireme/kernels/device_scalars.h"
#include "trireme/nn/context.h"
#include "trireme/optim/optimizer.h"

namespace trireme::train {

class DelayedUpdate {
 public:
  /// Borrowed; Optimizer::is_capturable().
  explicit DelayedUpdate(optim::Optimizer& optimizer);

  /// The update of a step whose gradients are on their way; the losses may be pending.
  void start(const std::vector<nn::LossTerm>& losses, double learning_rate);

  struct Outcome {
    std::vector<nn::LossTerm> losses;  ///< by name, added up
    double gradient_norm = 0;
    bool taken = true;
  };
  /// Of the oldest that was not told yet: until it is there.
  Outcome wait();
  std::size_t waiting() const { return waiting_.size(); }
  /// After a step that was not taken, with none waiting: the next may be. The optimizer forgets those that were not.
  void go_on();

 private:
  /// Where a step's numbers come in on the host: the weighted sum of losses, what DeviceScalars tells, and the sum and
  /// count of each term.
  struct Slip {
    at::Tensor numbers;               // double [5 + 2 * terms]
    std::vector<nn::LossTerm> terms;  // whose numbers these are
    std::unique_ptr<device::CudaEvent> there;
  };
  void start_there(const std::vector<nn::LossTerm>& losses, double learning_rate);
  void start_here(const std::vector<nn::LossTerm>& losses, double learning_rate);
  std::vector<const at::Tensor*> gradients() const;
  void add_up_there(const std::vector<nn::LossTerm>& losses, const std::vector<nn::LossTerm>& kinds);
  Slip free_slip(std::size_t terms);

  optim::Optimizer& optimizer_;
  std::unique_ptr<kernels::DeviceScalars> scalars_;  // on a GPU
  at::Tensor found_;                                 // there: what a slip's numbers are copied from
  std::unique_ptr<device::CudaGraph> graph_;
  std::vector<const void*> recorded_;  // the gradients' places
  int seen_ = 0;
  bool halted_ = false;    // on the CPU: what DeviceScalars::result()[3] is on a GPU
  std::int64_t lost_ = 0;  // steps that were told as not taken
  std::deque<Slip> waiting_;
  std::vector<Slip> free_;
};

}  // namespace trireme::train
