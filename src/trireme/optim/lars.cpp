// LARS (You, Gitman, Ginsburg 2017, algorithm 1):
//   local = trust |w| / (|g| + decay |w|),  v <- mu v + rate local (g + decay w),  w <- w - v,
// norms over the whole parameter; local is 1 where one of them is zero, and for biases and norms. Here the rate is in
// the velocity, so that a step keeps the rates of the gradients that made it.
#include "trireme/optim/gradients.h"
#include "trireme/optim/optimizer.h"

namespace trireme::optim {
namespace {

class Lars final : public Optimizer {
 public:
  Lars(const spec::OptimConfig& config, nn::Params& params) : Optimizer(config, params, {"velocity"}) {}

 private:
  void update(std::span<Slot> slots, const StepOptions& options) override {
    const std::size_t count = slots.size();
    std::vector<double> squares(2 * count);
    for (std::size_t i = 0; i < count; ++i) {
      if (!slots[i].adapts) continue;
      const kernels::NormPair norms = kernels::lars_norms(tensors(slots[i], options));
      const nn::Param& param = slots[i].param;
      const double scale = options.gradient_scale * options.gradient_scale;
      squares[i] = param.counted ? counted_squares(param, param.master) : norms.weight_squared;
      squares[count + i] = param.counted ? counted_squares(param, slots[i].gradient) * scale : norms.update_squared;
    }
    if (options.across != nullptr && options.across->sum_parts) options.across->sum_parts(squares);
    for (std::size_t i = 0; i < count; ++i) {
      const kernels::Lars lars{.learning_rate = options.learning_rate * slots[i].rate,
                               .weight_decay = slots[i].weight_decay,
                               .momentum = config().momentum,
                               .coefficient = config().trust};
      const kernels::NormPair norms{.weight_squared = squares[i], .update_squared = squares[count + i]};
      kernels::lars_update(tensors(slots[i], options), slots[i].moments[0],
                           slots[i].adapts ? kernels::lars_ratio(norms, lars) : 1, lars);
    }
  }
};

}  // namespace

std::unique_ptr<Optimizer> make_lars(OptimizerParts parts) {
  return std::make_unique<Lars>(parts.config, parts.params);
}

}  // namespace trireme::optim
