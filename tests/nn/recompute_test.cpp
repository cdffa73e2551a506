#include "trireme/nn/recompute.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/nn/layer_cases.h"
#include "trireme/comm/rank.h"

namespace trireme::nn {
namespace {

TEST(SqrtSegments, CoverTheBlocksAndGrowAsTheRoot) {
  for (std::int64_t blocks = 0; blocks <= 100; ++blocks) {
    const auto lengths = sqrt_segments(blocks);
    std::int64_t sum = 0, longest = 0;
    for (const std::int64_t length : lengths) {
      EXPECT_GE(length, 1);
      sum += length;
      longest = std::max(longest, length);
    }
    EXPECT_EQ(sum, blocks);
    // Kept inputs plus the activations of one segment: about 2 sqrt(n), Chen et al.'s bound.
    EXPECT_LE(static_cast<double>(lengths.size()) + static_cast<double>(longest), 2 * std::sqrt(double(blocks)) + 2);
  }
}

LayerCase block_case() {
  for (const LayerCase& layer_case : layer_cases({})) {
    if (layer_case.name == "block_llama") return layer_case;
  }
  throw std::logic_error("no such case");
}

/// Nine blocks, each with parameters of its own, wrapped.
struct Stack {
  std::vector<std::unique_ptr<Params>> params;
  std::unique_ptr<Chain> chain;
  explicit Stack(const Recompute& recompute) {
    std::vector<std::unique_ptr<Layer>> blocks;
    for (int i = 0; i < 9; ++i) {
      params.push_back(std::make_unique<Params>());
      blocks.push_back(block_case().build(*params.back()));
      initialise(*params.back(), Precision::kBf16, static_cast<std::uint64_t>(i));
    }
    chain = std::make_unique<Chain>(recomputed(
        std::move(blocks), plan_of(recompute, static_cast<std::int64_t>(blocks.size())), recompute.partition));
  }
};

struct Outcome {
  at::Tensor y, dx;
  std::vector<at::Tensor> gradients;
  std::int64_t bytes;
};

Outcome run_recomputed(const Recompute& recompute, bool deferred) {
  Stack stack(recompute);
  const LayerCase layer_case = block_case();
  Context context = case_context(layer_case);
  Tape tape;
  Outcome out;
  out.y = stack.chain->forward(case_inputs(layer_case, at::kBFloat16), context, &tape)[0];
  out.bytes = tape.bytes();
  tape.set_deferring(deferred);
  out.dx = stack.chain->backward({at::ones_like(out.y)}, context, tape)[0];
  tape.run_weight_gradients();
  for (auto& params : stack.params) {
    for (Param& param : *params) out.gradients.push_back(param.gradient);
  }
  return out;
}

TEST(Recompute, EveryKindGivesTheSameBits) {
  const Outcome plain = run_recomputed({}, false);
  for (const bool deferred : {false, true}) {
    for (const Recompute& recompute : {Recompute{RecomputeKind::kFull},
                                       {RecomputeKind::kEvery, 1},
                                       {RecomputeKind::kEvery, 3},
                                       {RecomputeKind::kSqrt},
                                       {RecomputeKind::kRecursive},
                                       {.kind = RecomputeKind::kBudget, .block = {10, 1, 1}, .budget = 26}}) {
      const Outcome again = run_recomputed(recompute, deferred);
      EXPECT_TRUE(at::equal(plain.y, again.y));
      EXPECT_TRUE(at::equal(plain.dx, again.dx));
      ASSERT_EQ(plain.gradients.size(), again.gradients.size());
      for (std::size_t i = 0; i < plain.gradients.size(); ++i) {
        EXPECT_TRUE(at::equal(plain.gradients[i], again.gradients[i])) << i;
      }
    }
  }
}

TEST(Recompute, KeepsLessTheMoreIsMadeAgain) {
  const std::int64_t none = run_recomputed({}, false).bytes,
                     third = run_recomputed({RecomputeKind::kEvery, 3}, false).bytes;
  const std::int64_t full = run_recomputed({RecomputeKind::kFull}, false).bytes,
                     root = run_recomputed({RecomputeKind::kSqrt}, false).bytes;
  EXPECT_LT(third, none);
  EXPECT_LT(full, third);
  EXPECT_LT(root, full);
  const std::int64_t input = 2 * 13 * 24 * 2;  // batch x sequence x width, bfloat16
  EXPECT_EQ(full, 9 * input);
  EXPECT_EQ(root, 3 * input);
}

/// Ranks with the same inputs keep a part each, whether or not they divide: the same bits in less memory (ZeRO-R).
TEST(Recompute, SharesOutWhatIsKept) {
  for (const int ranks : {2, 5}) {
    comm::run_ranks(ranks, [&](comm::Rank& rank) {
      for (const RecomputeKind kind : {RecomputeKind::kFull, RecomputeKind::kEvery, RecomputeKind::kSqrt}) {
        const Outcome whole = run_recomputed({.kind = kind}, false);
        const Outcome shared = run_recomputed({.kind = kind, .partition = &rank.world()}, false);
        EXPECT_TRUE(at::equal(shared.y, whole.y));
        EXPECT_TRUE(at::equal(shared.dx, whole.dx));
        for (std::size_t i = 0; i < whole.gradients.size(); ++i)
          EXPECT_TRUE(at::equal(shared.gradients[i], whole.gradients[i])) << i;
        EXPECT_LT(shared.bytes, whole.bytes);
        if (kind != RecomputeKind::kEvery) {
          EXPECT_NEAR(static_cast<double>(shared.bytes), static_cast<double>(whole.bytes) / ranks,
                      0.01 * static_cast<double>(whole.bytes));
        }
      }
    });
  }
}

}  // namespace
}  // namespace trireme::nn
