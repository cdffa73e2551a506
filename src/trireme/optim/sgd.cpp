// Stochastic gradient descent with momentum:  v <- mu v + g,  w <- w - rate v;  Nesterov's: w <- w - rate (g + mu v),
// with g the gradient plus decay times w. The rate is not in the velocity, so changes of it need no correction of v
// (Goyal et al. 2017, section 3).
#include "trireme/optim/optimizer.h"

namespace trireme::optim {
namespace {

class Sgd final : public Optimizer {
 public:
  Sgd(const spec::OptimConfig& config, nn::Params& params)
      : Optimizer(config, params,
                  config.momentum > 0 ? std::vector<std::string>{"velocity"} : std::vector<std::string>{}) {}

 private:
  void update(std::span<Slot> slots, const StepOptions& options) override {
    at::Tensor none;
    for (Slot& slot : slots) {
      kernels::sgd_update(tensors(slot, options), slot.moments.empty() ? none : slot.moments[0],
                          {.learning_rate = options.learning_rate * slot.rate,
                           .weight_decay = slot.weight_decay,
                           .momentum = config().momentum,
                           .nesterov = config().nesterov,
                           .first = steps() == 1});
    }
  }
};

}  // namespace

std::unique_ptr<Optimizer> make_sgd(OptimizerParts parts) { return std::make_unique<Sgd>(parts.config, parts.params); }

}  // namespace trireme::optim
