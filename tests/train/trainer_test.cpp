#include "trireme/train/engine/trainer.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>

#include "tests/train/support.h"
#include "trireme/train/run/evaluate.h"

namespace trireme::train {
namespace {

using spec::Family;
using spec::Precision;

/// What a run ends with: losses, and every parameter.
struct Outcome {
  std::vector<double> losses, norms;
  std::map<std::string, at::Tensor> params;
  std::uint64_t hash = 0;
};

Outcome train(const spec::Recipe& recipe, int ranks, int steps) {
  Outcome outcome;
  with_trainers(recipe, ranks, [&](Trainer& trainer, comm::Rank& rank) {
    for (int step = 0; step < steps; ++step) {
      const StepReport report = trainer.step();
      if (rank.rank() != 0) continue;
      outcome.losses.push_back(report.loss);
      outcome.norms.push_back(report.gradient_norm);
    }
    const std::uint64_t hash = nn::total_hash(nn::hash_shares(trainer.state(), trainer.mesh(), 0));
    if (rank.rank() != 0) return;
    outcome.hash = hash;
    for (const nn::Param& param : trainer.model().params) outcome.params[param.name] = param.master.clone();
  });
  return outcome;
}

void expect_equal(const Outcome& a, const Outcome& b, double tolerance) {
  ASSERT_EQ(a.losses.size(), b.losses.size());
  for (std::size_t i = 0; i < a.losses.size(); ++i) {
    EXPECT_NEAR(a.losses[i], b.losses[i], tolerance * std::abs(a.losses[i])) << "step " << i + 1;
    EXPECT_NEAR(a.norms[i], b.norms[i], tolerance * a.norms[i]) << "step " << i + 1;
  }
  for (const auto& [name, tensor] : a.params) {
    const double difference = at::linalg_vector_norm(tensor - b.params.at(name)).item<double>();
    EXPECT_LE(difference, tolerance * (1 + at::linalg_vector_norm(tensor).item<double>())) << name;
  }
}

/// Five rows over 2, 3 and 7 ranks: uneven shares and ranks without any. In double the mean must be exact.
TEST(Trainer, RanksAndMicrobatchesChangeNothing) {
  for (const Family family : {Family::kGpt2, Family::kLlama, Family::kBert, Family::kTransformer}) {
    SCOPED_TRACE(static_cast<int>(family));
    spec::Recipe recipe = small_recipe(family, Precision::kFp64);
    recipe.model.dropout = 0.1;
    const Outcome serial = train(recipe, 1, 4);
    for (const int ranks : {2, 3, 7}) expect_equal(serial, train(recipe, ranks, 4), 1e-9);
    recipe.train.micro_batch_size = 2;
    expect_equal(serial, train(recipe, 1, 4), 1e-9);
    expect_equal(serial, train(recipe, 2, 4), 1e-9);
  }
}

TEST(Trainer, RepeatsItselfToTheBit) {
  for (const Precision precision : {Precision::kFp32, Precision::kBf16}) {
    const spec::Recipe recipe = small_recipe(Family::kLlama, precision);
    for (const int ranks : {1, 2, 3}) {
      const Outcome first = train(recipe, ranks, 5), second = train(recipe, ranks, 5);
      EXPECT_EQ(first.losses, second.losses);
      EXPECT_EQ(first.hash, second.hash);
    }
  }
}

TEST(Trainer, LearnsATaskDownToItsBestLoss) {
  spec::Recipe recipe = small_recipe(Family::kLlama);
  recipe.data.synthetic.kind = spec::SyntheticKind::kMarkov;
  recipe.batch.global_batch_tokens = 32 * 12;
  recipe.optim.learning_rate = 1e-2;
  const auto samples = data::open_samples(recipe, data::Split::kTrain);
  with_trainers(recipe, 1, [&](Trainer& trainer, comm::Rank& rank) {
    const double before = trainer.step().loss;
    for (int step = 0; step < 300; ++step) trainer.step();
    const auto validation = data::open_samples(recipe, data::Split::kValidation);
    const double loss = evaluate(trainer.model(), *validation, rank.world(), {.count = 256}).loss();
    const double best = *samples->best_loss();
    EXPECT_GT(before, best + 0.8);
    EXPECT_LT(loss, best + 0.15);
    EXPECT_GT(loss, best - 0.05);
  });
}

TEST(Trainer, FrozenParametersStayAndTheOthersMove) {
  spec::Recipe recipe = small_recipe(Family::kGpt2);
  recipe.train.freeze = {"embedding.*", "layers.0.*"};
  with_trainers(recipe, 1, [&](Trainer& trainer, comm::Rank&) {
    std::map<std::string, at::Tensor> before;
    for (const nn::Param& param : trainer.model().params) before[param.name] = param.master.clone();
    for (int step = 0; step < 3; ++step) trainer.step();
    int frozen = 0;
    for (const nn::Param& param : trainer.model().params) {
      const bool stays = param.name.starts_with("embedding.") || param.name.starts_with("layers.0.");
      EXPECT_EQ(at::equal(before[param.name], param.master), stays) << param.name;
      frozen += stays;
    }
    EXPECT_GT(frozen, 5);
  });
}

TEST(Trainer, SaysWhichPatternFreezesNothing) {
  spec::Recipe recipe = small_recipe(Family::kGpt2);
  recipe.train.freeze = {"layer.0.*"};
  try {
    train(recipe, 1, 1);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.message(), testing::HasSubstr("layer.0.*"));
  }
  recipe.train.freeze = {"*"};
  EXPECT_THROW(train(recipe, 1, 1), ConfigError);
}

/// A weight that is NaN or Inf: the step says where, on one rank and on two, and nothing has changed.
TEST(Trainer, NamesTheFirstPlaceThatIsNotFinite) {
  for (const int ranks : {1, 2}) {
    try {
      with_trainers(small_recipe(Family::kLlama), ranks, [&](Trainer& trainer, comm::Rank&) {
        trainer.step();
        nn::Param& param = trainer.model().params.at("layers.1.mlp.out.weight");
        param.master.view({-1})[0] = std::numeric_limits<float>::quiet_NaN();
        nn::publish(param);
        trainer.step();
      });
      FAIL();
    } catch (const NonFiniteError& error) {
      EXPECT_EQ(error.step(), 2);
      EXPECT_THAT(error.message(), testing::HasSubstr("weights of layers.1.mlp.out.weight"));
    }
  }
}

TEST(Trainer, NamesTheLayerWhoseOutputOverflows) {
  try {
    with_trainers(small_recipe(Family::kLlama), 1, [&](Trainer& trainer, comm::Rank&) {
      nn::Param& param = trainer.model().params.at("layers.1.mlp.in.weight");
      param.master.fill_(1e30F);  // gate times up is beyond float
      nn::publish(param);
      trainer.step();
    });
    FAIL();
  } catch (const NonFiniteError& error) {
    EXPECT_THAT(error.message(), testing::HasSubstr("output of layers.1"));
  }
}

TEST(Trainer, CountsTheFlopsOfAllRanks) {
  const spec::Recipe recipe = small_recipe(Family::kLlama);
  const double expected = 3 * 5 * spec::count_flops(model_shape(recipe), 12).total();
  for (const int ranks : {1, 3}) {
    with_trainers(recipe, ranks,
                  [&](Trainer& trainer, comm::Rank&) { EXPECT_NEAR(trainer.step().flops, expected, 1e-9 * expected); });
  }
}

TEST(Trainer, Fp16SkipsStepsThatOverflowAndRecovers) {
  spec::Recipe recipe = small_recipe(Family::kGpt2, Precision::kFp16);
  recipe.precision.loss_scale.initial = 16777216;
  with_trainers(recipe, 2, [&](Trainer& trainer, comm::Rank&) {
    int skipped = 0, taken = 0;
    for (int step = 0; step < 30; ++step) (trainer.step().taken ? taken : skipped)++;
    EXPECT_GT(skipped, 0);
    EXPECT_GT(taken, 10);
    EXPECT_EQ(trainer.position().step, 30);
  });
}

TEST(Trainer, NamesALengthThatTheModelHasNoPositionsFor) {
  spec::Recipe recipe = small_recipe(Family::kGpt2);
  recipe.model.max_seq_len = 8;
  EXPECT_THROW(train(recipe, 1, 1), ConfigError);
}

TEST(Trainer, KeepingWhatActivationsGaveChangesNothing) {
  for (const spec::Family family : {spec::Family::kGpt2, spec::Family::kLlama}) {
    const auto losses = [&](bool keep) {
      spec::Recipe recipe = small_recipe(family, spec::Precision::kFp64);
      recipe.train.save_mlp_activations = keep;
      std::vector<double> out;
      with_trainers(recipe, 1, [&](Trainer& trainer, comm::Rank&) {
        for (int step = 0; step < 4; ++step) out.push_back(trainer.step().gradient_norm);
      });
      return out;
    };
    const auto again = losses(false), kept = losses(true);
    for (std::size_t i = 0; i < again.size(); ++i) EXPECT_NEAR(kept[i], again[i], 1e-12 * again[i]);
  }
}

/// Pre-norm and post-norm, an encoder beside a decoder, dropout, layers that run again, weight gradients that are put
/// off.
TEST(Trainer, MakingNormsAgainChangesNoBit) {
  const auto losses = [](spec::Recipe recipe, int ranks, bool remake, std::int64_t& kept) {
    recipe.train.recompute_norms = remake;
    std::vector<double> out;
    with_trainers(recipe, ranks, [&](Trainer& trainer, comm::Rank& rank) {
      for (int step = 0; step < 3; ++step) {
        const StepReport report = trainer.step();
        if (rank.rank() == 0) out.insert(out.end(), {report.loss, report.gradient_norm});
      }
      if (rank.rank() == 0) kept = trainer.engine().account().activations;
    });
    return out;
  };
  const auto expect_same = [&](const spec::Recipe& recipe, int ranks, bool less, const char* what) {
    std::int64_t all = 0, some = 0;
    EXPECT_EQ(losses(recipe, ranks, true, some), losses(recipe, ranks, false, all)) << what;
    if (recipe.layout.pp > 1) return;  // of stages nobody counts them here
    EXPECT_TRUE(less ? some < all : some == all) << what << ": " << some << " of " << all;
  };
  for (const Family family : {Family::kGpt2, Family::kLlama, Family::kTransformer, Family::kBert}) {
    spec::Recipe recipe = small_recipe(family, spec::Precision::kBf16);
    recipe.model.dropout = 0.1;
    const bool pre_norm = family == Family::kGpt2 || family == Family::kLlama;
    expect_same(recipe, 1, pre_norm, "plain");
    recipe.train.recompute = spec::RecomputeKind::kEvery;
    recipe.train.recompute_every = 2;
    expect_same(recipe, 1, pre_norm, "some layers run again");
  }
  spec::Recipe recipe = small_recipe(Family::kLlama, spec::Precision::kFp32);
  recipe.batch.global_batch_tokens = 8 * 12;
  recipe.train.micro_batch_size = 1;
  recipe.layout.pp = 2;
  recipe.pipeline.schedule = "zb-h1";
  expect_same(recipe, 2, true, "weight gradients are deferred");
}

/// train.recompute = "budget": the same numbers, and a forward leaves no more than allowed.
TEST(Recompute, KeepsActivationsWithinABudget) {
  spec::Recipe recipe = small_recipe(Family::kGpt2, spec::Precision::kFp32);
  recipe.model.num_layers = 9;
  recipe.train.micro_batch_size = 5;
  const auto run = [&](std::vector<double>& losses) {
    std::int64_t saved = 0;
    with_trainers(recipe, 1, [&](Trainer& trainer, comm::Rank&) {
      for (int step = 0; step < 2; ++step) losses.push_back(trainer.step().loss);
      saved = trainer.engine().account().activations;
    });
    return saved;
  };
  std::vector<double> plain_losses;
  const std::int64_t plain = run(plain_losses);
  recipe.train.recompute = spec::RecomputeKind::kRecursive;
  std::vector<double> recursive_losses;
  const std::int64_t recursive = run(recursive_losses);
  EXPECT_EQ(recursive_losses, plain_losses);
  EXPECT_LT(recursive, plain / 3);
  recipe.train.recompute = spec::RecomputeKind::kBudget;
  // The embedding and the head save beside the blocks: token ids, the last norm's input and statistics, the head's
  // input gradient.
  const std::int64_t tokens = 5 * 12, beside = tokens * (8 + 2 * 16 * 4 + 2 * 4);
  std::int64_t before = plain;
  for (const double share : {0.8, 0.6, 0.4}) {
    const double budget = share * static_cast<double>(plain - beside);
    recipe.train.recompute_gb = budget / 1e9;
    std::vector<double> losses;
    const std::int64_t saved = run(losses);
    EXPECT_EQ(losses, plain_losses) << share;
    EXPECT_LE(saved, static_cast<std::int64_t>(budget) + beside) << share;
    EXPECT_LT(saved, before) << share;
    before = saved;
  }
  recipe.train.recompute_gb = 1e-6;
  std::vector<double> losses;
  EXPECT_THROW(run(losses), ConfigError);
}

}  // namespace
}  // namespace trireme::train
