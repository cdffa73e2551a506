// The k largest logits; gates are their softmax (Mixtral, Jiang et al. 2024) or, without norm_topk_prob, the
// probabilities among all experts (Qwen-MoE). Dropless unless there is a capacity factor. f_i of the auxiliary loss is
// a share of all k choices, as in Megatron-LM; the published code of Mixtral counts k times as much.
#include "trireme/nn/moe/router_math.h"
#include "trireme/nn/moe/softmax_router.h"

namespace trireme::nn::moe {
namespace {

class SoftmaxTopK final : public SoftmaxRouter {
 public:
  explicit SoftmaxTopK(const spec::Experts& config) : SoftmaxRouter(config, config.norm_topk_prob) {}

 protected:
  void select(const RouterInput& input, const Probabilities&, Routing& routing) const override {
    select_top_k(input, config().top_k, routing);
    if (config().capacity_factor == 0 || !input.limited) return;
    drop_above_capacity(routing, experts(),
                        expert_capacity(input.tokens(), config().top_k, experts(), config().capacity_factor));
  }
};

}  // namespace

std::unique_ptr<Router> make_softmax_top_k(const spec::Experts& config) {
  return std::make_unique<SoftmaxTopK>(config);
}

}  // namespace trireme::nn::moe
