#include "trireme/optim/loss_scale.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/nn/state.h"

namespace trireme::optim {

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

}  // namespace trireme::optim
