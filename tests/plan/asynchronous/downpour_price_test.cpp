// What Downpour SGD costs: bytes are those that n_fetch, n_push, copies and filters say, and who is slower sets the
// pace.
#include "trireme/plan/asynchronous/downpour_price.h"

#include <gtest/gtest.h>

namespace trireme::plan {
namespace {

TEST(DownpourPrice, CountsWhatTravelsAndWhoIsSlower) {
  spec::Recipe recipe;
  recipe.train.mode = spec::TrainMode::kDownpour;
  recipe.optim.kind = spec::OptimizerKind::kAdagrad;
  recipe.precision.compute = spec::Precision::kFp32;
  recipe.downpour = {.servers = 2, .copies = 1, .n_fetch = 2, .n_push = 4, .tau = 1};
  const DownpourTask task{.replicas = 8, .compute_s = 1, .bytes_per_second = 1e9};
  const DownpourPrice price = price_downpour(recipe, 1e6, task);
  EXPECT_DOUBLE_EQ(price.pull_bytes, 2e6);
  EXPECT_DOUBLE_EQ(price.push_bytes, 1e6);
  EXPECT_DOUBLE_EQ(price.server_bytes, 8 * 3e6 / 2);
  EXPECT_DOUBLE_EQ(price.part_s, 1 + 2e-3) << "a push hides behind the next part";
  EXPECT_DOUBLE_EQ(price.step_s(), price.part_s);
  EXPECT_DOUBLE_EQ(price.server_memory, 2 * 4e6 / 2) << "weights and Adagrad's sums";
  recipe.downpour.tau = 0;
  EXPECT_DOUBLE_EQ(price_downpour(recipe, 1e6, task).part_s, 1 + 3e-3);
  recipe.downpour.encoding = spec::PushEncoding::kFixed16;
  recipe.downpour.skip = 0.5;
  EXPECT_DOUBLE_EQ(price_downpour(recipe, 1e6, task).push_bytes, 1e6 / 4);
  recipe.downpour.copies = 2;
  EXPECT_GT(price_downpour(recipe, 1e6, task).server_bytes, price.server_bytes) << "copies of both planes";
  const DownpourTask fast{.replicas = 64, .compute_s = 1e-3, .bytes_per_second = 1e9};
  const DownpourPrice bound = price_downpour(recipe, 1e6, fast);
  EXPECT_DOUBLE_EQ(bound.step_s(), bound.server_s);
  EXPECT_NE(to_text(bound, fast).find("bound by servers"), std::string::npos);
}

/// L-BFGS: each portion's gradient travels, the weights once an evaluation, and the vectors lie in equal shards.
TEST(SandblasterPrice, CountsPortionsAndShards) {
  const DownpourTask task{.replicas = 4, .compute_s = 1, .bytes_per_second = 1e8};
  const SandblasterPrice price = price_sandblaster(1e6, 200, 25, task);
  EXPECT_DOUBLE_EQ(price.read_bytes, 8e6);
  EXPECT_DOUBLE_EQ(price.sent_bytes, 50 * 8e6);
  EXPECT_DOUBLE_EQ(price.evaluation_s, 1 + 51 * 8e6 / 1e8);
  EXPECT_DOUBLE_EQ(price.shard_memory, 25 * 8e6 / 4);
  EXPECT_LT(price_sandblaster(1e6, 8, 25, task).evaluation_s, price.evaluation_s) << "larger portions send less";
}

}  // namespace
}  // namespace trireme::plan
