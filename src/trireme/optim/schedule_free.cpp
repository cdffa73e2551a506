// Schedule-free AdamW (Defazio et al. 2024, algorithm 1 with Adam's normalisation, as its authors' code has it).
//
// z takes the steps, x averages them, gradients are taken at y = (1 - b1) z + b1 x:
//   d = g / (sqrt(v / (1 - b2^t)) + eps) + decay y,  z <- z - rate d,  x <- (1 - c) x + c z,
// with c = rate_max^2 / (sum of these over steps). The master weights are y, z is kept beside v; x, which is what one
// evaluates, follows from both: x = y + (1 - 1 / b1) (z - y).
#include <ATen/ops/lerp.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sqrt.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/nn/state.h"
#include "trireme/optim/elementwise.h"
#include "trireme/optim/optimizer.h"

namespace trireme::optim {
namespace {

class ScheduleFree final : public Optimizer {
 public:
  explicit ScheduleFree(const OptimizerParts& parts) : Optimizer(parts.config, parts.params, {"z", "v"}) {}

  at::Tensor evaluation_weights(const nn::Param& param) const override {
    const auto slot = std::ranges::find_if(slots(), [&](const Slot& one) { return &one.param == &param; });
    if (slot == slots().end() || steps() == 0) return {};
    const at::Tensor& z = slot->moments[0];
    return at::lerp(param.master.to(z.scalar_type()), z, 1 - 1 / config().beta1);
  }

 private:
  void update(std::span<Slot> slots, const StepOptions& options) override {
    const double b1 = config().beta1, b2 = config().beta2, eps = spec::epsilon_of(config());
    // Once a step, however many stretches of slots it has.
    if (averaged_ != steps()) {
      averaged_ = steps();
      rate_max_ = std::max(rate_max_, options.learning_rate);
      weight_sum_ += rate_max_ * rate_max_;
      share_ = weight_sum_ > 0 ? rate_max_ * rate_max_ / weight_sum_ : 0;
    }
    const double root = std::sqrt(1 - std::pow(b2, static_cast<double>(steps())));
    for (Slot& slot : slots) {
      const std::uint64_t rounding = weight_rounding(slot);
      at::Tensor &z = slot.moments[0], &v = slot.moments[1];
      at::Tensor y = rounding != 0 ? slot.param.master.to(at::kFloat) : slot.param.master;
      if (steps() == 1) z.copy_(y);
      at::Tensor g = scaled_gradient(slot.gradient, y, options.gradient_scale);
      v.mul_(b2).addcmul_(g, g, 1 - b2);
      g.div_(at::sqrt(v).div_(root).add_(eps));
      if (slot.weight_decay != 0) g.add_(y, slot.weight_decay);
      const double rate = options.learning_rate * slot.rate;
      y.lerp_(z, share_).add_(g, rate * (b1 * (1 - share_) - 1));
      z.sub_(g, rate);
      if (rounding != 0) {
        kernels::store_rounded(slot.param.master, y, rounding);
      } else {
        write_copy(slot.param);
      }
    }
  }

  void add_own_state(nn::State& state) override {
    state.add_value(
        "optim/schedule_free",
        [this] {
          return nlohmann::ordered_json{{"rate_max", rate_max_}, {"weight_sum", weight_sum_}};
        },
        [this](const nlohmann::ordered_json& value) {
          rate_max_ = value.at("rate_max").get<double>();
          weight_sum_ = value.at("weight_sum").get<double>();
          averaged_ = -1;  // a step that is taken again counts again
        });
  }

  double rate_max_ = 0, weight_sum_ = 0, share_ = 0;
  std::int64_t averaged_ = 0;
};

}  // namespace

std::unique_ptr<Optimizer> make_schedule_free(OptimizerParts parts) { return std::make_unique<ScheduleFree>(parts); }

}  // namespace trireme::optim
