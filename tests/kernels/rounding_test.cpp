// AdamW over bfloat16 weights and moments: every number is one of its two neighbours, and right in the mean.
#include <ATen/ops/equal.h>

#include <functional>
#include <limits>
#include <tuple>

#include "tests/kernels/support.h"
#include "trireme/kernels/update.h"

namespace trireme::kernels {
namespace {

struct Kept {
  at::Tensor weight, m, v;
  explicit Kept(const at::Tensor& start, at::ScalarType type)
      : weight(start.to(type)), m(at::zeros_like(weight)), v(at::zeros_like(weight)) {}
  void step(const at::Tensor& gradient, AdamW options) {
    at::Tensor g = gradient.to(weight.scalar_type()), none;
    adamw_update({.weight = weight, .gradient = g, .low = none}, m, v, options);
  }
};

AdamW options_of(int step, std::uint64_t rounding, double rate = 1e-3) {
  return {.learning_rate = rate, .weight_decay = 0.1, .beta2 = 0.95, .step = step, .rounding = rounding};
}

/// Below and above: the bfloat16s that a number lies between.
void expect_neighbours(const at::Tensor& rounded, const at::Tensor& exact, const char* what) {
  const at::Tensor gap = rounded.to(at::kDouble).sub(exact).abs();
  const at::Tensor unit = exact.abs().mul(0x1p-7).add(1e-30);  // a unit in the last place, or up to two
  EXPECT_EQ(gap.gt(unit.mul(1.001)).sum().item<std::int64_t>(), 0) << what;
}

TEST(StochasticRounding, TakesANeighbourAndIsRightInTheMean) {
  const Threads one(1);
  for (const InstructionSet set : instruction_sets()) {
    const UseInstructionSet use(set);
    SCOPED_TRACE(to_string(set));
    const std::int64_t count = 1 << 16;
    for (const double start : {1.0, -0.37, 1e-3}) {
      const at::Tensor first = at::full({count}, start, at::kDouble).to(at::kBFloat16).to(at::kDouble);
      const at::Tensor gradient = at::full({count}, 0.013, at::kDouble).to(at::kBFloat16).to(at::kDouble);
      Kept narrow(first, at::kBFloat16), exact(first, at::kDouble);
      narrow.step(gradient, options_of(1, 12345));
      exact.step(gradient, options_of(1, 0));
      for (const auto& [name, got, right] : {std::tuple{"weight", narrow.weight, exact.weight},
                                             std::tuple{"m", narrow.m, exact.m}, std::tuple{"v", narrow.v, exact.v}}) {
        expect_neighbours(got, right, name);
        const double value = right[0].item<double>(), mean = got.to(at::kDouble).mean().item<double>();
        // Five standard deviations of a mean of `count` draws that are at most a unit apart, and what float rounds
        // where a weight and its update nearly cancel.
        const double dropout_rng = 5 * 0.5 * std::abs(value) * 0x1p-7 / std::sqrt(static_cast<double>(count));
        EXPECT_NEAR(mean, value, dropout_rng + 0x1p-22 * std::abs(start)) << name;
      }
    }
  }
}

/// Updates far below half a unit in the last place: to nearest, no weight would ever move.
TEST(StochasticRounding, FollowsTheFormulaWhereNearestStandsStill) {
  const Threads one(1);
  const std::int64_t count = 20000;
  const at::Tensor start = at::ones({count}, at::kDouble);
  Kept narrow(start, at::kBFloat16), exact(start, at::kDouble), nearest(start, at::kFloat);
  at::Tensor rounded = nearest.weight.to(at::kBFloat16);
  for (int step = 1; step <= 200; ++step) {
    const at::Tensor gradient =
        normal_tensor({count}, at::kDouble, fmt::format("g{}", step), 0.1).add(1).to(at::kBFloat16).to(at::kDouble);
    narrow.step(gradient, options_of(step, 77 + static_cast<std::uint64_t>(step), 1e-4));
    exact.step(gradient, options_of(step, 0, 1e-4));
    nearest.weight = rounded.to(at::kFloat);
    nearest.step(gradient, options_of(step, 0, 1e-4));
    rounded = nearest.weight.to(at::kBFloat16);
  }
  const double moved = 1 - exact.weight.mean().item<double>();
  EXPECT_GT(moved, 0.015);
  EXPECT_NEAR(narrow.weight.to(at::kDouble).mean().item<double>(), 1 - moved, 0.02 * moved);
  EXPECT_EQ(rounded.ne(1).sum().item<std::int64_t>(), 0);
  // What a second moment kept to nearest could not do: follow gradients that become smaller.
  EXPECT_NEAR(narrow.v.to(at::kDouble).mean().item<double>(), exact.v.mean().item<double>(), 0.01);
}

TEST(StochasticRounding, GivesAPartTheBitsOfTheWhole) {
  const Threads one(1);
  const std::int64_t count = 1000, cut = 333;
  const at::Tensor start = normal_tensor({count}, at::kDouble, "w"),
                   gradient = normal_tensor({count}, at::kDouble, "g");
  Kept whole(start, at::kBFloat16);
  whole.step(gradient, options_of(1, 5));
  for (const auto& [begin, end] : {std::pair{std::int64_t{0}, cut}, std::pair{cut, count}}) {
    Kept part(start.narrow(0, begin, end - begin), at::kBFloat16);
    part.step(gradient.narrow(0, begin, end - begin), options_of(1, rounding_from(5, begin)));
    EXPECT_TRUE(at::equal(part.weight, whole.weight.narrow(0, begin, end - begin)));
    EXPECT_TRUE(at::equal(part.v, whole.v.narrow(0, begin, end - begin)));
  }
}

/// Of the other updates: the new weight of each, of a bfloat16 one by chance beside a double's.
struct OtherUpdate {
  const char* name;
  std::function<void(const UpdateTensors& tensors, at::Tensor& first, at::Tensor& second)> step;
};

std::vector<OtherUpdate> other_updates() {
  return {{"sgd",
           [](const auto& t, auto& v, auto&) {
             sgd_update(t, v, {.learning_rate = 0.01, .weight_decay = 0.1, .momentum = 0.9, .first = true});
           }},
          {"adagrad", [](const auto& t, auto&, auto& s) { adagrad_update(t, s, {.learning_rate = 1e-3}); }},
          {"lars",
           [](const auto& t, auto& v, auto&) {
             const double ratio = lars_ratio(lars_norms(t), {.learning_rate = 1, .weight_decay = 0.1});
             lars_update(t, v, ratio, {.learning_rate = 1, .weight_decay = 0.1});
           }},
          {"lamb", [](const auto& t, auto& m, auto& v) {
             const at::ScalarType type = m.scalar_type();
             at::Tensor update = at::empty(t.weight.sizes(), t.weight.options().dtype(type));
             const NormPair norms = lamb_direction(t, m, v, update, options_of(1, 0));
             apply_direction(t, update, 1e-3 * lamb_ratio(norms));
           }}};
}

TEST(StochasticRounding, OfEveryUpdateTakesANeighbourAndIsRightInTheMean) {
  const Threads one(1);
  for (const InstructionSet set : instruction_sets()) {
    const UseInstructionSet use(set);
    for (const OtherUpdate& update : other_updates()) {
      SCOPED_TRACE(fmt::format("{} with {}", update.name, to_string(set)));
      const std::int64_t count = (1 << 16) + 5;
      const at::Tensor start = at::full({count}, -0.37, at::kDouble).to(at::kBFloat16);
      const at::Tensor slope = at::full({count}, 0.013, at::kDouble).to(at::kBFloat16);
      const auto after = [&](at::ScalarType type, at::ScalarType state, std::uint64_t rounding) {
        at::Tensor weight = start.to(type, /*non_blocking=*/false, /*copy=*/true), gradient = slope.to(type), none;
        at::Tensor first = at::zeros({count}, state), second = at::zeros({count}, state);
        update.step({.weight = weight, .gradient = gradient, .low = none, .rounding = rounding}, first, second);
        return weight.to(at::kDouble);
      };
      const at::Tensor exact = after(at::kDouble, at::kDouble, 0), got = after(at::kBFloat16, at::kFloat, 12345);
      expect_neighbours(got, exact, update.name);
      EXPECT_NE(exact[0].item<double>(), start[0].item<double>());
      EXPECT_NEAR(got.mean().item<double>(), exact[0].item<double>(),
                  5 * 0.5 * 0.37 * 0x1p-7 / std::sqrt(static_cast<double>(count)) + 0x1p-22);
      EXPECT_TRUE(at::equal(got, after(at::kBFloat16, at::kFloat, 12345))) << "the same draws";
      EXPECT_FALSE(at::equal(got, after(at::kBFloat16, at::kFloat, 12346))) << "others";
      EXPECT_THAT(refusal([&] { after(at::kBFloat16, at::kFloat, 0); }), testing::HasSubstr("float"));
    }
  }
}

TEST(StochasticRounding, StoresByTheSameChances) {
  const Threads one(1);
  const std::int64_t count = 1000, cut = 333;
  const at::Tensor wide = normal_tensor({count}, at::kFloat, "w");
  at::Tensor weight = at::zeros({count}, at::kBFloat16), none;
  store_rounded(weight, wide, 7);
  expect_neighbours(weight, wide.to(at::kDouble), "stored");
  at::Tensor part = at::zeros({count - cut}, at::kBFloat16);
  store_rounded(part, wide.narrow(0, cut, count - cut).contiguous(), rounding_from(7, cut));
  EXPECT_TRUE(at::equal(part, weight.narrow(0, cut, count - cut)));
  // An update that adds what is missing draws as it does.
  at::Tensor zero = at::zeros({count}, at::kBFloat16);
  apply_direction({.weight = zero, .gradient = none, .low = none, .rounding = 7}, wide, -1);
  EXPECT_TRUE(at::equal(zero, weight));
}

TEST(StochasticRounding, KeepsWhatIsNotFinite) {
  at::Tensor start = at::ones({4}, at::kDouble);
  start[0] = std::numeric_limits<double>::infinity(), start[1] = std::nan("");
  Kept kept(start, at::kBFloat16);
  kept.step(at::zeros({4}, at::kDouble), options_of(1, 9));
  EXPECT_FALSE(std::isfinite(kept.weight[0].item<double>()));
  EXPECT_TRUE(std::isnan(kept.weight[1].item<double>()));
  EXPECT_NEAR(kept.weight[2].item<double>(), 1, 0.01);
}

TEST(StochasticRounding, IsAskedForByName) {
  Kept kept(at::ones({4}, at::kDouble), at::kBFloat16);
  EXPECT_THAT(refusal([&] { kept.step(at::ones({4}, at::kDouble), options_of(1, 0)); }), testing::HasSubstr("float"));
}

}  // namespace
}  // namespace trireme::kernels
