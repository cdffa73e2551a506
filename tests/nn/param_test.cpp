#include "trireme/nn/param.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/layout/placing.h"

namespace trireme::nn {
namespace {

constexpr Init kNormal{Init::Kind::kNormal, 0.5};

TEST(Initialise, AnySplitDrawsTheSameNumbers) {
  const layout::Shape shape{12, 10};
  Params whole;
  whole.add("w", shape, kNormal, true);
  initialise(whole, Precision::kFp32, 3);
  const at::Tensor expected = whole.at("w").master;

  const layout::Mesh mesh({{"dp", 3}, {"tp", 4}});
  for (const std::size_t dimension : {0u, 1u}) {
    at::Tensor seen = at::full({12, 10}, NAN);
    for (int rank = 0; rank < mesh.ranks(); ++rank) {
      Params part;
      const layout::Placement placement = layout::Placing(mesh, rank, "w", shape).split(dimension, "tp").placement();
      part.add(placement, kNormal, true);
      initialise(part, Precision::kFp32, 3);
      const float* numbers = part.at("w").master.data_ptr<float>();
      for (const layout::ContiguousRun& run : layout::runs(placement)) {
        for (layout::Index i = 0; i < run.count; ++i) seen.view({-1})[run.global + i] = numbers[run.local + i];
      }
    }
    EXPECT_TRUE(at::equal(seen, expected));
  }
}

TEST(Initialise, FollowsTheRule) {
  Params params;
  params.add("zeros", {100}, {Init::Kind::kZeros}, false);
  params.add("ones", {100}, {Init::Kind::kOnes}, false);
  params.add("normal", {200, 200}, {Init::Kind::kNormal, 0.02}, true);
  params.add("uniform", {200, 200}, {Init::Kind::kUniform, 0.3}, true);
  initialise(params, Precision::kFp64, 9);
  EXPECT_EQ(params.at("zeros").master.abs().max().item<double>(), 0);
  EXPECT_EQ(params.at("ones").master.min().item<double>(), 1);
  EXPECT_NEAR(params.at("normal").master.std().item<double>(), 0.02, 0.0005);
  EXPECT_NEAR(params.at("normal").master.mean().item<double>(), 0, 0.0005);
  EXPECT_LE(params.at("uniform").master.abs().max().item<double>(), 0.3);
  EXPECT_NEAR(params.at("uniform").master.std().item<double>(), 0.3 / std::sqrt(3.0), 0.002);
}

TEST(Initialise, DependsOnSeedAndName) {
  Params params, other;
  params.add("a", {50}, kNormal, true);
  params.add("b", {50}, kNormal, true);
  other.add("a", {50}, kNormal, true);
  initialise(params, Precision::kFp32, 1);
  initialise(other, Precision::kFp32, 2);
  EXPECT_FALSE(at::equal(params.at("a").master, params.at("b").master));
  EXPECT_FALSE(at::equal(params.at("a").master, other.at("a").master));
}

TEST(Params, TheComputeCopyIsTheMasterRounded) {
  Params params;
  params.add("w", {64, 3}, kNormal, true);
  initialise(params, Precision::kBf16, 1);
  Param& w = params.at("w");
  EXPECT_EQ(w.value.scalar_type(), at::kBFloat16);
  EXPECT_EQ(w.master.scalar_type(), at::kFloat);
  EXPECT_TRUE(at::equal(w.value, w.master.to(at::kBFloat16)));
  initialise(params, Precision::kFp32, 1);
  EXPECT_TRUE(w.value.is_same(w.master));
}

/// Its type is asked for when there is none yet; a master is as wide as ever.
TEST(Params, AGradientMayHaveTheComputeType) {
  for (const auto& [precision, type] : {std::pair{Precision::kBf16, at::kBFloat16}, {Precision::kFp16, at::kHalf}}) {
    Params params;
    params.add("w", {8, 3}, kNormal, true);
    Param& w = params.at("w");
    EXPECT_EQ(gradient_type(precision, w), at::kFloat);
    w.narrow_gradient = true;
    EXPECT_EQ(gradient_type(precision, w), type);
    initialise(params, precision, 1);
    EXPECT_EQ(w.master.scalar_type(), at::kFloat);
    const at::Tensor dy = at::randn({5, 8}).to(type), x = at::randn({5, 3}).to(type);
    add_weight_grad(w, dy, x);
    EXPECT_EQ(w.gradient.scalar_type(), type);
    const at::Tensor once = at::mm(dy.t(), x);
    EXPECT_TRUE(at::equal(w.gradient, once));
    add_gradient(w, at::ones({8, 3}));
    EXPECT_TRUE(at::equal(w.gradient, once + at::ones({8, 3}, type)));
  }
}

TEST(Params, AWrongNameSuggestsTheRightOne) {
  Params params;
  params.add("layers.0.mlp.in.weight", {2, 2}, kNormal, true);
  try {
    params.at("layers.0.mlp.in.wieght");
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.hint(), testing::HasSubstr("layers.0.mlp.in.weight"));
  }
}

TEST(Gradient, AddsUpInTheMastersTypeAndForgets) {
  Params params;
  Param& w = params.add("w", {3}, kNormal, true);
  initialise(params, Precision::kBf16, 1);
  const at::Tensor tiny = at::full({3}, 0.001, at::kBFloat16), one = at::ones({3}, at::kBFloat16);
  add_gradient(w, one);
  for (int i = 0; i < 100; ++i) add_gradient(w, tiny);  // in bfloat16 the sum would stay 1
  EXPECT_NEAR(w.gradient[0].item<float>(), 1 + 100 * tiny[0].item<float>(), 1e-5);
  zero_grad(params);
  add_gradient(w, one);
  EXPECT_EQ(w.gradient[1].item<float>(), 1);
  zero_grad(params);
  EXPECT_EQ(gradient_to_add_to(w).abs().max().item<float>(), 0);
}

}  // namespace
}  // namespace trireme::nn
