// Switch Transformer (Fedus, Zoph, Shazeer 2021): the best expert alone, y = p_i E_i(x), so that the router has a
// gradient; an expert takes ceil(tokens / experts * capacity_factor) tokens in their order, the others pass the layer
// by. f_i counts choices before any is dropped. Jitter of the router's input and dropout inside experts are the
// layer's: moe_layer.h.
#include "trireme/nn/moe/router_math.h"
#include "trireme/nn/moe/softmax_router.h"

namespace trireme::nn::moe {
namespace {

class Switch final : public SoftmaxRouter {
 public:
  explicit Switch(const spec::Experts& config) : SoftmaxRouter(config, /*normalised=*/false) {}

 protected:
  void select(const RouterInput& input, const Probabilities&, Routing& routing) const override {
    select_top_k(input, 1, routing);
    if (config().capacity_factor == 0 || !input.limited) return;
    drop_above_capacity(routing, experts(), expert_capacity(input.tokens(), 1, experts(), config().capacity_factor));
  }
};

}  // namespace

std::unique_ptr<Router> make_switch(const spec::Experts& config) { return std::make_unique<Switch>(config); }

}  // namespace trireme::nn::moe
