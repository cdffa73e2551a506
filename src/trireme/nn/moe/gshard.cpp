// GShard (Lepikhin et al. 2020), algorithm 1: the two best experts, gates normalised by their sum before anything is
// dropped and not again after. In training the second is taken with probability min(1, 2 g2): one with a small gate
// seldom earns its place. All first choices take their places in the order of tokens, then the second ones. f_i of the
// auxiliary loss counts first choices; its factor 1/E makes even loads 1/E^2.
#include <fmt/format.h>

#include "trireme/base/random.h"
#include "trireme/nn/moe/router_math.h"
#include "trireme/nn/moe/softmax_router.h"

namespace trireme::nn::moe {
namespace {

class Gshard final : public SoftmaxRouter {
 public:
  explicit Gshard(const spec::Experts& config) : SoftmaxRouter(config, /*normalised=*/true) {}

 protected:
  void select(const RouterInput& input, const Probabilities& probabilities, Routing& routing) const override {
    select_top_k(input, 2, routing);
    if (input.training && config().random_second_choice) drop_by_chance(input, probabilities, routing);
    if (config().capacity_factor == 0 || !input.limited) return;
    drop_above_capacity(routing, experts(), expert_capacity(input.tokens(), 2, experts(), config().capacity_factor));
  }

  double factor() const override { return 1 / static_cast<double>(experts()); }

  std::vector<std::int64_t> counts_of(const Routing& routing) const override {
    std::vector<std::int64_t> counts(static_cast<std::size_t>(experts()), 0);
    for (std::int64_t token = 0; token < routing.tokens(); ++token) {
      ++counts[static_cast<std::size_t>(routing.of_token(token)[0].expert)];
    }
    return counts;
  }

 private:
  static void drop_by_chance(const RouterInput& input, const Probabilities& probabilities, Routing& routing) {
    const Random draws(input.seed, fmt::format("router/{}/second choice/step {}", input.layer, input.step));
    for (std::int64_t token = 0; token < input.tokens(); ++token) {
      const auto at = static_cast<std::size_t>(routing.first[static_cast<std::size_t>(token)]);
      if (at + 1 >= static_cast<std::size_t>(routing.first[static_cast<std::size_t>(token) + 1])) continue;
      const auto p = probabilities.row(token);
      const double first = p[static_cast<std::size_t>(routing.choices[at].expert)];
      const double second = p[static_cast<std::size_t>(routing.choices[at + 1].expert)];
      const auto number = static_cast<std::uint64_t>(input.token_numbers[static_cast<std::size_t>(token)]);
      routing.choices[at + 1].kept = draws.uniform(number) < 2 * second / (first + second);
    }
  }
};

}  // namespace

std::unique_ptr<Router> make_gshard(const spec::Experts& config) { return std::make_unique<Gshard>(config); }

}  // namespace trireme::nn::moe
