// Adam (Kingma, Ba 2014) and AdamW (Loshchilov, Hutter 2017):
//   m <- b1 m + (1 - b1) g,  v <- b2 v + (1 - b2) g^2,  w <- w - rate (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps).
// Adam adds decay times w to g; AdamW takes rate times decay times w from w.
#include "trireme/optim/optimizer.h"

namespace trireme::optim {
namespace {

class Adam final : public Optimizer {
 public:
  Adam(const spec::OptimConfig& config, nn::Params& params) : Optimizer(config, params, {"m", "v"}) {}

 private:
  void update(std::span<Slot> slots, const StepOptions& options) override {
    std::vector<kernels::AdamWUpdate> updates;
    updates.reserve(slots.size());
    for (Slot& slot : slots) {
      updates.push_back({.tensors = tensors(slot, options),
                         .m = slot.moments[0],
                         .v = slot.moments[1],
                         .options = {.learning_rate = options.learning_rate * slot.rate,
                                     .weight_decay = slot.weight_decay,
                                     .beta1 = config().beta1,
                                     .beta2 = config().beta2,
                                     .epsilon = spec::epsilon_of(config()),
                                     .step = steps(),
                                     .decoupled = config().kind == spec::OptimizerKind::kAdamw,
                                     .rounding = rounding_of(slot),
                                     .variance_step = adam_phase().variance_updates,
                                     .freeze_variance = adam_phase().freeze_variance,
                                     .gradient_is_momentum = adam_phase().gradient_is_momentum}});
    }
    if (!options.updated) return kernels::adamw_updates(updates);
    for (std::size_t i = 0; i < updates.size(); ++i) {
      kernels::adamw_updates({&updates[i], 1});
      options.updated(slots[i].param);
    }
  }
};

}  // namespace

std::unique_ptr<Optimizer> make_adam(OptimizerParts parts) {
  return std::make_unique<Adam>(parts.config, parts.params);
}

}  // namespace trireme::optim
