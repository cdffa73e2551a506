// Adagrad (Duchi, Hazan, Singer 2011):  s <- s + g^2,  w <- w - rate g / (sqrt(s) + epsilon), g with decay.
#include "trireme/optim/optimizer.h"

namespace trireme::optim {
namespace {

class Adagrad final : public Optimizer {
 public:
  Adagrad(const spec::OptimConfig& config, nn::Params& params) : Optimizer(config, params, {"sum"}) {}

 private:
  void update(std::span<Slot> slots, const StepOptions& options) override {
    for (Slot& slot : slots) {
      kernels::adagrad_update(tensors(slot, options), slot.moments[0],
                              {.learning_rate = options.learning_rate * slot.rate,
                               .weight_decay = slot.weight_decay,
                               .epsilon = spec::epsilon_of(config())});
    }
  }
};

}  // namespace

std::unique_ptr<Optimizer> make_adagrad(OptimizerParts parts) {
  return std::make_unique<Adagrad>(parts.config, parts.params);
}

}  // namespace trireme::optim
