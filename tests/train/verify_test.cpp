#include "trireme/train/diagnose/verify.h"

#include <gtest/gtest.h>

#include "tests/train/support.h"

namespace trireme::train {
namespace {

using spec::Family;
using spec::Precision;

/// Rank 0's answer, after checking that every rank has the same.
VerifyResult run_verify(const VerifyRequest& request, int ranks) {
  VerifyResult result;
  comm::run_ranks(ranks, [&](comm::Rank& rank) {
    verify(request, rank, [&](std::size_t, const VerifyResult& mine) {
      double equal = mine.equal;
      rank.world().all_reduce(comm::Buffer{&equal, 1, comm::DType::kF64}, comm::Reduce::kSum).wait();
      EXPECT_TRUE(equal == 0 || equal == rank.ranks());
      if (rank.rank() == 0) result = mine;
    });
  });
  return result;
}

VerifyRequest request_of(Family family, Precision precision) {
  const spec::Recipe recipe = small_recipe(family, precision);
  return {.recipes = {recipe}, .reference = recipe, .steps = 4};
}

TEST(Verify, RanksThatShareStepsAreEqual) {
  for (const Family family : {Family::kGpt2, Family::kLlama, Family::kMistral, Family::kBert, Family::kTransformer}) {
    for (const Precision precision : {Precision::kFp64, Precision::kFp32, Precision::kBf16}) {
      for (const int ranks : {2, 3}) {
        const VerifyResult result = run_verify(request_of(family, precision), ranks);
        EXPECT_TRUE(result.equal) << static_cast<int>(family) << " " << static_cast<int>(precision) << ": "
                                  << result.gradients.name << " " << result.gradients.relative << ", "
                                  << result.weights.name << " " << result.weights.relative;
        EXPECT_EQ(result.steps.size(), 4U);
      }
    }
  }
}

TEST(Verify, NamesTheFirstGradientThatDiffers) {
  VerifyRequest request = request_of(Family::kGpt2, Precision::kFp64);
  request.reference.model.label_smoothing = 0.1;
  const VerifyResult result = run_verify(request, 2);
  EXPECT_FALSE(result.equal);
  EXPECT_EQ(result.first_step, 1);
  EXPECT_EQ(result.gradients.first_parting, "embedding.tokens.weight");
  EXPECT_GT(result.gradients.relative, 1e-3);
}

/// A factor that only the update sees: gradients of the first step agree, weights do not.
TEST(Verify, NoticesAnUpdateThatDiffers) {
  VerifyRequest request = request_of(Family::kLlama, Precision::kFp64);
  request.reference.optim.learning_rate *= 1.0001;
  const VerifyResult result = run_verify(request, 2);
  EXPECT_FALSE(result.equal);
  EXPECT_TRUE(result.gradients.first_parting.empty());
  EXPECT_FALSE(result.weights.first_parting.empty());
}

TEST(Verify, LeavesOutTheGradientsOfWhatIsFrozen) {
  VerifyRequest request = request_of(Family::kLlama, Precision::kFp64);
  request.recipes[0].train.freeze = request.reference.train.freeze = {"layers.*"};
  EXPECT_TRUE(run_verify(request, 2).equal);
}

/// Any layout may be the measure, in the same words.
TEST(Verify, ComparesTwoLayouts) {
  VerifyRequest request = request_of(Family::kLlama, Precision::kFp64);
  request.recipes[0].batch.global_batch_tokens = request.reference.batch.global_batch_tokens = 4 * 12;
  request.recipes[0].layout.tp = 2;
  request.reference.layout.zero = 3;
  request.reference_alone = false;
  EXPECT_TRUE(run_verify(request, 2).equal);
  request.reference.optim.learning_rate *= 1.0001;
  EXPECT_FALSE(run_verify(request, 2).equal);
}

/// tp, cp, pp and dp at once, as Llama 3 lays them out: recipes/verify-llama3.toml.
TEST(Verify, Llama3sFourAxesAreEqualToOneRank) {
  spec::Recipe recipe = spec::load_recipe({.file = TRIREME_RECIPES "/verify-llama3.toml"}).value;
  recipe.precision.compute = Precision::kFp64;
  const spec::LayoutConfig& layout = recipe.layout;
  EXPECT_TRUE(layout.tp > 1 && layout.cp > 1 && layout.pp > 1 && layout.dp.value_or(1) > 1 && layout.zero == 2);
  EXPECT_EQ(layout.order, "dp pp cp tp") << "tensor parallelism innermost";
  const VerifyResult result = verify_beside_one_rank(recipe, 16, 2);
  EXPECT_TRUE(result.equal) << result.gradients.name << " " << result.gradients.relative << ", " << result.weights.name
                            << " " << result.weights.relative;
  EXPECT_LT(result.gradients.relative, 1e-12);
}

}  // namespace
}  // namespace trireme::train
