// Lion (Chen et al. 2023, algorithm 2):  u = sign(b1 m + (1 - b1) g),  w <- w - rate (u + decay w),
// m <- b2 m + (1 - b2) g.
#include <ATen/ops/mul.h>

#include "trireme/optim/elementwise.h"
#include "trireme/optim/optimizer.h"

namespace trireme::optim {
namespace {

class Lion final : public Optimizer {
 public:
  explicit Lion(const OptimizerParts& parts) : Optimizer(parts.config, parts.params, {"m"}) {}

 private:
  void update(std::span<Slot> slots, const StepOptions& options) override {
    const double b1 = config().beta1, b2 = config().beta2;
    for (Slot& slot : slots) {
      const at::Tensor g = scaled_gradient(slot.gradient, slot.param.master, options.gradient_scale);
      at::Tensor& m = slot.moments[0];
      const at::Tensor direction = at::mul(m, b1).add_(g, 1 - b1).sign_();
      m.mul_(b2).add_(g, 1 - b2);
      apply_decoupled(slot.param, direction, options.learning_rate * slot.rate, slot.weight_decay,
                      weight_rounding(slot));
    }
  }
};

}  // namespace

std::unique_ptr<Optimizer> make_lion(OptimizerParts parts) { return std::make_unique<Lion>(parts); }

}  // namespace trireme::optim
