#include "trireme/pipeline/post_validation.h"

#include <ATen/ops/empty_like.h>
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/optim/gradients.h"

namespace trireme::pipeline {

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
  steps_before_ = optimizer_.steps();
}

void PostValidatedUpdate::put_back() {
  std::size_t i = 0;
  for (nn::Param& param : optimizer_.params()) {
    param.master.copy_(kept_[i++]);
    nn::publish(param);
  }
  for (const nn::StateTensor& entry : state_.tensors()) at::Tensor(entry.tensor).copy_(kept_[i++]);
  state_.value("optim/steps").set(steps_before_);
  i = 0;
  for (nn::Param& param : optimizer_.params()) {
    param.gradient = gradients_[i++];
    param.gradient_empty = !param.trainable;
  }
}

void PostValidatedUpdate::take(const optim::UpdateOptions& options) {
  TRIREME_CHECK(gradients_.empty(), "an update is taken before the last one was settled");
  options_ = options;
  squares_ = optim::gradient_squares(optimizer_.params());
  sum_ = reduction_.count_once(squares_);
  scale_ = options.gradient_scale / (options.loss_scale != nullptr ? options.loss_scale->scale() : 1.0);
  const bool finite = std::isfinite(sum_);
  norm_ = reduction_.pipeline().all_reduce(comm::Buffer{&sum_, 1, comm::DType::kF64}, comm::Reduce::kSum);
  keep();
  if (finite) optimizer_.step({.learning_rate = options.learning_rate, .gradient_scale = scale_});
  for (nn::Param& param : optimizer_.params()) {
    gradients_.push_back(std::move(param.gradient));
    param.gradient = at::Tensor();
    param.gradient_empty = true;
  }
}

bool PostValidatedUpdate::validated() {
  norm_.wait();
  result_ = {.gradient_norm = std::sqrt(sum_) * std::abs(scale_)};
  if (!std::isfinite(result_.gradient_norm)) return false;
  result_.clip_factor = optim::clip_factor(result_.gradient_norm, optimizer_.config().grad_clip_norm);
  if (result_.clip_factor != 1) return false;
  if (options_.loss_scale != nullptr) options_.loss_scale->take(true);
  // Memory for the next step's, where that has not begun to have its own.
  std::size_t i = 0;
  for (nn::Param& param : optimizer_.params()) {
    if (!param.gradient.defined()) param.gradient = std::move(gradients_[i]);
    ++i;
  }
  gradients_.clear();
  return true;
}

void PostValidatedUpdate::redo() {
  ++redone_;
  put_back();
  gradients_.clear();
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
  if (result_.taken) {
    optimizer_.step({.learning_rate = options_.learning_rate, .gradient_scale = scale_ * result_.clip_factor});
  }
  nn::zero_grad(optimizer_.params());
}

}  // namespace trireme::pipeline
