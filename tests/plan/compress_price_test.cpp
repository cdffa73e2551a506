#include "trireme/plan/compress_price.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/plan/features.h"

namespace trireme::plan {
namespace {

constexpr double kMbit = 1e6 / 8;

spec::Recipe priced_recipe(spec::CompressKind kind) {
  spec::Recipe recipe = feature_base();
  recipe.model.family = spec::Family::kGpt2;
  recipe.model.num_layers = 4;
  recipe.model.hidden_size = 256;
  recipe.model.head_dim = 64;
  recipe.model.ffn_size = 1024;
  recipe.model.vocab_size = 256;
  recipe.compress.kind = kind;
  return recipe;
}

CompressPrice price_of(const spec::Recipe& recipe, const CompressTask& task) {
  return price_compression(recipe, *spec::shape_of(recipe.model), task);
}

constexpr CompressTask kTask{.copies = 4, .compute_s = 0.4, .latency_s = 0.005};

/// On 100 Mbit/s every method gains, on 10 Gbit/s none does.
TEST(CompressPrice, PaysOnSlowNetworksOnly) {
  for (const auto kind : {spec::CompressKind::kOnebitSgd, spec::CompressKind::kQsgd, spec::CompressKind::kPowerSgd,
                          spec::CompressKind::kDgc, spec::CompressKind::kOnebitAdam, spec::CompressKind::kDiloco}) {
    const CompressPrice price = price_of(priced_recipe(kind), kTask);
    ASSERT_TRUE(price.pays_below.has_value()) << spec::compress_name(kind);
    EXPECT_GT(*price.pays_below, 100 * kMbit) << spec::compress_name(kind);
    EXPECT_LT(*price.pays_below, 10'000 * kMbit) << spec::compress_name(kind);
    EXPECT_LT(price.step(kTask, 100 * kMbit), price.dense_step(kTask, 100 * kMbit));
    EXPECT_GT(price.step(kTask, 10'000 * kMbit), price.dense_step(kTask, 10'000 * kMbit));
    EXPECT_NEAR(price.step(kTask, *price.pays_below), price.dense_step(kTask, *price.pays_below), 1e-6);
    EXPECT_THAT(to_text(price, kTask, 10'000 * kMbit), testing::HasSubstr("does not pay"));
    EXPECT_THAT(to_text(price, kTask, 100 * kMbit), testing::HasSubstr("it pays below"));
  }
}

/// What is exchanged bucket by bucket hides behind backward, all but the last one; without overlap nothing does.
TEST(CompressPrice, HidesBucketsBehindBackward) {
  spec::Recipe recipe = priced_recipe(spec::CompressKind::kOnebitSgd);
  recipe.layout.bucket_mb = 0;
  const CompressPrice at_once = price_of(recipe, kTask);
  recipe.layout.bucket_mb = 1;
  const CompressPrice one_by_one = price_of(recipe, kTask);
  recipe.compress.overlap = false;
  const CompressPrice after = price_of(recipe, kTask);
  EXPECT_EQ(at_once.buckets, 1);
  EXPECT_EQ(after.buckets, 1);
  ASSERT_GT(one_by_one.buckets, 4);
  const double bandwidth = 100 * kMbit, wire = one_by_one.sent_bytes / bandwidth;
  ASSERT_LT(wire, 2.0 / 3 * kTask.compute_s) << "else it cannot hide";
  EXPECT_NEAR(after.step(kTask, bandwidth), at_once.step(kTask, bandwidth), 1e-12);
  EXPECT_NEAR(after.step(kTask, bandwidth) - one_by_one.step(kTask, bandwidth), wire * (1 - 1 / one_by_one.buckets),
              1e-9);
  recipe.compress = {.kind = spec::CompressKind::kCsc};
  EXPECT_EQ(price_of(recipe, kTask).buckets, 1) << "chunks are chosen among all";
}

/// Kernels are as fast as memory, on a core as they were measured; the network is that between nodes, or within one.
TEST(CompressPrice, IsOfTheHardware) {
  const spec::Recipe recipe = priced_recipe(spec::CompressKind::kOnebitSgd);
  const spec::ModelShape shape = *spec::shape_of(recipe.model);
  const auto there = [&](const char* hardware, int dp, int zero) {
    spec::ParallelConfig config;
    config.layout.dp = dp;
    config.layout.zero = zero;
    return compression_there(recipe, shape, config, cost::load_hardware(hardware), 0.4);
  };
  const auto core = there("local", 4, 0), node = there("dgx-h100", 8, 0), nodes = there("dgx-h100", 16, 2);
  ASSERT_TRUE(core && node && nodes);
  EXPECT_EQ(core->task.kernel_factor, 1);
  EXPECT_NEAR(node->price.kernel_s / core->price.kernel_s, 36.0 / 3350, 0.002);
  EXPECT_EQ(node->bandwidth, 450e9);
  EXPECT_EQ(nodes->bandwidth, 50e9);
  EXPECT_THAT(to_text(*nodes, recipe.compress.kind), testing::HasSubstr("it is refused with ZeRO-2"));
  EXPECT_FALSE(there("dgx-h100", 1, 0).has_value()) << "one copy sends to nobody";
}

/// The papers' formulas, of one matrix: 4096 x 4096 at rank 2 is 1,024 times fewer.
TEST(CompressPrice, CountsBytes) {
  spec::Recipe recipe = priced_recipe(spec::CompressKind::kPowerSgd);
  recipe.compress.rank = 2;
  recipe.model.hidden_size = recipe.model.ffn_size = 4096;
  recipe.model.head_dim = 1024;
  recipe.model.vocab_size = 4096;
  recipe.model.num_layers = 40;
  const CompressPrice price = price_of(recipe, kTask);
  EXPECT_GT(price.dense_bytes / price.sent_bytes, 500);
  spec::Recipe diloco = priced_recipe(spec::CompressKind::kDiloco);
  diloco.compress.interval = 50;
  const CompressPrice rare = price_of(diloco, kTask);
  EXPECT_NEAR(rare.dense_bytes / rare.sent_bytes, 50, 1e-6);
}

}  // namespace
}  // namespace trireme::plan
