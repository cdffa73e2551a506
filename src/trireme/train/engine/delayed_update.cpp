#include "trireme/train/engine/delayed_update.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/optim/gradients.h"

namespace trireme::train {
namespace {

constexpr int kRunsBefore = 2;  // as they are: velocities begin in the first

}  // namespace

DelayedUpdate::DelayedUpdate(optim::Optimizer& optimizer) : optimizer_(optimizer) {
  TRIREME_CHECK(optimizer.can_be_recorded(), "an optimizer that cannot be recorded");
  at::Device device = at::kCPU;
  for (const nn::Param& param : optimizer.params()) {
    TRIREME_CHECK(!param.counted, "{} is spread over ranks", param.name);
    device = param.master.device();
  }
  if (!device.is_cuda()) return;
  scalars_ =
      std::make_unique<kernels::DeviceScalars>(optimizer.live_slots(), optimizer.config().grad_clip_norm, device);
  found_ = at::zeros({5}, at::TensorOptions(at::kDouble).device(device));
}

std::vector<const at::Tensor*> DelayedUpdate::gradients() const {
  std::vector<const at::Tensor*> out;
  for (const nn::Param& param : optimizer_.params()) {
    if (param.trainable) out.push_back(&param.gradient);
  }
  return out;
}

void DelayedUpdate::start(const std::vector<nn::LossTerm>& losses, double learning_rate) {
  optim::require_gradients(optimizer_.params());
  if (scalars_) {
    start_there(losses, learning_rate);
  } else {
    start_here(losses, learning_rate);
  }
}

void DelayedUpdate::start_there(const std::vector<nn::LossTerm>& losses, double learning_rate) {
  at::Tensor loss = found_.narrow(0, 0, 1);
  loss.zero_();
  for (const nn::LossTerm& term : losses) {
    if (term.pending.defined()) {
      loss.add_(term.pending.narrow(0, 0, 1));
    } else {
      loss.add_(term.sum);
    }
  }
  const std::vector<const at::Tensor*> all = gradients();
  std::vector<const void*> places;
  for (const at::Tensor* gradient : all) places.push_back(gradient->const_data_ptr());
  if (graph_ && places != recorded_) graph_.reset();

  optimizer_.begin_step();
  scalars_->set(optimizer_.live_step(learning_rate));
  const auto update = [&] {
    scalars_->decide(all, loss);
    optimizer_.finish_step({.learning_rate = learning_rate, .live = scalars_.get()});
    found_.narrow(0, 1, 4).copy_(scalars_->told());
  };
  // By the optimizer's own count too: a run may go back to its first steps.
  if (optimizer_.steps() <= kRunsBefore || (!graph_ && seen_ < kRunsBefore)) {
    ++seen_;
    update();
  } else if (graph_) {
    optimizer_.finish_recorded();
    graph_->replay();
  } else {
    graph_ = std::make_unique<device::CudaGraph>(update);
    recorded_ = std::move(places);
    graph_->replay();
  }

  Slip slip;
  if (free_.empty()) {
    slip = {.numbers = at::empty({5}, at::TensorOptions(at::kDouble).pinned_memory(true)),
            .there = std::make_unique<device::CudaEvent>()};
  } else {
    slip = std::move(free_.back());
    free_.pop_back();
  }
  slip.numbers.copy_(found_, /*non_blocking=*/true);
  slip.there->record();
  waiting_.push_back(std::move(slip));
}

void DelayedUpdate::start_here(const std::vector<nn::LossTerm>& losses, double learning_rate) {
  double loss = 0, sum = 0;
  std::vector<nn::LossTerm> here = losses;
  nn::settle(here);
  for (const nn::LossTerm& term : here) loss += term.sum;
  for (const double square : optim::gradient_squares(optimizer_.params())) sum += square;
  const double norm = std::sqrt(sum);
  const bool taken = std::isfinite(norm) && std::isfinite(loss) && !halted_;
  halted_ = halted_ || !taken;
  optimizer_.begin_step();
  if (taken) {
    optimizer_.finish_step({.learning_rate = learning_rate,
                            .gradient_scale = optim::clip_factor(norm, optimizer_.config().grad_clip_norm)});
  } else {
    optimizer_.finish_recorded();
  }
  Slip slip{.numbers = at::zeros({5}, at::kDouble), .there = nullptr};
  auto* numbers = slip.numbers.mutable_data_ptr<double>();
  numbers[0] = loss;
  numbers[1] = norm;
  numbers[3] = taken ? 1 : 0;
  waiting_.push_back(std::move(slip));
}

DelayedUpdate::Told DelayedUpdate::wait() {
  TRIREME_CHECK(!waiting_.empty(), "no update is under way");
  Slip slip = std::move(waiting_.front());
  waiting_.pop_front();
  if (slip.there) slip.there->synchronise();
  const double* numbers = slip.numbers.const_data_ptr<double>();
  const Told told{.loss = numbers[0], .gradient_norm = numbers[1], .taken = numbers[3] != 0};
  if (!told.taken) ++lost_;
  if (slip.there) free_.push_back(std::move(slip));
  return told;
}

void DelayedUpdate::go_on() {
  TRIREME_CHECK(waiting_.empty(), "{} updates are under way", waiting_.size());
  optimizer_.take_back(std::exchange(lost_, 0));
  halted_ = false;
  if (scalars_) scalars_->go_on();
}

}  // namespace trireme::train
