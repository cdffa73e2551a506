// Expert choice (Zhou et al. 2022): each expert takes the ceil(tokens * top_k / experts) tokens of the group with the
// largest probability for it, ties to the lower token; the gate is that probability. Loads are even by construction, so
// there is no auxiliary loss. A token is taken by any number of experts, and which depends on tokens after it: a model
// with it can be trained and evaluated, not generate.
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/nn/moe/router_math.h"
#include "trireme/nn/moe/softmax_router.h"

namespace trireme::nn::moe {
namespace {

class ExpertChoice final : public SoftmaxRouter {
 public:
  explicit ExpertChoice(const spec::Experts& config) : SoftmaxRouter(config, /*normalised=*/false) {}
  std::int64_t most_choices() const override { return experts(); }
  bool looks_at_other_tokens() const override { return true; }

 protected:
  bool has_aux_loss() const override { return false; }

  void select(const RouterInput& input, const Probabilities& probabilities, Routing& routing) const override {
    const std::int64_t each = expert_capacity(input.tokens(), config().top_k, experts(), 1);
    std::vector<TakenToken> taken;
    for (std::int64_t expert = 0; expert < experts(); ++expert) {
      for (const std::int32_t token : top_tokens(probabilities.p, experts(), expert, each)) {
        taken.push_back(
            {static_cast<std::int32_t>(expert), token, probabilities.row(token)[static_cast<std::size_t>(expert)]});
      }
    }
    set_choices(routing, input.tokens(), std::move(taken));
  }
};

}  // namespace

std::unique_ptr<Router> make_expert_choice(const spec::Experts& config) {
  return std::make_unique<ExpertChoice>(config);
}

}  // namespace trireme::nn::moe
