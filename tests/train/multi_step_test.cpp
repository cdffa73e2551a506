// Steps that run together: asynchronous schedules beside their serial mathematics, steps validated after the fact
// beside one rank, and what may be looked at between.
#include <ATen/ops/equal.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <span>

#include "tests/train/support.h"
#include "trireme/schedule/builders.h"
#include "trireme/spec/rules.h"
#include "trireme/train/diagnose/verify.h"
#include "trireme/train/engine/pipeline_table.h"

namespace trireme::train {
namespace {

using spec::Family;
using spec::Precision;
constexpr spec::OffloadKind kHost = spec::OffloadKind::kOptimizer;

/// Looks at nothing by itself, so that drains may be anywhere.
spec::Recipe together(const std::string& kind, int stages, std::optional<int> drain_every = {}) {
  spec::Recipe recipe = small_recipe(Family::kLlama, Precision::kFp64);
  recipe.model.num_layers = 4;
  recipe.model.tied = false;
  recipe.batch.global_batch_tokens = 4 * 12;
  recipe.layout.pp = stages;
  recipe.pipeline.schedule = kind;
  recipe.pipeline.drain_every = drain_every;
  recipe.checkpoint.every = recipe.train.hash_every = 0;
  recipe.optim.grad_clip_norm = 0.05;  // less than a stage's norm: every update is clipped
  if (kind == "spectrain") {
    recipe.optim.kind = spec::OptimizerKind::kSgd;
    recipe.optim.momentum = 0.9;
    recipe.optim.learning_rate = 0.05;
  }
  const bool adds_up = kind == "pipedream-2bw" || kind == "xpipe" || !schedule::find_kind(kind).asynchronous;
  if (adds_up) recipe.train.micro_batch_size = 1;
  return recipe;
}

VerifyResult verify_together(spec::Recipe recipe, int ranks, std::int64_t steps) {
  recipe.train.steps = steps;
  return verify_beside_one_rank(recipe, ranks, steps);
}

constexpr const char* kAsynchronous[] = {"pipedream", "pipedream-vsync", "pipedream-2bw",
                                         "spectrain", "xpipe",           "stale"};

TEST(Together, AsynchronousSchedulesEqualTheirSerialMathematics) {
  for (const char* kind : kAsynchronous) {
    for (const int stages : {2, 4}) {
      const VerifyResult result = verify_together(together(kind, stages), stages, 6);
      EXPECT_TRUE(result.equal) << kind << " on " << stages << ": " << result.weights.name << " "
                                << result.weights.relative;
    }
  }
}

TEST(Together, AsynchronousPipelinesSideBySideEqualThemToo) {
  for (const char* kind : {"pipedream", "pipedream-2bw", "xpipe"}) {
    spec::Recipe recipe = together(kind, 2);
    recipe.batch.global_batch_tokens = 8 * 12;
    EXPECT_TRUE(verify_together(recipe, 4, 5).equal) << kind;
    recipe.layout.find_unused = true;  // every parameter has a gradient in every step
    EXPECT_TRUE(verify_together(recipe, 4, 5).equal) << kind << " that looks for unused parameters";
  }
}

/// PipeDream's replicated stages: ranks of a stage take micro-batches in turn, nothing is flushed.
TEST(Together, StagesOnSeveralRanksEqualTheirSerialMathematics) {
  for (const std::vector<int>& ranks : {std::vector<int>{3, 1}, {1, 2, 1}, {2, 2}}) {
    spec::Recipe recipe = together("pipedream", 4);
    recipe.batch.global_batch_tokens = 6 * 12;
    recipe.train.micro_batch_size = 1;
    recipe.pipeline.stage_ranks = ranks;
    const VerifyResult result = verify_together(recipe, 4, 6);
    EXPECT_TRUE(result.equal) << ranks.size() << " stages: " << result.weights.name << " " << result.weights.relative;
  }
  spec::Recipe recipe = together("pipedream", 3, 2);  // two pipelines side by side, flushed every second step
  recipe.batch.global_batch_tokens = 8 * 12;
  recipe.train.micro_batch_size = 1;
  recipe.pipeline.stage_ranks = {2, 1};
  EXPECT_TRUE(verify_together(recipe, 6, 5).equal);
}

/// Gradients of several micro-batches add up to an update, however the schedule chooses weights.
TEST(Together, SeveralMicroBatchesOfAnUpdateEqualTheirSerialMathematics) {
  for (const char* kind : {"pipedream", "pipedream-vsync", "stale"}) {
    for (const int stages : {2, 4}) {
      spec::Recipe recipe = together(kind, stages);
      recipe.train.micro_batch_size = stages == 2 ? 1 : 2;
      const VerifyResult result = verify_together(recipe, stages, 6);
      EXPECT_TRUE(result.equal) << kind << " on " << stages << ": " << result.weights.name << " "
                                << result.weights.relative;
    }
  }
}

struct StageLayout {
  const char* name;
  spec::LayoutConfig layout;
};

void expect_serial_mathematics(std::span<const char* const> kinds, std::span<const StageLayout> layouts) {
  for (const char* kind : kinds) {
    for (const auto& [name, layout] : layouts) {
      spec::Recipe recipe = together(kind, 2);
      recipe.model.num_kv_heads = 2;
      recipe.batch.global_batch_tokens = 8 * 12;
      recipe.layout = layout;
      const VerifyResult result = verify_together(recipe, 4, 5);
      EXPECT_TRUE(result.equal) << kind << " with " << name << ": " << result.gradients.name << " "
                                << result.gradients.relative << ", " << result.weights.name << " "
                                << result.weights.relative;
    }
  }
}

/// A stage of several ranks: their parts of matrices, sequences and optimizer state make one stage's update.
TEST(Together, AsynchronousStagesOfSeveralRanksEqualTheirSerialMathematics) {
  const StageLayout layouts[] = {{"tp", {.tp = 2, .pp = 2}},
                                 {"sp", {.tp = 2, .pp = 2, .sequence_parallel = true}},
                                 {"cp", {.pp = 2, .cp = 2}},
                                 {"ZeRO-1", {.dp = 2, .pp = 2, .zero = 1}},
                                 {"ZeRO-2", {.dp = 2, .pp = 2, .zero = 2}}};
  expect_serial_mathematics(kAsynchronous, layouts);
}

/// Versions and predictions are sharded with ZeRO 3; with offload they are made from what is on the host.
TEST(Together, AsynchronousVersionsOfShardedWeightsEqualTheirSerialMathematics) {
  const StageLayout layouts[] = {{"ZeRO-3", {.dp = 2, .pp = 2, .zero = 3}},
                                 {"ZeRO-3 over cp", {.pp = 2, .cp = 2, .zero = 3}},
                                 {"offload", {.dp = 2, .pp = 2, .offload = kHost}},
                                 {"offload with ZeRO-1", {.dp = 2, .pp = 2, .zero = 1, .offload = kHost}},
                                 {"offload with ZeRO-3", {.dp = 2, .pp = 2, .zero = 3, .offload = kHost}}};
  const char* const kinds[] = {"pipedream", "pipedream-2bw", "xpipe"};
  expect_serial_mathematics(kinds, layouts);
  expect_serial_mathematics(kAsynchronous, {layouts, 1});
}

/// Gradients of a weight that stages share are a sum that nobody waits for: later updates take it, on all of them the
/// same.
TEST(Together, AsynchronousStagesThatShareWeightsEqualTheirSerialMathematics) {
  const auto expect_equal = [](spec::Recipe recipe, int ranks, const std::string& name) {
    const VerifyResult result = verify_together(std::move(recipe), ranks, 6);
    EXPECT_TRUE(result.equal) << name << ": " << result.gradients.name << " " << result.gradients.relative << ", "
                              << result.weights.name << " " << result.weights.relative;
  };
  for (const char* kind : kAsynchronous) {
    for (const int stages : {2, 4}) {
      for (const std::optional<int> drain_every : {std::optional<int>{}, {4}}) {
        spec::Recipe recipe = together(kind, stages, drain_every);
        recipe.model.tied = true;
        expect_equal(recipe, stages, fmt::format("{} on {}", kind, stages));
      }
    }
    spec::Recipe bert = together(kind, 2);
    bert.model.family = Family::kBert;
    bert.model.tied = true;
    expect_equal(bert, 2, fmt::format("{} of BERT", kind));
    spec::Recipe pair = together(kind, 4);
    pair.model.family = Family::kTransformer;
    pair.model.num_encoder_layers = 2;
    pair.model.num_layers = 2;
    pair.data.synthetic.kind = spec::SyntheticKind::kReverse;
    expect_equal(pair, 4, fmt::format("{} of an encoder and a decoder", kind));
    spec::Recipe further = together(kind, 2);
    further.model.mtp_depth = 1;
    expect_equal(further, 2, fmt::format("{} that predicts two tokens", kind));
  }
  const StageLayout layouts[] = {{"tp", {.tp = 2, .pp = 2}},
                                 {"ZeRO-1", {.dp = 2, .pp = 2, .zero = 1}},
                                 {"ZeRO-2", {.dp = 2, .pp = 2, .zero = 2}},
                                 {"ZeRO-3", {.dp = 2, .pp = 2, .zero = 3}},
                                 {"offload", {.dp = 2, .pp = 2, .offload = kHost}}};
  for (const auto& [name, layout] : layouts) {
    for (const char* kind : {"pipedream", "pipedream-2bw", "xpipe"}) {
      spec::Recipe recipe = together(kind, 2);
      recipe.model.tied = true;
      recipe.model.num_kv_heads = 2;
      recipe.batch.global_batch_tokens = 8 * 12;
      recipe.layout = layout;
      expect_equal(recipe, 4, fmt::format("{} with {}", kind, name));
    }
  }
  spec::Recipe recipe = together("pipedream", 4);  // ranks of a stage that take turns
  recipe.model.tied = true;
  recipe.batch.global_batch_tokens = 6 * 12;
  recipe.train.micro_batch_size = 1;
  recipe.pipeline.stage_ranks = {3, 1};
  expect_equal(recipe, 4, "stages on several ranks");
}

/// The loss scale of a step is what its stage knows of updates before, and what overflows counts as zero.
TEST(Together, AsynchronousStepsInFp16EqualTheirSerialMathematics) {
  struct Seen {
    std::vector<bool> taken;
    std::vector<double> losses, norms;
  };
  const auto run = [](const spec::Recipe& which, int ranks, MakeEngine& make) {
    Seen seen;
    comm::run_ranks(ranks, [&](comm::Rank& rank) {
      at::set_num_threads(1);
      const auto samples = data::open_samples(which, data::Split::kTrain);
      Trainer trainer(which, model_shape(which), rank.world(), *samples, make);
      for (int step = 0; step < 12; ++step) {
        const StepReport report = trainer.step();
        if (rank.rank() != 0) continue;
        seen.taken.push_back(report.taken);
        seen.losses.push_back(report.loss);
        seen.norms.push_back(report.gradient_norm);
      }
    });
    return seen;
  };
  for (const char* kind : kAsynchronous) {
    for (const bool tied : {false, true}) {
      spec::Recipe recipe = together(kind, 4, 6);
      recipe.precision.compute = Precision::kFp16;
      recipe.precision.loss_scale.initial = 1 << 22;  // overflows a few times
      recipe.precision.loss_scale.interval = 2;
      recipe.model.tied = tied;
      const Seen mine = run(recipe, 4, make_engine);
      spec::Recipe alone = recipe;
      alone.layout = {.dp = 1, .pp = 4};
      const Seen serial = run(alone, 1, make_delayed_engine);
      EXPECT_EQ(mine.taken, serial.taken) << kind << (tied ? ", tied" : "");
      EXPECT_THAT(mine.taken, testing::Contains(true)) << kind;
      EXPECT_THAT(mine.taken, testing::Contains(false)) << kind;
      for (std::size_t i = 0; i < mine.losses.size(); ++i) {
        EXPECT_NEAR(mine.losses[i], serial.losses[i], 5e-3 * serial.losses[i]) << kind << " " << i;
        EXPECT_NEAR(mine.norms[i], serial.norms[i], 5e-2 * serial.norms[i]) << kind << " " << i;
      }
    }
  }
}

/// Both where every step is taken back, and where none is.
TEST(Together, ValidatedStepsOfSeveralRanksAStageEqualOneRank) {
  const spec::LayoutConfig layouts[] = {{.tp = 2, .pp = 2},
                                        {.pp = 2, .cp = 2},
                                        {.dp = 2, .pp = 2, .zero = 1},
                                        {.dp = 2, .pp = 2, .zero = 2},
                                        {.dp = 2, .pp = 2, .zero = 3},
                                        {.dp = 2, .pp = 2, .offload = kHost},
                                        {.dp = 2, .pp = 2, .zero = 3, .offload = kHost}};
  for (const spec::LayoutConfig& layout : layouts) {
    for (const double clip : {0.01, 100.0}) {
      for (const bool tied : {true, false}) {
        const bool separate = layout.zero > 1 || layout.offload == kHost;
        if (separate && tied != (clip < 1)) continue;
        spec::Recipe recipe = together("zb-h2", 2, 3);
        recipe.model.tied = tied;
        recipe.model.num_kv_heads = 2;
        recipe.optim.grad_clip_norm = clip;
        recipe.layout = layout;
        recipe.pipeline.scatter_gather = layout.tp > 1;
        const VerifyResult result = verify_together(recipe, 4, 6);
        EXPECT_TRUE(result.equal) << "tp " << layout.tp << ", cp " << layout.cp << ", zero " << layout.zero
                                  << (layout.offload == kHost ? ", offload" : "") << ", clipped to " << clip << ": "
                                  << result.weights.name << " " << result.weights.relative;
      }
    }
  }
}

/// Whoever makes the update of a whole matrix, and whatever an optimizer keeps beside moments; taken back or not.
TEST(Together, EveryOptimizerEqualsOneRank) {
  using enum spec::OptimizerKind;
  for (const auto kind : {kSgd, kAdagrad, kLamb, kLars, kMuon, kLion, kAdafactor, kShampoo, kScheduleFree}) {
    for (const char* schedule : {"zb-h2", "dualpipe", "pipedream-2bw", "pipedream"}) {
      for (const double clip : {0.01, 100.0}) {
        const bool asynchronous = schedule::find_kind(schedule).asynchronous;
        if (asynchronous && clip > 1) continue;  // nothing is taken back
        spec::Recipe recipe = together(schedule, 2, 3);
        if (schedule == std::string("dualpipe")) recipe.pipeline.virtual_stages = 2;
        recipe.train.micro_batch_size = 1;
        recipe.batch.global_batch_tokens = 8 * 12;
        recipe.optim.kind = kind;
        recipe.optim.grad_clip_norm = clip;
        if (kind == kShampoo) recipe.optim.precondition_every = 2;
        recipe.layout = {.dp = 2, .pp = 2, .zero = 1};
        const VerifyResult result = verify_together(recipe, 4, 5);
        EXPECT_TRUE(result.equal) << static_cast<int>(kind) << " with " << schedule << " clipped to " << clip << ": "
                                  << result.weights.name << " " << result.weights.relative;
      }
    }
  }
}

/// The moving average sees every update that stays, once.
TEST(Together, AveragesOfWeightsAreThoseOfOneRank) {
  for (const char* kind : {"zb-h2", "pipedream-2bw"}) {
    for (const double clip : {0.01, 100.0}) {
      spec::Recipe recipe = together(kind, 2, 3);
      recipe.optim.ema_decay = 0.5;
      recipe.optim.grad_clip_norm = clip;
      recipe.eval.weights = spec::EvalWeights::kEma;
      const auto loss_of = [&](const spec::Recipe& of, int ranks, MakeEngine& make) {
        double loss = 0;
        comm::run_ranks(ranks, [&](comm::Rank& rank) {
          at::set_num_threads(1);
          const auto samples = data::open_samples(of, data::Split::kTrain),
                     held_out = data::open_samples(of, data::Split::kValidation);
          Trainer trainer(of, model_shape(of), rank.world(), *samples, make);
          for (int step = 0; step < 6; ++step) trainer.step();
          const double mine = trainer.evaluate(*held_out, {.count = 5, .rows = 2}).loss();
          if (rank.rank() == 0) loss = mine;
        });
        return loss;
      };
      spec::Recipe alone = recipe;
      const bool asynchronous = schedule::find_kind(kind).asynchronous;
      asynchronous ? void(alone.layout = {.dp = 1, .pp = 2}) : spec::undistribute(alone);
      const double expected = loss_of(alone, 1, asynchronous ? make_delayed_engine : make_engine);
      EXPECT_NEAR(loss_of(recipe, 2, make_engine), expected, 1e-9) << kind << " clipped to " << clip;
      alone.eval.weights = spec::EvalWeights::kTrained;
      EXPECT_NE(loss_of(alone, 1, asynchronous ? make_delayed_engine : make_engine), expected) << kind;
    }
  }
}

/// The gradients that a step is taken again with are its own, whatever forwards of the next one have left since: the
/// head's come with its forward, and with ZeRO 2 and 3 are reduced at once.
TEST(Together, StepsAreTakenBackFromShardedGradientsToo) {
  for (const int zero : {2, 3}) {
    for (const double clip : {0.01, 100.0}) {
      spec::Recipe recipe = together("1f1b", 2, 3);
      recipe.layout = {.dp = 2, .pp = 2, .zero = zero, .bucket_mb = 0.001};
      recipe.optim.grad_clip_norm = clip;
      recipe.batch.global_batch_tokens = 8 * 12;
      EXPECT_TRUE(verify_together(recipe, 4, 6).equal) << "ZeRO-" << zero << " clipped to " << clip;
      with_trainers(recipe, 4, [&](Trainer& trainer, comm::Rank&) {
        for (int step = 0; step < 3; ++step) EXPECT_EQ(trainer.step().redone, clip < 1) << zero;
      });
    }
  }
}

/// The loss scale of a step that was begun before the last one overflowed is the lower one too.
TEST(Together, ValidatedStepsInFp16SkipAndGoOnAsOneRankDoes) {
  spec::Recipe recipe = together("zb-h2", 2, 4);
  recipe.precision.compute = Precision::kFp16;
  recipe.precision.loss_scale.initial = 1 << 22;  // overflows a few times
  recipe.precision.loss_scale.interval = 3;
  recipe.optim.grad_clip_norm = 0;
  const auto run = [](const spec::Recipe& which, int ranks) {
    std::pair<std::vector<bool>, std::vector<double>> seen;
    with_trainers(which, ranks, [&](Trainer& trainer, comm::Rank& rank) {
      for (int step = 0; step < 12; ++step) {
        const StepReport report = trainer.step();
        if (rank.rank() != 0) continue;
        seen.first.push_back(report.taken);
        seen.second.push_back(report.loss);
      }
    });
    return seen;
  };
  const auto [taken, losses] = run(recipe, 2);
  spec::Recipe alone = recipe;
  spec::undistribute(alone);
  const auto [taken_alone, losses_alone] = run(alone, 1);
  EXPECT_EQ(taken, taken_alone);
  EXPECT_THAT(taken, testing::Contains(true));
  EXPECT_THAT(taken, testing::Contains(false));
  for (std::size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], losses_alone[i], 5e-3 * losses_alone[i]) << i;
}

TEST(Together, DrainsBeginAnew) {
  for (const char* kind : kAsynchronous) {
    EXPECT_TRUE(verify_together(together(kind, 2, 2), 2, 5).equal) << kind;
  }
}

/// A wrong law must show: otherwise the tests above could not fail.
TEST(Together, AsynchronousSchedulesDifferFromOneRankAndFromEachOther) {
  std::vector<double> losses;
  for (const char* kind : {"pipedream", "pipedream-vsync", "stale", "1f1b"}) {
    spec::Recipe recipe = together(kind, 4);
    recipe.train.micro_batch_size.reset();
    if (std::string(kind) == "1f1b") recipe.layout = {};
    recipe.optim.grad_clip_norm = 0;
    recipe.optim.learning_rate = 1e-2;
    with_trainers(recipe, recipe.layout.pp, [&](Trainer& trainer, comm::Rank& rank) {
      double loss = 0;
      for (int step = 0; step < 6; ++step) loss = trainer.step().loss;
      if (rank.rank() == 0) losses.push_back(loss);
    });
  }
  for (std::size_t i = 0; i < losses.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(losses[i], losses[j]) << i << " " << j;
  }
}

/// Both where every step is taken back, and where none is.
TEST(Together, StepsValidatedAfterTheFactEqualOneRank) {
  for (const char* kind : {"zb-h2", "zb-v", "1f1b", "interleaved"}) {
    for (const double clip : {0.01, 100.0}) {
      spec::Recipe recipe = together(kind, 2, 3);
      recipe.optim.grad_clip_norm = clip;
      if (std::string(kind) == "interleaved") recipe.pipeline.virtual_stages = 2;
      EXPECT_TRUE(verify_together(recipe, 2, 6).equal) << kind << " clipped to " << clip;
      with_trainers(recipe, 2, [&](Trainer& trainer, comm::Rank&) {
        for (int step = 0; step < 3; ++step) EXPECT_EQ(trainer.step().redone, clip < 1) << kind;
      });
    }
  }
  spec::Recipe recipe = together("zb-h2", 2, 3);
  recipe.model.tied = true;
  recipe.batch.global_batch_tokens = 8 * 12;
  for (const double clip : {0.05, 100.0}) {
    recipe.optim.grad_clip_norm = clip;
    EXPECT_TRUE(verify_together(recipe, 4, 5).equal) << "tied, two pipelines, not a multiple of the drains: " << clip;
    recipe.model.tied = false;
    EXPECT_TRUE(verify_together(recipe, 4, 5).equal)
        << "two pipelines, whose heads have gradients of their own: " << clip;
  }
}

/// The run from a drain's state on is the run that was not interrupted, to the bit.
TEST(Together, GoesOnFromADrain) {
  for (const char* kind : {"pipedream-2bw", "xpipe", "zb-v"}) {
    spec::Recipe recipe = together(kind, 2, 2);
    recipe.optim.kind = spec::OptimizerKind::kAdam;
    with_trainers(recipe, 2, [&](Trainer& trainer, comm::Rank& rank) {
      trainer.step();
      EXPECT_FALSE(trainer.at_rest());
      trainer.step();
      EXPECT_TRUE(trainer.at_rest());
      const auto samples = data::open_samples(recipe, data::Split::kTrain);
      Trainer other(recipe, model_shape(recipe), rank.world(), *samples);
      for (const nn::StateTensor& tensor : trainer.state().tensors()) {
        at::Tensor(other.state().at(tensor.name).tensor).copy_(tensor.tensor);
      }
      for (const nn::StateValue& value : trainer.state().values()) {
        other.state().value(value.name).set(value.get());
      }
      other.loaded();
      EXPECT_EQ(other.position().step, 2);
      for (int step = 0; step < 2; ++step) EXPECT_EQ(trainer.step().loss, other.step().loss) << kind;
      for (const nn::Param& param : trainer.params()) {
        EXPECT_TRUE(at::equal(param.master, other.params().at(param.name).master)) << kind << " " << param.name;
      }
    });
  }
}

TEST(Together, TakesEachUpdatesRateFromThePace) {
  spec::Recipe recipe = together("pipedream-2bw", 2, 4);
  recipe.lr_schedule.warmup = 4 * recipe.batch.global_batch_tokens;
  with_trainers(recipe, 2, [&](Trainer& trainer, comm::Rank&) {
    double before = 0;
    for (int step = 0; step < 4; ++step) {
      const StepReport report = trainer.step();
      EXPECT_GT(report.learning_rate, before);
      before = report.learning_rate;
      EXPECT_GT(report.seconds.value(), 0);
    }
  });
}

TEST(Together, ChangesOfTheBatchDrainToo) {
  spec::Recipe recipe = together("pipedream-2bw", 2, 100);
  recipe.train.steps = 12;
  const Share share{.length = 12, .micro_batch_size = 1};
  EXPECT_EQ(steps_until_drain(recipe, 5, {.step = 3, .tokens = 3 * 48}, share), 2);
  EXPECT_EQ(steps_until_drain(recipe, 100, {.step = 3, .tokens = 3 * 48}, share), 9);
}

std::string message_of(const spec::Recipe& recipe, int ranks = 2) {
  try {
    with_trainers(recipe, ranks, [](Trainer& trainer, comm::Rank&) { trainer.step(); });
  } catch (const config::ProblemsError& error) {
    const config::Problem& first = error.problems().front();
    return first.key + " " + first.reason + " -> " + first.hint;
  }
  return "no error";
}

TEST(Together, SaysWhatCannotBeDoneBetweenDrains) {
  using testing::HasSubstr;
  spec::Recipe recipe = together("pipedream-2bw", 2, 6);
  recipe.checkpoint.every = 10;
  EXPECT_THAT(message_of(recipe), HasSubstr("checkpoint.every is 10, but the pipeline is emptied after every 6"));
  EXPECT_THAT(message_of(recipe), HasSubstr("set checkpoint.every = 12, or pipeline.drain_every = 5"));
  recipe.pipeline.drain_every = 5;
  EXPECT_EQ(message_of(recipe), "no error");
  recipe = together("hetpipe", 2);
  recipe.optim.kind = spec::OptimizerKind::kSgd;
  recipe.optim.momentum = recipe.optim.weight_decay = recipe.optim.grad_clip_norm = 0;
  recipe.model.tied = true;
  EXPECT_THAT(message_of(recipe), HasSubstr("model.tied = false"));
  recipe.model.tied = false;
  recipe.precision.compute = Precision::kFp16;
  EXPECT_THAT(message_of(recipe), HasSubstr("whether its gradients overflowed"));
  recipe = together("spectrain", 2);
  recipe.train.micro_batch_size = 1;
  EXPECT_THAT(message_of(recipe), HasSubstr("each one's own update"));
  recipe = together("xpipe", 2);
  recipe.optim.kind = spec::OptimizerKind::kSgd;
  EXPECT_THAT(message_of(recipe), HasSubstr("moments of Adam"));
  recipe = together("pipedream-2bw", 2);
  recipe.layout.offload = kHost;
  EXPECT_EQ(message_of(recipe), "no error");
  recipe.layout.delayed_update = true;
  EXPECT_THAT(message_of(recipe), HasSubstr("a delayed one comes a step later"));
}

TEST(Together, FindsDrainsThatFitWhereNoneAreGiven) {
  spec::Recipe recipe = together("pipedream-2bw", 2);
  EXPECT_EQ(spec::steps_between_drains(recipe, true), 128);
  EXPECT_EQ(spec::steps_between_drains(recipe, false), 1);
  recipe.eval.every = 60;
  recipe.checkpoint.every = 100;
  EXPECT_EQ(spec::steps_between_drains(recipe, true), 20);
  recipe.eval.every = recipe.checkpoint.every = 1000;
  EXPECT_EQ(spec::steps_between_drains(recipe, true), 125);
}

TEST(Together, NamesGradientsThatAreNoNumbersOnAllRanks) {
  for (const char* kind : {"pipedream-2bw", "zb-h2"}) {
    spec::Recipe recipe = together(kind, 2, 4);
    EXPECT_THROW(with_trainers(recipe, 2,
                               [&](Trainer& trainer, comm::Rank&) {
                                 for (nn::Param& param : trainer.params()) {
                                   if (param.name != "layers.3.mlp.out.weight") continue;
                                   param.master.view({-1})[0] = std::numeric_limits<double>::quiet_NaN();
                                   nn::publish(param);
                                 }
                                 trainer.step();
                               }),
                 optim::NonFiniteGradients)
        << kind;
  }
}

}  // namespace
}  // namespace trireme::train
