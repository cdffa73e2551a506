// The trainer on a model that is cut into stages: it must compute, evaluate and fail as on one rank.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <mutex>

#include "tests/train/support.h"
#include "trireme/train/diagnose/explain.h"
#include "trireme/train/diagnose/verify.h"

namespace trireme::train {
namespace {

using spec::Family;
using spec::Precision;

spec::Recipe staged(Family family, Precision precision, int stages, const std::string& kind) {
  spec::Recipe recipe = small_recipe(family, precision);
  recipe.model.num_layers = 8;
  recipe.batch.global_batch_tokens = 8 * 12;
  recipe.train.micro_batch_size = 1;
  recipe.layout.pp = stages;
  recipe.pipeline.schedule = kind;
  return recipe;
}

VerifyResult verify_staged(const spec::Recipe& recipe, int ranks) { return verify_beside_one_rank(recipe, ranks, 3); }

TEST(StagedTrainer, EqualsOneRankForEverySynchronousKind) {
  for (const char* kind : {"gpipe", "1f1b", "interleaved", "breadth-first", "zb-h1", "zb-h2", "zb-v", "dualpipe",
                           "dualpipe-v", "chimera", "chimera-doubling", "list"}) {
    for (const int ranks : {2, 4}) {  // two stages; with 4 ranks two pipelines side by side
      const VerifyResult result = verify_staged(staged(Family::kGpt2, Precision::kFp64, 2, kind), ranks);
      EXPECT_TRUE(result.equal) << kind << " on " << ranks << ": " << result.gradients.name << " "
                                << result.gradients.relative;
    }
  }
}

/// Between steps the queue of receives is empty, so its two measurements agree to clock resolution.
TEST(StagedTrainer, MetersWhatComesFromOtherStages) {
  for (const char* kind : {"1f1b", "interleaved", "zb-v"}) {
    const spec::Recipe recipe = staged(Family::kLlama, Precision::kFp32, 2, kind);
    const int chunks = std::string(kind) == "1f1b" ? 1 : 2;
    with_trainers(recipe, 2, [&](Trainer& trainer, comm::Rank& rank) {
      std::int64_t arrivals = 0;
      for (int step = 1; step <= 3; ++step) {
        trainer.step();
        const std::optional<QueueReading> reading = trainer.receives_queue();
        ASSERT_TRUE(reading);
        EXPECT_EQ(reading->arrivals, reading->departures) << kind;
        EXPECT_NEAR(reading->occupancy, reading->sojourn, 1e-8) << kind;
        EXPECT_LE(reading->blocked, reading->seconds) << kind;
        if (step == 1) arrivals = reading->arrivals;
        EXPECT_EQ(reading->arrivals, step * arrivals) << kind;
        // Of each micro-batch in each chunk, activations are kept until the last gradient that is made of them.
        const std::vector<observe::NamedQueue> others = trainer.other_queues();
        ASSERT_EQ(others.size(), 1U);
        EXPECT_EQ(others[0].name, "activations");
        EXPECT_EQ(others[0].reading.arrivals, step * 8 * chunks) << kind;
        EXPECT_EQ(others[0].reading.departures, step * 8 * chunks) << kind;
        EXPECT_NEAR(others[0].reading.occupancy, others[0].reading.sojourn, 1e-8) << kind;
        EXPECT_GT(others[0].reading.sojourn, 0) << kind;
      }
      // Eight micro-batches cross each border between ranks there and back: one border, or three of chunks that take
      // turns, or of a V, whose turn is on one rank, two.
      const int borders = chunks == 1 ? 1 : std::string(kind) == "zb-v" ? 2 : 3;
      std::int64_t all = arrivals;
      rank.world().all_reduce(comm::Buffer{&all, 1, comm::DType::kI64}, comm::Reduce::kSum).wait();
      EXPECT_EQ(all, 8 * 2 * borders) << kind;
    });
  }
  with_trainers(small_recipe(Family::kLlama), 1, [](Trainer& trainer, comm::Rank&) {
    trainer.step();
    EXPECT_FALSE(trainer.receives_queue()) << "there are no other stages";
    EXPECT_TRUE(trainer.other_queues().empty());
  });
}

/// A forward takes a micro-batch, a backward one of its rows.
TEST(StagedTrainer, EqualsOneRankWithHalvedBackwards) {
  for (const char* family : {"gpt2", "llama"}) {
    spec::Recipe recipe =
        staged(family == std::string("gpt2") ? Family::kGpt2 : Family::kLlama, Precision::kFp64, 2, "chimera-halving");
    recipe.batch.global_batch_tokens = 16 * 12;
    recipe.train.micro_batch_size = 2;
    for (const int zero : {0, 2, 3}) {
      recipe.layout.zero = zero;
      EXPECT_TRUE(verify_staged(recipe, 4).equal) << family << " zero " << zero;
    }
    for (const auto recompute : {spec::RecomputeKind::kFull, spec::RecomputeKind::kSelective}) {
      recipe.train.recompute = recompute;
      recipe.train.recompute_norms = true;
      EXPECT_TRUE(verify_staged(recipe, 2).equal) << family;
    }
  }
}

/// What blocks save of a forward over two micro-batches waits on the host, or in shards, in two parts.
TEST(StagedTrainer, DividesWhatIsNotHere) {
  for (const char* kind : {"chimera-doubling", "chimera-halving"}) {
    for (const Family family : {Family::kLlama, Family::kTransformer}) {
      spec::Recipe recipe = staged(family, Precision::kFp64, 2, kind);
      recipe.batch.global_batch_tokens = 16 * 12;
      recipe.train.micro_batch_size = 2;
      recipe.train.recompute = spec::RecomputeKind::kFull;
      recipe.train.offload_activations = true;
      EXPECT_TRUE(verify_staged(recipe, 2).equal) << kind;
      with_trainers(recipe, 2, [&](Trainer& trainer, comm::Rank&) {
        for (int step = 0; step < 2; ++step) trainer.step();
        EXPECT_GT(trainer.memory().host.peak_of(device::MemoryUse::kActivations), 0) << kind;
        EXPECT_EQ(trainer.memory().host.bytes_of(device::MemoryUse::kActivations), 0) << kind;
        EXPECT_EQ(trainer.memory().device.bytes_of(device::MemoryUse::kActivations), 0) << kind;
      });
      recipe.layout.tp = 2;
      recipe.model.num_heads = recipe.model.num_kv_heads = 2;
      recipe.train.partition_activations = true;
      for (const bool offload : {false, true}) {
        recipe.train.offload_activations = offload;
        EXPECT_TRUE(verify_staged(recipe, 4).equal) << kind << " in shards, offload " << offload;
      }
    }
  }
}

/// Relative position biases (T5): one table a stack, of which every stage has what its layers add, and parts of
/// sequences see the distances of whole ones.
TEST(RelativePositions, OfStagesAndPartsOfSequencesEqualOneRank) {
  struct Layout {
    const char* name;
    int pp = 1, cp = 1, tp = 1, zero = 0, ranks = 2;
    spec::ContextKind kind = spec::ContextKind::kRing;
    int ulysses = 1;
    const char* schedule = "1f1b";
  };
  for (const Layout& layout :
       std::vector<Layout>{{.name = "ring", .cp = 2},
                           {.name = "gather", .cp = 2, .kind = spec::ContextKind::kGather},
                           {.name = "ulysses", .cp = 2, .kind = spec::ContextKind::kUlysses},
                           {.name = "both", .cp = 4, .ranks = 4, .ulysses = 2},
                           {.name = "ulysses of tp", .cp = 2, .tp = 2, .ranks = 4, .kind = spec::ContextKind::kUlysses},
                           {.name = "stages", .pp = 2},
                           {.name = "stages with ZeRO", .pp = 2, .zero = 2, .ranks = 4},
                           {.name = "stages with ZeRO-3", .pp = 2, .zero = 3, .ranks = 4},
                           {.name = "four stages", .pp = 4, .ranks = 4},
                           {.name = "zb-v", .pp = 2, .schedule = "zb-v"},
                           {.name = "dualpipe", .pp = 2, .schedule = "dualpipe"},
                           {.name = "pipedream", .pp = 2, .schedule = "pipedream-2bw"},
                           {.name = "parts of stages", .pp = 2, .cp = 2, .ranks = 4}}) {
    spec::Recipe recipe = staged(Family::kT5, Precision::kFp64, layout.pp, layout.schedule);
    recipe.model.num_layers = recipe.model.num_encoder_layers = 4;
    recipe.model.num_heads = recipe.model.num_kv_heads = 4;
    recipe.model.head_dim = 4;
    recipe.data.seq_len = 16;
    recipe.batch.global_batch_tokens = 8 * 16;
    recipe.layout.cp = layout.cp;
    recipe.layout.cp_kind = layout.kind;
    recipe.layout.cp_ulysses = layout.ulysses;
    recipe.layout.tp = layout.tp;
    recipe.layout.zero = layout.zero;
    const VerifyResult result = verify_staged(recipe, layout.ranks);
    EXPECT_TRUE(result.equal) << layout.name << ": " << result.gradients.name << " " << result.gradients.relative;
  }
}

/// GPipe's recomputation: a stage saves what enters it, of every micro-batch.
TEST(StagedTrainer, RecomputesBetweenStageBoundaries) {
  for (const char* kind : {"gpipe", "1f1b", "zb-h1", "chimera-doubling"}) {
    spec::Recipe recipe = staged(Family::kGpt2, Precision::kFp64, 2, kind);
    const auto activations = [&](spec::RecomputeKind recompute) {
      recipe.train.recompute = recompute;
      std::int64_t most = 0;
      with_trainers(recipe, 2, [&](Trainer& trainer, comm::Rank& rank) {
        trainer.step();
        if (rank.rank() == 0) most = trainer.memory().device.peak_of(device::MemoryUse::kActivations);
      });
      return most;
    };
    const std::int64_t saved = activations(spec::RecomputeKind::kNone),
                       again = activations(spec::RecomputeKind::kStage);
    EXPECT_TRUE(verify_staged(recipe, 2).equal) << kind;
    // Activations of one micro-batch are there while it is backward; of the others only what came into the stage.
    EXPECT_LE(again, saved / 2 + saved / 100) << kind;
  }
}

/// Each chunk recomputes by a plan of its own blocks: of three, the first is a segment, so that an input and a block
/// are saved where all would be.
TEST(StagedTrainer, PlansRecomputationForEachChunk) {
  for (const char* kind : {"1f1b", "zb-h1", "interleaved", "chimera-doubling"}) {
    spec::Recipe recipe = staged(Family::kGpt2, Precision::kFp64, 2, kind);
    if (kind == std::string("interleaved")) recipe.pipeline.virtual_stages = 2;
    recipe.model.num_layers = 9;
    const auto activations = [&] {
      std::int64_t most = 0;
      with_trainers(recipe, 2, [&](Trainer& trainer, comm::Rank& rank) {
        trainer.step();
        if (rank.rank() == 0) most = trainer.memory().device.peak_of(device::MemoryUse::kActivations);
      });
      return most;
    };
    const std::int64_t saved = activations();
    recipe.train.recompute = spec::RecomputeKind::kRecursive;
    EXPECT_LT(activations(), saved * 3 / 4) << kind;
    for (const int zero : {0, 3}) {
      recipe.layout.zero = zero;
      EXPECT_TRUE(verify_staged(recipe, 4).equal) << kind << " zero " << zero;
    }
    recipe.layout.zero = 0;
    recipe.pipeline.split = "layers.2";
    if (kind != std::string("interleaved")) {
      EXPECT_TRUE(verify_staged(recipe, 2).equal) << kind;
    }
    recipe.pipeline.split = "count";
    // Enough for all blocks, and for a few of them.
    recipe.train.recompute = spec::RecomputeKind::kBudget;
    recipe.train.recompute_gb = 1;
    EXPECT_EQ(activations(), saved) << kind;
    recipe.train.recompute_gb = 4e-5;
    EXPECT_LT(activations(), saved) << kind;
    EXPECT_TRUE(verify_staged(recipe, 2).equal) << kind;
  }
}

TEST(StagedTrainer, SaysWhyAMicroBatchCannotBeHalved) {
  const spec::Recipe recipe = staged(Family::kGpt2, Precision::kFp32, 2, "chimera-halving");
  try {
    with_trainers(recipe, 2, [](Trainer& trainer, comm::Rank&) { trainer.step(); });
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.message(), testing::HasSubstr("half of a micro-batch"));
  }
}

TEST(StagedTrainer, EqualsOneRankForOtherFamiliesAndDepths) {
  EXPECT_TRUE(verify_staged(staged(Family::kLlama, Precision::kFp64, 4, "1f1b"), 4).equal);
  EXPECT_TRUE(verify_staged(staged(Family::kBert, Precision::kFp64, 4, "zb-h1"), 8).equal);
  EXPECT_TRUE(verify_staged(staged(Family::kTransformer, Precision::kFp64, 2, "gpipe"), 2).equal);
  EXPECT_TRUE(verify_staged(staged(Family::kLlama, Precision::kFp32, 2, "zb-v"), 4).equal);
  EXPECT_TRUE(verify_staged(staged(Family::kLlama, Precision::kBf16, 2, "dualpipe"), 2).equal);
}

TEST(StagedTrainer, EqualsOneRankHoweverTheModelIsCut) {
  for (const char* split : {"size", "time", "pipedream", "layers.1, layers.5,layers.6"}) {
    spec::Recipe recipe = staged(Family::kGpt2, Precision::kFp64, 4, "1f1b");
    recipe.pipeline.split = split;
    EXPECT_TRUE(verify_staged(recipe, 4).equal) << split;
  }
  spec::Recipe recipe = staged(Family::kTransformer, Precision::kFp64, 2, "zb-v");
  recipe.pipeline.split = "time";
  EXPECT_TRUE(verify_staged(recipe, 4).equal);
}

TEST(StagedTrainer, EqualsOneRankWithStagesOnSeveralRanks) {
  spec::Recipe recipe = staged(Family::kGpt2, Precision::kFp64, 4, "1f1b");
  for (const std::vector<int>& ranks : {std::vector<int>{3, 1}, {1, 2, 1}}) {
    recipe.pipeline.stage_ranks = ranks;
    EXPECT_TRUE(verify_staged(recipe, 4).equal);
  }
  recipe.pipeline.stage_ranks = {3, 1};
  recipe.pipeline.split = "layers.6";
  EXPECT_TRUE(verify_staged(recipe, 8).equal);
}

/// Each of two tp ranks sends half of what crosses; the stage that receives it gathers the halves.
TEST(StagedTrainer, ScatterGatherSendsEachBoundaryTensorOnceAndChangesNoBit) {
  for (const char* kind : {"1f1b", "interleaved", "chimera-doubling"}) {
    spec::Recipe recipe = staged(Family::kLlama, Precision::kFp32, 2, kind);
    recipe.model.num_kv_heads = 2;
    recipe.layout.tp = 2;
    recipe.pipeline.virtual_stages = kind == std::string("interleaved") ? 2 : 1;
    const auto run = [&](bool scatter) {
      struct Sent {
        std::vector<double> losses;
        std::map<std::string, at::Tensor> weights;
        double pipeline_bytes = 0;  // of all ranks
      } seen;
      recipe.pipeline.scatter_gather = scatter;
      std::mutex mutex;
      with_trainers(recipe, 4, [&](Trainer& trainer, comm::Rank& rank) {
        for (int step = 0; step < 3; ++step) {
          const double loss = trainer.step().loss;
          if (rank.rank() == 0) seen.losses.push_back(loss);
        }
        const Explanation explanation = explain(trainer);
        const std::lock_guard lock(mutex);
        for (const nn::Param& param : trainer.params())
          seen.weights[std::to_string(rank.rank()) + param.name] = param.master.clone();
        for (const auto& line : explanation.traffic) {
          // A rank of a bidirectional kind has two chunks and takes half of the micros through each: tp's formula
          // counts blocks times micros.
          if (line.name == "pp" || recipe.pipeline.schedule != "chimera-doubling") {
            EXPECT_NEAR(line.measured, line.formula, 1) << line.name << ", rank " << rank.rank() << ", " << kind;
          }
        }
        for (const plan::TrafficLine& line : explanation.lines) {
          if (line.what.ends_with("messages between stages")) seen.pipeline_bytes += line.wire_bytes;
        }
      });
      return seen;
    };
    const auto whole = run(false), parts = run(true);
    EXPECT_EQ(whole.losses, parts.losses) << kind;
    EXPECT_DOUBLE_EQ(parts.pipeline_bytes, whole.pipeline_bytes / 2) << kind;
    for (const auto& [name, tensor] : whole.weights) EXPECT_TRUE(at::equal(tensor, parts.weights.at(name))) << name;
  }
}

TEST(StagedTrainer, SaysWhyTheModelCannotBeCutSo) {
  const auto message = [](const char* split, const char* kind) -> std::string {
    spec::Recipe recipe = staged(Family::kGpt2, Precision::kFp32, 2, kind);
    recipe.pipeline.split = split;
    try {
      with_trainers(recipe, 2, [](Trainer& trainer, comm::Rank&) { trainer.step(); });
    } catch (const ConfigError& error) {
      return error.message() + " -> " + error.hint();
    }
    return "no error";
  };
  EXPECT_THAT(message("layers.1,layers.3", "1f1b"), testing::HasSubstr("names 2 entries"));
  EXPECT_THAT(message("layers.1,layers.3", "1f1b"), testing::HasSubstr("begin at 1"));
  EXPECT_THAT(message("tme", "1f1b"), testing::HasSubstr("\"tme\""));
  EXPECT_THAT(message("pipedream", "gpipe"), testing::HasSubstr("pipeline.schedule = \"1f1b\""));
}

TEST(StagedTrainer, EvaluatesAsOneRank) {
  const spec::Recipe recipe = staged(Family::kGpt2, Precision::kFp64, 2, "interleaved");
  spec::Recipe serial = recipe;
  serial.layout = {};
  serial.pipeline = {};
  const auto loss_of = [](const spec::Recipe& of, int ranks) {
    double loss = 0;
    with_trainers(of, ranks, [&](Trainer& trainer, comm::Rank& rank) {
      const auto held_out = data::open_samples(of, data::Split::kValidation);
      const double mine = trainer.evaluate(*held_out, {.count = 7, .rows = 2}).loss();
      if (rank.rank() == 0) loss = mine;
    });
    return loss;
  };
  const double expected = loss_of(serial, 1);
  EXPECT_NEAR(loss_of(recipe, 2), expected, 1e-12);
  EXPECT_NEAR(loss_of(recipe, 4), expected, 1e-12);
}

TEST(StagedTrainer, RepeatsItselfToTheBit) {
  const spec::Recipe recipe = staged(Family::kLlama, Precision::kBf16, 2, "zb-v");
  const auto losses = [&] {
    std::vector<double> out;
    with_trainers(recipe, 4, [&](Trainer& trainer, comm::Rank& rank) {
      for (int step = 0; step < 4; ++step) {
        const double loss = trainer.step().loss;
        if (rank.rank() == 0) out.push_back(loss);
      }
    });
    return out;
  };
  EXPECT_EQ(losses(), losses());
}

TEST(StagedTrainer, NamesTheFirstPlaceThatIsNotFinite) {
  try {
    with_trainers(staged(Family::kLlama, Precision::kFp32, 2, "1f1b"), 2, [&](Trainer& trainer, comm::Rank&) {
      trainer.step();
      for (nn::Param& param : trainer.params()) {
        if (param.name != "layers.6.mlp.out.weight") continue;
        param.master.view({-1})[0] = std::numeric_limits<float>::quiet_NaN();
        nn::publish(param);
      }
      trainer.step();
    });
    FAIL();
  } catch (const NonFiniteError& error) {
    EXPECT_THAT(error.message(), testing::HasSubstr("weights of layers.6.mlp.out.weight"));
  }
}

TEST(StagedTrainer, SaysWhatDoesNotFit) {
  const auto message = [](const spec::Recipe& recipe, int ranks) -> std::string {
    try {
      with_trainers(recipe, ranks, [](Trainer& trainer, comm::Rank&) { trainer.step(); });
    } catch (const ConfigError& error) {
      return error.message();
    }
    return "no error";
  };
  spec::Recipe recipe = staged(Family::kGpt2, Precision::kFp32, 2, "1f1b");
  EXPECT_THAT(message(recipe, 3), testing::HasSubstr("does not divide 3"));
  recipe.pipeline.schedule = "pipedream";
  recipe.health.spike = spec::AnomalyPolicy::kSkip;
  EXPECT_THAT(message(recipe, 2), testing::HasSubstr("health.spike"));
  recipe.health = {};
  recipe.pipeline.schedule = "1f1x";
  EXPECT_THAT(message(recipe, 2), testing::HasSubstr("1f1x"));
  recipe.pipeline.schedule = "1f1b";
  recipe.layout.tp = 3;
  EXPECT_THAT(message(recipe, 6), testing::HasSubstr("layout.tp"));
  recipe.layout = {.pp = 2};
  recipe.batch.global_batch_tokens = 100;
  EXPECT_THAT(message(recipe, 4), testing::HasSubstr("a step of 100 tokens is no whole number of sequences of 12"));
}

}  // namespace
}  // namespace trireme::train
