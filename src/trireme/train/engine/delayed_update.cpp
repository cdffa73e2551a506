#include "trireme/train/engine/delayed_update.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/optim/gradients.h"

namespace trireme::train {
namespace {

constexpr int kUpdatesBeforeCapture = 2;  // as they are: velocities begin in the first
constexpr std::int64_t kFirstTerm = 5;    // among a step's numbers: the loss and the four of DeviceScalars come before

std::int64_t numbers_of(std::size_t terms) { return kFirstTerm + 2 * static_cast<std::int64_t>(terms); }

/// The terms of a step by name, without numbers: which they are does not depend on the GPU.
std::vector<nn::LossTerm> kinds_of(const std::vector<nn::LossTerm>& losses) {
  std::vector<nn::LossTerm> kinds;
  for (nn::LossTerm term : losses) {
    term.sum = term.count = 0;
    term.pending = at::Tensor();
    nn::add_term(kinds, term);
  }
  return kinds;
}

}  // namespace

DelayedUpdate::DelayedUpdate(optim::Optimizer& optimizer) : optimizer_(optimizer) {
  TRIREME_CHECK(optimizer.is_capturable(), "an optimizer that a CUDA graph cannot capture");
  at::Device device = at::kCPU;
  for (const nn::Param& param : optimizer.params()) {
    TRIREME_CHECK(!param.counted, "{} is spread over ranks", param.name);
    device = param.master.device();
  }
  if (!device.is_cuda()) return;
  scalars_ = std::make_unique<kernels::DeviceScalars>(optimizer.device_scalar_slots(),
                                                      optimizer.config().grad_clip_norm, device);
  found_ = at::zeros({numbers_of(1)}, at::TensorOptions(at::kDouble).device(device));
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

/// On the GPU, in the order of micros: sum and count of each term, then the weighted sum that decides whether the step
/// is finite.
void DelayedUpdate::add_up_there(const std::vector<nn::LossTerm>& losses, const std::vector<nn::LossTerm>& kinds) {
  if (found_.size(0) < numbers_of(kinds.size())) {
    found_ = at::zeros({numbers_of(kinds.size())}, found_.options());
    graph_.reset();  // it was captured with the old place
  }
  found_.zero_();
  const auto place_of = [&](std::size_t i) {
    return found_.narrow(0, kFirstTerm + 2 * static_cast<std::int64_t>(i), 2);
  };
  for (const nn::LossTerm& term : losses) {
    const auto at = std::ranges::find(kinds, term.name, &nn::LossTerm::name);
    at::Tensor place = place_of(static_cast<std::size_t>(at - kinds.begin()));
    if (term.pending.defined()) {
      place.add_(term.pending);
    } else {
      place.narrow(0, 0, 1).add_(term.sum);
      place.narrow(0, 1, 1).add_(term.count);
    }
  }
  at::Tensor total = found_.narrow(0, 0, 1);
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    if (kinds[i].weight != 0) total.add_(place_of(i).narrow(0, 0, 1), kinds[i].weight);
  }
}

DelayedUpdate::Slip DelayedUpdate::free_slip(std::size_t terms) {
  while (!free_.empty()) {
    Slip slip = std::move(free_.back());
    free_.pop_back();
    if (slip.numbers.size(0) == numbers_of(terms)) return slip;
  }
  return {.numbers = at::empty({numbers_of(terms)}, at::TensorOptions(at::kDouble).pinned_memory(true)),
          .terms = {},
          .there = std::make_unique<device::CudaEvent>()};
}

void DelayedUpdate::start_there(const std::vector<nn::LossTerm>& losses, double learning_rate) {
  std::vector<nn::LossTerm> kinds = kinds_of(losses);
  add_up_there(losses, kinds);
  const at::Tensor loss = found_.narrow(0, 0, 1);
  const std::vector<const at::Tensor*> all = gradients();
  std::vector<const void*> places;
  for (const at::Tensor* gradient : all) places.push_back(gradient->const_data_ptr());
  if (graph_ && places != recorded_) graph_.reset();

  optimizer_.begin_step();
  scalars_->set(optimizer_.device_scalar_step(learning_rate));
  const auto update = [&] {
    scalars_->clip_grad_norm(all, loss);
    optimizer_.finish_step({.learning_rate = learning_rate, .device_scalars = scalars_.get()});
    found_.narrow(0, 1, 4).copy_(scalars_->result());
  };
  // By the optimizer's own count too: a run may go back to its first steps.
  if (optimizer_.steps() <= kUpdatesBeforeCapture || (!graph_ && seen_ < kUpdatesBeforeCapture)) {
    ++seen_;
    update();
  } else if (graph_) {
    optimizer_.finish_captured();
    graph_->replay();
  } else {
    graph_ = std::make_unique<device::CudaGraph>(update);
    recorded_ = std::move(places);
    graph_->replay();
  }

  Slip slip = free_slip(kinds.size());
  slip.numbers.copy_(found_.narrow(0, 0, slip.numbers.size(0)), /*non_blocking=*/true);
  slip.terms = std::move(kinds);
  slip.there->record();
  waiting_.push_back(std::move(slip));
}

void DelayedUpdate::start_here(const std::vector<nn::LossTerm>& losses, double learning_rate) {
  double loss = 0, sum = 0;
  std::vector<nn::LossTerm> here = losses, terms;
  nn::settle(here);
  for (const nn::LossTerm& term : here) nn::add_term(terms, term);
  for (const nn::LossTerm& term : terms) loss += term.weight != 0 ? term.weight * term.sum : 0;
  for (const double square : optim::gradient_squares(optimizer_.params())) sum += square;
  const double norm = std::sqrt(sum);
  const bool taken = std::isfinite(norm) && std::isfinite(loss) && !halted_;
  halted_ = halted_ || !taken;
  optimizer_.begin_step();
  if (taken) {
    optimizer_.finish_step({.learning_rate = learning_rate,
                            .gradient_scale = optim::clip_factor(norm, optimizer_.config().grad_clip_norm)});
  } else {
    optimizer_.finish_captured();
  }
  Slip slip{.numbers = at::zeros({numbers_of(terms.size())}, at::kDouble), .terms = terms, .there = nullptr};
  auto* numbers = slip.numbers.mutable_data_ptr<double>();
  numbers[0] = loss;
  numbers[1] = norm;
  numbers[3] = taken ? 1 : 0;
  for (std::size_t i = 0; i < terms.size(); ++i) {
    numbers[kFirstTerm + 2 * i] = terms[i].sum;
    numbers[kFirstTerm + 2 * i + 1] = terms[i].count;
  }
  waiting_.push_back(std::move(slip));
}

DelayedUpdate::Outcome DelayedUpdate::wait() {
  TRIREME_CHECK(!waiting_.empty(), "no update is under way");
  Slip slip = std::move(waiting_.front());
  waiting_.pop_front();
  if (slip.there) slip.there->synchronise();
  const double* numbers = slip.numbers.const_data_ptr<double>();
  Outcome outcome{.losses = std::move(slip.terms), .gradient_norm = numbers[1], .taken = numbers[3] != 0};
  for (std::size_t i = 0; i < outcome.losses.size(); ++i) {
    outcome.losses[i].sum = numbers[kFirstTerm + 2 * i];
    outcome.losses[i].count = numbers[kFirstTerm + 2 * i + 1];
  }
  if (!outcome.taken) ++lost_;
  if (slip.there) free_.push_back(std::move(slip));
  return outcome;
}

void DelayedUpdate::go_on() {
  TRIREME_CHECK(waiting_.empty(), "{} updates are under way", waiting_.size());
  optimizer_.undo_steps(std::exchange(lost_, 0));
  halted_ = false;
  if (scalars_) scalars_->reset();
}

}  // namespace trireme::train
