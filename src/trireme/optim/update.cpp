#include "trireme/optim/update.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/nn/state.h"
#include "trireme/optim/gradients.h"

namespace trireme::optim {
namespace {

[[noreturn]] void refuse_gradients(const Optimizer& optimizer, std::vector<std::string> names) {
  const std::size_t count = names.size();
  if (count > 8) {
    names.resize(7);
    names.push_back(fmt::format("{} more", count - 7));
  }
  // Nothing here: another rank has them, and says so.
  const std::string where = names.empty() ? "on another rank" : "of " + listed(names);
  throw NonFiniteGradients(fmt::format("the gradient {} is not finite after {}", where,
                                       counted(static_cast<std::size_t>(optimizer.steps()), "step")),
                           "lower optim.learning_rate, lengthen lr_schedule.warmup, or set optim.grad_clip_norm = 1.0");
}

}  // namespace

bool LossScale::take(bool finite) {
  if (finite) {
    if (++good_steps_ >= config_.interval) {
      good_steps_ = 0;
      scale_ = std::min(scale_ * config_.growth, config_.maximum);
      log_debug("loss scale grows to {}", scale_);
    }
    return true;
  }
  if (scale_ <= config_.minimum) {
    throw Error(fmt::format("gradients are not finite even at loss scale {}, the smallest allowed", scale_),
                "the loss itself diverges: lower optim.learning_rate, set optim.grad_clip_norm, or use "
                "precision.compute = \"bf16\"");
  }
  const double before = scale_;
  scale_ = std::max(scale_ * config_.backoff, config_.minimum);
  good_steps_ = 0;
  ++skipped_;
  log_info("step skipped: gradients overflow at loss scale {}; now {} ({} skipped in this run)", before, scale_,
           skipped_);
  return false;
}

void LossScale::add_state(nn::State& state) {
  state.add_value(
      "loss_scale",
      [this] {
        return nlohmann::ordered_json{{"scale", scale_}, {"good_steps", good_steps_}, {"skipped", skipped_}};
      },
      [this](const nlohmann::ordered_json& value) {
        scale_ = value.at("scale").get<double>();
        good_steps_ = value.at("good_steps").get<std::int64_t>();
        skipped_ = value.at("skipped").get<std::int64_t>();
      });
}

Decision decide(Optimizer& optimizer, const UpdateOptions& options) {
  std::vector<double> squares = gradient_squares(optimizer.params());
  const bool across = options.across != nullptr;
  if (across && options.across->sum_parts) options.across->sum_parts(squares);
  double sum = 0;
  for (const double square : squares) sum += square;
  if (across && options.across->sum_stages) sum = options.across->sum_stages(sum);

  double scale = options.gradient_scale;
  if (options.loss_scale != nullptr) scale /= options.loss_scale->scale();
  UpdateResult result{.gradient_norm = std::sqrt(sum) * std::abs(scale), .squares = squares};
  for (double& square : result.squares) square *= scale * scale;
  const bool finite = std::isfinite(result.gradient_norm);
  if (options.loss_scale != nullptr) {
    result.taken = options.loss_scale->take(options.all_finite ? options.all_finite(finite) : finite);
  } else if (!finite) {
    refuse_gradients(optimizer, non_finite(optimizer.params(), squares));
  }
  if (!result.taken) {
    nn::zero_grad(optimizer.params());
    return {result, {}};
  }
  if (!optimizer.adam_phase().gradient_is_momentum)
    result.clip_factor = clip_factor(result.gradient_norm, optimizer.config().grad_clip_norm);
  return {
      result,
      {.learning_rate = options.learning_rate, .gradient_scale = scale * result.clip_factor, .across = options.across}};
}

UpdateResult update(Optimizer& optimizer, const UpdateOptions& options) {
  const Decision decision = decide(optimizer, options);
  if (decision.result.taken) optimizer.step(decision.step);
  return decision.result;
}

}  // namespace trireme::optim
