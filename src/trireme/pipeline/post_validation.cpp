#include "trireme/pipeline/post_validation.h"

#include <ATen/ops/empty_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/optim/gradients.h"

namespace trireme::pipeline {
namespace {

using schedule::Instruction;
using schedule::make;
using schedule::Op;

Instruction send_of(const Instruction& receive) {
  return receive.op == Op::kRecvActivation ? make(Op::kSendActivation, receive.chunk - 1, receive.micro)
                                           : make(Op::kSendGradient, receive.chunk + 1, receive.micro);
}

Instruction receive_of(const Instruction& send) {
  return send.op == Op::kSendActivation ? make(Op::kRecvActivation, send.chunk + 1, send.micro)
                                        : make(Op::kRecvGradient, send.chunk - 1, send.micro);
}

bool contains(const schedule::Schedule& table, const SpeculationWindow& window, int rank, const Instruction& wanted) {
  const auto r = static_cast<std::size_t>(rank);
  const auto& list = table.ranks[r];
  // A send comes after its forward, in the window; a receive may have been posted before.
  const std::size_t from = schedule::is_recv(wanted.op) ? 0 : window.begin[r];
  const auto first = list.begin() + static_cast<std::ptrdiff_t>(from);
  const auto last = list.begin() + static_cast<std::ptrdiff_t>(window.end[r]);
  return std::find(first, last, wanted) != last;
}

/// Whether the rank's window had to end earlier: it waits for what is sent after the sender's.
bool shorten(const schedule::Schedule& table, SpeculationWindow& window, std::size_t rank, int step) {
  for (std::size_t position = window.begin[rank]; position < window.end[rank]; ++position) {
    const Instruction& it = table.ranks[rank][position];
    if ((it.op != Op::kWaitRecvActivation && it.op != Op::kWaitRecvGradient) || table.step_of(it.micro) <= step)
      continue;
    Instruction receive = it;
    receive.op = schedule::waited_for(it.op);
    if (contains(table, window, schedule::peer_of(table, receive), send_of(receive))) continue;
    window.end[rank] = position;
    return true;
  }
  return false;
}

}  // namespace

std::vector<SpeculationWindow> find_speculation_windows(const schedule::Schedule& table) {
  std::vector<SpeculationWindow> windows(static_cast<std::size_t>(table.steps()));
  for (const auto& list : table.ranks) {
    std::size_t step = 0;
    for (std::size_t position = 0; position < list.size(); ++position) {
      if (list[position].op != Op::kOptimizerStep) continue;
      TRIREME_CHECK(step < windows.size(), "schedule {} has more updates than steps", table.name);
      std::size_t end = position + 1;
      while (end < list.size() && !does_input_gradient(list[end]) && list[end].op != Op::kRecompute &&
             list[end].op != Op::kOptimizerStep) {
        ++end;
      }
      windows[step].begin.push_back(position + 1);
      windows[step++].end.push_back(end);
    }
  }
  for (std::size_t step = 0; step < windows.size(); ++step) {
    for (bool shorter = true; shorter;) {
      shorter = false;
      for (std::size_t rank = 0; rank < table.ranks.size(); ++rank) {
        shorter |= shorten(table, windows[step], rank, static_cast<int>(step));
      }
    }
  }
  return windows;
}

Unmatched find_unmatched(const schedule::Schedule& table, const SpeculationWindow& window, int step, int rank) {
  Unmatched unmatched;
  for (std::size_t other = 0; other < table.ranks.size(); ++other) {
    if (static_cast<int>(other) == rank) continue;
    for (std::size_t position = 0; position < window.end[other]; ++position) {
      const Instruction& it = table.ranks[other][position];
      const bool send = schedule::is_send(it.op), receive = schedule::is_recv(it.op);
      if ((!send && !receive) || table.step_of(it.micro) <= step || schedule::peer_of(table, it) != rank) continue;
      const Instruction mine = send ? receive_of(it) : send_of(it);
      if (contains(table, window, rank, mine)) continue;
      (send ? unmatched.receives : unmatched.sends).push_back(mine);
    }
  }
  const auto& list = table.ranks[static_cast<std::size_t>(rank)];
  for (std::size_t position = 0; position < window.begin[static_cast<std::size_t>(rank)]; ++position) {
    const Instruction& it = list[position];
    if (schedule::is_recv(it.op) && table.step_of(it.micro) > step) unmatched.early_receives.push_back(it);
  }
  return unmatched;
}

PostValidatedUpdate::PostValidatedUpdate(optim::Optimizer& optimizer, GradientReduction& reduction)
    : optimizer_(optimizer), reduction_(reduction) {
  optimizer.add_state(state_);
}

void PostValidatedUpdate::keep() {
  std::size_t i = 0;
  const auto copy = [&](const at::Tensor& tensor) {
    if (i == kept_.size()) kept_.push_back(at::empty_like(tensor));
    kept_[i++].copy_(tensor);
  };
  for (const nn::Param& param : optimizer_.params()) copy(param.master);
  for (const nn::StateTensor& entry : state_.tensors()) copy(entry.tensor);
  kept_values_.clear();
  for (const nn::StateValue& value : state_.values()) kept_values_.push_back(value.get().dump());
  steps_before_ = optimizer_.steps();
}

std::int64_t PostValidatedUpdate::bytes() const {
  std::int64_t bytes = 0;
  for (const at::Tensor& tensor : kept_) bytes += static_cast<std::int64_t>(tensor.nbytes());
  return bytes;
}

void PostValidatedUpdate::put_back() {
  std::size_t i = 0;
  for (nn::Param& param : optimizer_.params()) {
    param.master.copy_(kept_[i++]);
    nn::publish(param);
  }
  for (const nn::StateTensor& entry : state_.tensors()) at::Tensor(entry.tensor).copy_(kept_[i++]);
  i = 0;
  for (const nn::StateValue& value : state_.values()) value.set(nlohmann::ordered_json::parse(kept_values_[i++]));
  restore_gradients();
}

/// What the next step's forwards make goes elsewhere meanwhile: the head's gradients come with its forward.
void PostValidatedUpdate::hold_gradients() {
  parallel::DataParallel* data_parallel = reduction_.data_parallel();
  if (data_parallel != nullptr && data_parallel->has_separate_gradients())
    return data_parallel->swap_gradient_buffers();
  for (nn::Param& param : reduction_.layer_params()) {  // where layers put gradients, shards lie too
    at::Tensor& place = gradients_.emplace_back(std::move(param.gradient));
    param.gradient = at::Tensor();
    param.gradient_empty = true;
    if (place.defined()) param.provide_gradient = [place] { return at::empty_like(place); };
  }
}

/// The next step's gradients go where these are: buckets are reduced from there.
void PostValidatedUpdate::release_gradients() {
  settled_ = true;
  parallel::DataParallel* data_parallel = reduction_.data_parallel();
  if (data_parallel != nullptr && data_parallel->has_separate_gradients()) return;
  std::size_t i = 0;
  for (nn::Param& param : reduction_.layer_params()) {
    at::Tensor& place = gradients_[i++];
    param.provide_gradient = nullptr;
    if (place.defined() && param.gradient.defined()) place.copy_(param.gradient);
    if (place.defined()) param.gradient = std::move(place);
  }
  gradients_.clear();
}

void PostValidatedUpdate::restore_gradients() {
  settled_ = true;
  parallel::DataParallel* data_parallel = reduction_.data_parallel();
  if (data_parallel != nullptr && data_parallel->has_separate_gradients()) {
    data_parallel->restore_gradient_buffers();
  } else {
    std::size_t i = 0;
    for (nn::Param& param : reduction_.layer_params()) {
      param.gradient = gradients_[i++];
      param.gradient_empty = true;
      param.provide_gradient = nullptr;
    }
    gradients_.clear();
  }
  for (nn::Param& param : optimizer_.params()) param.gradient_empty = !param.trainable;
}

const optim::AcrossRanks* PostValidatedUpdate::within() {
  return reduction_.data_parallel() != nullptr ? reduction_.data_parallel()->across() : nullptr;
}

void PostValidatedUpdate::step(double gradient_scale) {
  optimizer_.step({.learning_rate = options_.learning_rate,
                   .gradient_scale = gradient_scale,
                   .across = within(),
                   .keep_gradients = true});
}

void PostValidatedUpdate::take(const optim::UpdateOptions& options) {
  TRIREME_CHECK(settled_, "an update is taken before the last one was settled");
  settled_ = false;
  options_ = options;
  squares_ = optim::gradient_squares(optimizer_.params());
  if (within() != nullptr) within()->sum_parts(squares_);
  sum_ = reduction_.count_once(squares_);
  scale_ = options.gradient_scale / (options.loss_scale != nullptr ? options.loss_scale->scale() : 1.0);
  const bool finite = std::isfinite(sum_);
  norm_ = reduction_.pipeline().all_reduce(comm::Buffer{&sum_, 1, comm::DType::kF64}, comm::Reduce::kSum);
  keep();
  if (finite) step(scale_);
  if (reduction_.data_parallel() != nullptr) reduction_.data_parallel()->updated();
  hold_gradients();
}

bool PostValidatedUpdate::validated() {
  norm_.wait();
  result_ = {.gradient_norm = std::sqrt(sum_) * std::abs(scale_)};
  if (!std::isfinite(result_.gradient_norm)) return false;
  result_.clip_factor = optim::clip_factor(result_.gradient_norm, optimizer_.config().grad_clip_norm);
  if (result_.clip_factor != 1) return false;
  if (options_.loss_scale != nullptr) options_.loss_scale->take(true);
  release_gradients();
  if (reduction_.data_parallel() != nullptr) reduction_.data_parallel()->step_taken();
  return true;
}

void PostValidatedUpdate::redo() {
  ++redone_;
  parallel::DataParallel* data_parallel = reduction_.data_parallel();
  if (data_parallel != nullptr) data_parallel->wait_for_weights();  // they leave from where the old ones come back
  put_back();
  const bool finite = std::isfinite(result_.gradient_norm);
  if (options_.loss_scale != nullptr) {
    result_.taken = options_.loss_scale->take(finite);
  } else if (!finite) {
    std::vector<std::string> names = optim::non_finite(optimizer_.params(), squares_);
    if (names.size() > 8) names.resize(8);
    throw optim::NonFiniteGradients(
        fmt::format("the gradient {} is not finite after {}",
                    names.empty() ? "of another stage" : "of " + listed(names),
                    counted(static_cast<std::size_t>(steps_before_), "step")),
        "lower optim.learning_rate, lengthen lr_schedule.warmup, or set optim.grad_clip_norm = 1.0");
  }
  if (result_.taken) step(scale_ * result_.clip_factor);
  nn::zero_grad(optimizer_.params());
  if (data_parallel == nullptr) return;
  if (result_.taken) data_parallel->step_taken();
  data_parallel->updated();
}

}  // namespace trireme::pipeline
