// LAMB (You et al. 2019, algorithm 2): u is Adam's direction, its bias corrected, plus decay times w;
//   w <- w - rate (phi(|w|) / |u|) u,
// norms over the whole parameter, phi(z) = min(max(z, gamma_l), gamma_u), the ratio 1 where one of them is zero. Biases
// and norms take u as it is.
#include <ATen/ops/empty_like.h>

#include <limits>

#include "trireme/optim/elementwise.h"
#include "trireme/optim/gradients.h"
#include "trireme/optim/optimizer.h"

namespace trireme::optim {
namespace {

class Lamb final : public Optimizer {
 public:
  Lamb(const spec::OptimConfig& config, nn::Params& params) : Optimizer(config, params, {"m", "v"}) {}

 private:
  void update(std::span<Slot> slots, const StepOptions& options) override {
    // All directions first, so that ranks sum all norms in one exchange; each lies where its gradient was, if that may
    // go.
    const std::size_t count = slots.size();
    std::vector<double> squares(2 * count);
    std::vector<at::Tensor> directions(count);
    for (std::size_t i = 0; i < count; ++i) {
      Slot& slot = slots[i];
      const at::ScalarType type = update_type(slot.param.master);
      const bool in_place = !options.keep_gradients && slot.gradient.scalar_type() == type;
      directions[i] =
          in_place ? slot.gradient : at::empty_like(slot.param.master, slot.param.master.options().dtype(type));
      const kernels::NormPair norms =
          kernels::lamb_direction(tensors(slot, options), slot.moments[0], slot.moments[1], directions[i],
                                  {.learning_rate = options.learning_rate,
                                   .weight_decay = slot.weight_decay,
                                   .beta1 = config().beta1,
                                   .beta2 = config().beta2,
                                   .epsilon = spec::epsilon_of(config()),
                                   .step = steps()});
      const bool all = !slot.param.counted;
      squares[i] = all ? norms.weight_squared : counted_squares(slot.param, slot.param.master);
      squares[count + i] = all ? norms.update_squared : counted_squares(slot.param, directions[i]);
    }
    if (options.across != nullptr && options.across->sum_parts) options.across->sum_parts(squares);
    for (std::size_t i = 0; i < count; ++i) {
      const kernels::NormPair norms{.weight_squared = squares[i], .update_squared = squares[count + i]};
      const double ratio =
          slots[i].adapts
              ? kernels::lamb_ratio(norms, config().weight_norm_min,
                                    config().weight_norm_max.value_or(std::numeric_limits<double>::infinity()))
              : 1;
      kernels::apply_direction(tensors(slots[i], options), directions[i],
                               options.learning_rate * slots[i].rate * ratio);
    }
  }
};

}  // namespace

std::unique_ptr<Optimizer> make_lamb(OptimizerParts parts) {
  return std::make_unique<Lamb>(parts.config, parts.params);
}

}  // namespace trireme::optim
