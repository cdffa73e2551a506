// FP8 recipes on the CPU, where their GEMMs are emulated: they train as bf16 does, and copies agree on scales.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/train/support.h"
#include "trireme/base/error.h"

namespace trireme::train {
namespace {

using spec::GemmPrecision;

/// Sizes that FP8 GEMMs take: of 16, with scales of blocks of 128.
spec::Recipe fp8_recipe(spec::Family family, GemmPrecision gemm, std::int64_t grain) {
  spec::Recipe recipe = small_recipe(family, spec::Precision::kBf16);
  recipe.model.hidden_size = 2 * grain;
  recipe.model.num_heads = recipe.model.num_kv_heads = 2;
  recipe.model.head_dim = grain;
  recipe.model.ffn_size = 4 * grain;
  recipe.model.max_seq_len = recipe.data.seq_len = grain;
  recipe.batch.global_batch_tokens = 4 * grain;
  recipe.train.micro_batch_size = 2;
  recipe.precision.gemm = gemm;
  return recipe;
}

std::vector<double> losses(const spec::Recipe& recipe, int ranks, int steps) {
  std::vector<double> out;
  with_trainers(recipe, ranks, [&](Trainer& trainer, comm::Rank& rank) {
    for (int step = 0; step < steps; ++step) {
      const double loss = trainer.step().loss;
      if (rank.rank() == 0) out.push_back(loss);
    }
  });
  return out;
}

TEST(Fp8OnTheCpu, TrainsAsBfloat16DoesToAFewPercent) {
  struct Kind {
    GemmPrecision gemm;
    std::int64_t grain;
    int steps;
  };
  for (const auto& [gemm, grain, steps] : {Kind{GemmPrecision::kFp8, 32, 40}, Kind{GemmPrecision::kFp8Delayed, 32, 40},
                                           Kind{GemmPrecision::kFp8Blocks, 128, 6}}) {
    for (const spec::Family family : {spec::Family::kGpt2, spec::Family::kLlama}) {
      spec::Recipe recipe = fp8_recipe(family, gemm, grain);
      EXPECT_TRUE(spec::find_problems(recipe).empty());
      const auto narrow = losses(recipe, 1, steps);
      recipe.precision.gemm = GemmPrecision::kSame;
      const auto plain = losses(recipe, 1, steps);
      EXPECT_LT(plain.back(), plain.front());
      EXPECT_NE(narrow, plain) << "nothing was quantised";
      for (std::size_t i = 0; i < plain.size(); ++i)
        EXPECT_NEAR(narrow[i], plain[i], 0.05 * plain[i]) << "step " << i << " kind " << static_cast<int>(gemm);
    }
  }
}

/// Experts' grouped GEMMs too, whatever rows each has: they train as bf16 does, on one rank and sharded, and routers
/// stay as they are.
TEST(Fp8OnTheCpu, ExpertsTrainAsBfloat16DoesToAFewPercent) {
  struct Kind {
    GemmPrecision gemm;
    std::int64_t grain;
    int steps;
  };
  for (const auto& [gemm, grain, steps] : {Kind{GemmPrecision::kFp8, 32, 20}, Kind{GemmPrecision::kFp8Delayed, 32, 20},
                                           Kind{GemmPrecision::kFp8Blocks, 128, 4}}) {
    SCOPED_TRACE(static_cast<int>(gemm));
    spec::Recipe recipe = fp8_recipe(spec::Family::kLlama, gemm, grain);
    recipe.model.experts = {.num_experts = 4, .top_k = 2, .ffn_size = 2 * grain, .num_shared_experts = 1};
    EXPECT_TRUE(spec::find_problems(recipe).empty());
    const auto narrow = losses(recipe, 1, steps);
    recipe.layout.dp = recipe.layout.ep = 2;
    const auto sharded = losses(recipe, 2, steps);
    recipe.precision.gemm_exclude = {"*.experts.*"};
    const auto without = losses(recipe, 2, steps);
    recipe.layout = {};
    recipe.precision.gemm_exclude = {};
    recipe.precision.gemm = GemmPrecision::kSame;
    const auto plain = losses(recipe, 1, steps);
    EXPECT_LT(plain.back(), plain.front());
    EXPECT_NE(sharded, without) << "experts were not quantised";
    for (std::size_t i = 0; i < plain.size(); ++i) {
      EXPECT_NEAR(narrow[i], plain[i], 0.05 * plain[i]) << "step " << i;
      EXPECT_NEAR(sharded[i], plain[i], 0.05 * plain[i]) << "step " << i;
    }
  }
}

TEST(Fp8OnTheCpu, CopiesAndPartsAgreeOnDelayedScales) {
  const spec::Recipe recipe = fp8_recipe(spec::Family::kLlama, GemmPrecision::kFp8Delayed, 32);
  const auto scales_of = [&](const spec::LayoutConfig& layout, int ranks) {
    spec::Recipe changed = recipe;
    changed.layout = layout;
    std::vector<nlohmann::ordered_json> out(static_cast<std::size_t>(ranks));
    with_trainers(changed, ranks, [&](Trainer& trainer, comm::Rank& rank) {
      for (int step = 0; step < 3; ++step) trainer.step();
      out[static_cast<std::size_t>(rank.rank())] = trainer.state().value("fp8/scales").get();
    });
    return out;
  };
  const auto alone = scales_of({}, 1)[0];
  for (const spec::LayoutConfig& layout : {spec::LayoutConfig{.dp = 2}, spec::LayoutConfig{.tp = 2},
                                           spec::LayoutConfig{.pp = 2}, spec::LayoutConfig{.dp = 2, .zero = 3}}) {
    const auto both = scales_of(layout, 2);
    EXPECT_EQ(both[0], both[1]);
    // Stages have rows for the matrices of the others, and so any rank's are the checkpoint's. Layouts round sums
    // otherwise, which shows in the largest single number of a tensor.
    ASSERT_EQ(both[0].at("rows").size(), alone.at("rows").size());
    for (const auto& [name, row] : alone.at("rows").items()) {
      const auto mine = both[0].at("rows").at(name).get<std::vector<float>>(), theirs = row.get<std::vector<float>>();
      for (std::size_t i = 0; i < mine.size(); ++i) EXPECT_NEAR(mine[i], theirs[i], 0.2F * theirs[i] + 1e-6F) << name;
    }
  }
}

TEST(Fp8OnTheCpu, StagesWithDelayedScalesTrainAsOneRankDoes) {
  spec::Recipe recipe = fp8_recipe(spec::Family::kLlama, GemmPrecision::kFp8Delayed, 32);
  recipe.model.num_layers = 4;
  recipe.train.micro_batch_size = 1;
  const auto alone = losses(recipe, 1, 8);
  for (const char* kind : {"1f1b", "zb-h1", "chimera"}) {
    spec::Recipe staged = recipe;
    staged.layout.pp = 2;
    staged.pipeline.schedule = kind;
    if (std::string(kind) == "chimera") staged.pipeline.virtual_stages = 2;
    const auto found = losses(staged, 2, 8);
    for (std::size_t i = 0; i < alone.size(); ++i) EXPECT_NEAR(found[i], alone[i], 0.01 * alone[i]) << kind << i;
  }
}

/// Steps that are validated after the fact, whether they are taken back or not: what forwards that run again have met
/// counts once.
TEST(Fp8OnTheCpu, StepsThatRunTogetherHaveTheScalesOfOneRank) {
  const auto run = [](const spec::Recipe& recipe, int ranks) {
    std::pair<std::vector<double>, nlohmann::ordered_json> seen;
    with_trainers(recipe, ranks, [&](Trainer& trainer, comm::Rank& rank) {
      for (int step = 0; step < 8; ++step) {
        const double loss = trainer.step().loss;
        if (rank.rank() == 0) seen.first.push_back(loss);
      }
      const auto scales = trainer.state().value("fp8/scales").get();
      if (rank.rank() == ranks - 1) seen.second = scales;  // of the last stage, which was told of the first one's
    });
    return seen;
  };
  for (const double clip : {100.0, 0.01}) {
    spec::Recipe recipe = fp8_recipe(spec::Family::kLlama, GemmPrecision::kFp8Delayed, 32);
    recipe.model.num_layers = 4;
    recipe.model.tied = false;
    recipe.batch.global_batch_tokens *= 2;
    recipe.train.micro_batch_size = 1;
    recipe.checkpoint.every = recipe.train.hash_every = 0;
    recipe.pipeline.schedule = "zb-h2";
    recipe.pipeline.drain_every = 4;
    recipe.optim.grad_clip_norm = clip;
    recipe.precision.fp8_history = 4;
    recipe.layout.pp = 2;
    const auto [losses, scales] = run(recipe, 2);
    spec::Recipe alone = recipe;
    spec::undistribute(alone);
    const auto [expected, expected_scales] = run(alone, 1);
    EXPECT_EQ(scales.at("steps"), expected_scales.at("steps")) << clip;
    for (std::size_t i = 0; i < losses.size(); ++i)
      EXPECT_NEAR(losses[i], expected[i], 0.01 * expected[i]) << clip << " step " << i;
    for (const auto& [name, row] : expected_scales.at("rows").items()) {
      const auto mine = scales.at("rows").at(name).get<std::vector<float>>(), theirs = row.get<std::vector<float>>();
      for (std::size_t i = 0; i < mine.size(); ++i)
        EXPECT_NEAR(mine[i], theirs[i], 0.2F * theirs[i] + 1e-6F) << clip << " " << name << " " << i;
    }
  }
}

/// Two ranks of a pipeline hold each stage, and go through other micro-batches: its scales are of what both have met.
TEST(Fp8OnTheCpu, RanksOfAStageBetweenFlushesAgreeOnItsScales) {
  const auto run = [](const spec::Recipe& recipe, int ranks) {
    std::pair<std::vector<double>, nlohmann::ordered_json> seen;
    with_trainers(recipe, ranks, [&](Trainer& trainer, comm::Rank& rank) {
      for (int step = 0; step < 6; ++step) {
        const double loss = trainer.step().loss;
        if (rank.rank() == 0) seen.first.push_back(loss);
      }
      const auto scales = trainer.state().value("fp8/scales").get();
      if (rank.rank() == 0) seen.second = scales;
    });
    return seen;
  };
  for (const char* kind : {"dualpipe", "chimera", "1f1b on ranks of stages"}) {
    spec::Recipe recipe = fp8_recipe(spec::Family::kLlama, GemmPrecision::kFp8Delayed, 32);
    recipe.model.num_layers = 4;
    recipe.model.tied = false;
    recipe.batch.global_batch_tokens *= 2;
    recipe.train.micro_batch_size = 1;
    recipe.checkpoint.every = recipe.train.hash_every = 0;
    recipe.pipeline.drain_every = 2;
    recipe.precision.fp8_history = 4;
    recipe.layout.pp = 2;
    if (kind == std::string("1f1b on ranks of stages")) {
      recipe.layout.pp = 3;
      recipe.pipeline.stage_ranks = {2, 1};
    } else {
      recipe.pipeline.schedule = kind;
    }
    const auto [losses, scales] = run(recipe, recipe.layout.pp);
    spec::Recipe alone = recipe;
    spec::undistribute(alone);
    const auto [expected, expected_scales] = run(alone, 1);
    EXPECT_EQ(scales.at("steps"), expected_scales.at("steps")) << kind;
    for (std::size_t i = 0; i < losses.size(); ++i)
      EXPECT_NEAR(losses[i], expected[i], 0.01 * expected[i]) << kind << " step " << i;
    for (const auto& [name, row] : expected_scales.at("rows").items()) {
      const auto mine = scales.at("rows").at(name).get<std::vector<float>>(), theirs = row.get<std::vector<float>>();
      for (std::size_t i = 0; i < mine.size(); ++i)
        EXPECT_NEAR(mine[i], theirs[i], 0.2F * theirs[i] + 1e-6F) << kind << " " << name << " " << i;
    }
  }
}

/// A pass takes the scales of its version of the weights and notes for the step of its micro-batch: on stages that
/// update at different times as on one rank with their delayed weights.
TEST(Fp8OnTheCpu, AsynchronousStagesHaveTheScalesOfTheirSerialMathematics) {
  struct Seen {
    std::vector<double> losses;
    nlohmann::ordered_json scales;
  };
  for (const char* kind : {"pipedream", "pipedream-vsync", "pipedream-2bw", "spectrain", "xpipe", "stale"}) {
    spec::Recipe recipe = fp8_recipe(spec::Family::kLlama, GemmPrecision::kFp8Delayed, 32);
    recipe.model.num_layers = 4;
    recipe.model.tied = false;
    recipe.batch.global_batch_tokens *= 2;
    recipe.train.steps = 6;
    recipe.checkpoint.every = recipe.train.hash_every = 0;
    recipe.precision.fp8_history = 4;
    recipe.optim.learning_rate = 1e-2;  // so that scales of another step would show
    recipe.layout.pp = 2;
    recipe.pipeline.schedule = kind;
    recipe.pipeline.drain_every = 3;
    if (kind == std::string("spectrain")) {
      recipe.optim.kind = spec::OptimizerKind::kSgd;
      recipe.optim.momentum = 0.9;
      recipe.train.micro_batch_size.reset();
    }
    const auto run = [&](int ranks, MakeEngine& make) {
      Seen seen;
      comm::run_ranks(ranks, [&](comm::Rank& rank) {
        at::set_num_threads(1);
        const auto samples = data::open_samples(recipe, data::Split::kTrain);
        Trainer trainer(recipe, model_shape(recipe), rank.world(), *samples, make);
        for (int step = 0; step < 6; ++step) {
          const double loss = trainer.step().loss;
          if (rank.rank() == 0) seen.losses.push_back(loss);
        }
        const auto scales = trainer.state().value("fp8/scales").get();
        if (rank.rank() == ranks - 1) seen.scales = scales;  // the last stage was told of the first one's
      });
      return seen;
    };
    recipe.layout.dp = 1;
    const Seen found = run(2, make_engine), expected = run(1, make_delayed_engine);
    for (std::size_t i = 0; i < 6; ++i)
      EXPECT_NEAR(found.losses[i], expected.losses[i], 1e-6 * expected.losses[i]) << kind << " step " << i;
    EXPECT_EQ(found.scales, expected.scales) << kind;
  }
}

TEST(Fp8OnTheCpu, RefusesSizesAndLayoutsThatAGpuRefuses) {
  const auto refusal = [](const spec::Recipe& recipe, int ranks) -> std::string {
    try {
      with_trainers(recipe, ranks, [](Trainer&, comm::Rank&) {});
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "nothing";
  };
  spec::Recipe recipe = small_recipe(spec::Family::kGpt2, spec::Precision::kBf16);
  recipe.precision.gemm = GemmPrecision::kFp8;
  EXPECT_THAT(refusal(recipe, 1), testing::HasSubstr("multiples of 16"));
  recipe = fp8_recipe(spec::Family::kGpt2, GemmPrecision::kFp8Delayed, 32);
  recipe.model.tied = false;
  recipe.checkpoint.every = recipe.train.hash_every = 0;
  recipe.train.micro_batch_size = 1;
  recipe.layout.pp = 3;
  recipe.pipeline.schedule = "pipedream";
  recipe.pipeline.stage_ranks = {2, 1};
  EXPECT_EQ(refusal(recipe, 3), "nothing");  // ranks of one stage agree on its scales
}

}  // namespace
}  // namespace trireme::train
