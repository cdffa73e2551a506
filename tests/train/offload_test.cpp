// Optimizer, late updates and kept activations on the host: what changes is where things are, and nothing else.
#include <ATen/ops/equal.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/optim/reference.h"
#include "tests/train/support.h"
#include "trireme/checkpoint/gather.h"
#include "trireme/checkpoint/store.h"
#include "trireme/formats/checkpoint_folder.h"

namespace trireme::train {
namespace {

using device::MemoryUse;
using spec::Family;
using spec::OffloadKind;
using spec::Precision;
using testing::HasSubstr;
using Tensors = std::map<std::string, at::Tensor>;

/// Rank 0's view of what all ranks hold; empty elsewhere.
Tensors whole_state(Trainer& trainer, comm::Rank& rank) {
  const nn::State whole = checkpoint::gather_whole(trainer.state(), rank.world());
  Tensors tensors;
  if (rank.rank() == 0) {
    for (const nn::StateTensor& entry : whole.tensors()) tensors[entry.name] = entry.tensor.clone();
  }
  return tensors;
}

struct Ended {
  std::vector<double> losses, norms;
  Tensors state;
  device::RankMemory memory;
};

Ended train_offloaded(const spec::Recipe& recipe, int ranks, int steps) {
  Ended ended;
  with_trainers(recipe, ranks, [&](Trainer& trainer, comm::Rank& rank) {
    std::vector<double> losses, norms;
    for (int step = 0; step < steps; ++step) {
      const StepReport report = trainer.step();
      losses.push_back(report.loss);
      norms.push_back(report.gradient_norm);
    }
    Tensors state = whole_state(trainer, rank);
    if (rank.rank() == 0) ended = {losses, norms, std::move(state), trainer.memory()};
  });
  return ended;
}

void expect_same_bits(const Ended& a, const Ended& b) {
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.norms, b.norms);
  ASSERT_EQ(a.state.size(), b.state.size());
  for (const auto& [name, tensor] : a.state) EXPECT_TRUE(at::equal(tensor, b.state.at(name))) << name;
}

spec::Recipe offloaded(spec::Recipe recipe) {
  recipe.layout.offload = OffloadKind::kOptimizer;
  return recipe;
}

spec::Recipe delayed(spec::Recipe recipe, std::int64_t warmup) {
  recipe = offloaded(std::move(recipe));
  recipe.layout.delayed_update = true;
  recipe.layout.offload_warmup = warmup;
  return recipe;
}

spec::Recipe offload_recipe(Precision precision, int zero) {
  spec::Recipe recipe = small_recipe(Family::kLlama, precision);
  recipe.batch.global_batch_tokens = 6 * 12;
  recipe.train.micro_batch_size = 1;
  recipe.layout.zero = zero;
  recipe.layout.bucket_mb = 0.002;  // several buckets
  return recipe;
}

TEST(Offload, ChangesNoBitUnderAnyZero) {
  for (const Precision precision : {Precision::kFp32, Precision::kBf16}) {
    for (const int zero : {0, 1, 2, 3}) {
      for (const int ranks : {1, 2, 3}) {
        SCOPED_TRACE(fmt::format("zero {}, {} ranks", zero, ranks));
        spec::Recipe recipe = offload_recipe(precision, zero);
        recipe.train.freeze = {"layers.0.mlp.*"};
        expect_same_bits(train_offloaded(recipe, ranks, 4), train_offloaded(offloaded(recipe), ranks, 4));
      }
    }
  }
}

TEST(Offload, ChangesNoBitBesideStagesAndSplitMatrices) {
  for (const int zero : {0, 1, 2, 3}) {
    SCOPED_TRACE(zero);
    spec::Recipe stages = offload_recipe(Precision::kBf16, zero);
    stages.model.tied = true;  // a table on two stages, summed between them
    stages.layout.pp = 2;
    expect_same_bits(train_offloaded(stages, 4, 3), train_offloaded(offloaded(stages), 4, 3));
    spec::Recipe split = offload_recipe(Precision::kFp32, zero);
    split.layout.tp = 2;
    split.layout.sequence_parallel = true;
    expect_same_bits(train_offloaded(split, 4, 3), train_offloaded(offloaded(split), 4, 3));
  }
}

TEST(Offload, LeavesTheDeviceWeightsAndBuckets) {
  for (const int zero : {0, 1, 2, 3}) {
    SCOPED_TRACE(zero);
    const spec::Recipe recipe = offload_recipe(Precision::kBf16, zero);
    const device::RankMemory plain = train_offloaded(recipe, 2, 2).memory,
                             moved = train_offloaded(offloaded(recipe), 2, 2).memory;
    EXPECT_GT(plain.device.peak_of(MemoryUse::kOptimizer), 0);
    EXPECT_EQ(plain.host.peak(), 0);
    EXPECT_EQ(moved.device.peak_of(MemoryUse::kOptimizer), 0);
    // MasterWeights in fp32 for weights in bf16, of which a rank owns a half with ZeRO and holds all but with ZeRO 3;
    // Adam's moments beside them, without the padding of flat memory.
    const std::int64_t weights = moved.device.bytes_of(MemoryUse::kParameters);
    const std::int64_t masters = 2 * weights / (zero == 1 || zero == 2 ? 2 : 1);
    const std::int64_t kept = moved.host.bytes_of(MemoryUse::kOptimizer);
    EXPECT_EQ(moved.host.bytes_of(MemoryUse::kGradients), masters);
    EXPECT_LE(kept, 3 * masters);
    EXPECT_GE(kept, 2.8 * static_cast<double>(masters));
    EXPECT_EQ(moved.device.bytes_of(MemoryUse::kGradients), zero < 2 ? 2 * weights : 0);
    EXPECT_LT(moved.device.peak(), plain.device.peak());
  }
}

TEST(Offload, ALimitStopsTheRunWithATableAndItsHintHelps) {
  spec::Recipe recipe = offload_recipe(Precision::kBf16, 2);
  const std::int64_t plain = train_offloaded(recipe, 1, 2).memory.device.peak();
  const std::int64_t moved = train_offloaded(offloaded(recipe), 1, 2).memory.device.peak();
  ASSERT_LT(moved, plain);
  recipe.train.memory_gb = static_cast<double>(plain + moved) / 2e9;
  try {
    train_offloaded(recipe, 1, 2);
    FAIL() << "more than the limit was used";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.message(), HasSubstr("device memory"));
    EXPECT_THAT(error.message(), HasSubstr("optimizer"));
    EXPECT_THAT(error.hint(), HasSubstr("layout.offload = \"optimizer\""));
  }
  EXPECT_NO_THROW(train_offloaded(offloaded(recipe), 1, 2));
}

/// The recurrence of updates.h, one number after the other: gradients from a plain trainer whose weights are set to v_t
/// before each step, Adam and clipping written out.
TEST(DelayedUpdate, EqualsTheRecurrenceInDouble) {
  constexpr int kSteps = 7;
  for (const int warmup : {0, 2, 40}) {
    spec::Recipe recipe = offload_recipe(Precision::kFp64, 0);
    recipe.optim.learning_rate = 1e-2;
    recipe.optim.grad_clip_norm = 0.5;  // falls in some steps
    std::vector<double> losses;
    std::map<std::string, optim::PlainParam> masters;
    int clipped = 0;
    with_trainers(recipe, 1, [&](Trainer& trainer, comm::Rank&) {
      using Numbers = optim::Numbers;
      std::map<std::string, Numbers> computed, before;  // v_t, m_(t-2)
      const auto numbers = [](const at::Tensor& tensor) {
        const at::Tensor flat = tensor.contiguous();
        return Numbers(flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel());
      };
      for (const nn::Param& param : trainer.params()) {
        const spec::ParamRule rule = spec::rule_for(recipe.optim, param.name, param.decay);
        masters[param.name] = {.w = numbers(param.master), .rate = rule.rate, .decay = rule.weight_decay};
      }
      std::map<std::string, Numbers> gradients;
      trainer.on_gradients([&](nn::Params& params) {
        for (const nn::Param& param : params) gradients[param.name] = numbers(param.gradient);
      });
      for (int t = 1; t <= kSteps; ++t) {
        for (const auto& [name, param] : masters) computed[name] = t <= warmup + 1 ? param.w : before[name];
        for (nn::Param& param : trainer.params()) {
          std::ranges::copy(computed[param.name], param.master.data_ptr<double>());
          nn::publish(param);
        }
        const StepReport report = trainer.step();
        losses.push_back(report.loss);
        double squares = 0;
        for (const auto& [name, g] : gradients) squares += std::pow(optim::norm(g), 2);
        const double factor = std::min(1.0, recipe.optim.grad_clip_norm / std::sqrt(squares));
        clipped += factor < 1;
        for (auto& [name, param] : masters) {
          before[name] = param.w;
          for (double& g : gradients[name]) g *= factor;
          optim::plain_step(recipe.optim, param, gradients[name], report.learning_rate, t);
        }
      }
    });
    EXPECT_GT(clipped, 0);
    for (const auto& [zero, ranks] : {std::pair{0, 1}, {2, 1}, {0, 2}, {1, 2}, {2, 3}, {3, 2}}) {
      SCOPED_TRACE(fmt::format("warmup {}, zero {}, {} ranks", warmup, zero, ranks));
      spec::Recipe late = delayed(recipe, warmup);
      late.layout.zero = zero;
      const Ended ended = train_offloaded(late, ranks, kSteps);
      for (int t = 0; t < kSteps; ++t) EXPECT_NEAR(ended.losses[t], losses[t], 1e-10) << "step " << t + 1;
      for (const auto& [name, param] : masters) {
        const at::Tensor flat = ended.state.at("param/" + name).contiguous();
        double worst = 0;
        for (std::size_t i = 0; i < param.w.size(); ++i) {
          worst = std::max(worst, std::abs(flat.const_data_ptr<double>()[i] - param.w[i]));
        }
        EXPECT_LT(worst, 1e-9) << name;
      }
    }
  }
}

TEST(DelayedUpdate, IsNoDelayAtAllDuringWarmup) {
  const spec::Recipe recipe = offload_recipe(Precision::kBf16, 2);
  const Ended plain = train_offloaded(recipe, 2, 4), warm = train_offloaded(delayed(recipe, 4), 2, 4),
              late = train_offloaded(delayed(recipe, 1), 2, 4);
  EXPECT_EQ(plain.losses, warm.losses);
  for (const auto& [name, tensor] : plain.state) EXPECT_TRUE(at::equal(tensor, warm.state.at(name))) << name;
  // Step 2 is the first whose update is late; step 3 the first that computes without it.
  EXPECT_EQ(plain.losses[1], late.losses[1]);
  EXPECT_NE(plain.losses[2], late.losses[2]);
}

/// A folder that goes away with the test.
struct Folder {
  std::filesystem::path path = std::filesystem::temp_directory_path() / fmt::format("trireme-offload-{}", getpid());
  Folder() { std::filesystem::create_directories(path); }
  ~Folder() { std::filesystem::remove_all(path); }
};

/// Steps, a checkpoint, and the same steps after it in trainers made anew, perhaps under another layout.
Ended interrupted(const spec::Recipe& first, const spec::Recipe& second, int ranks, int before, int after) {
  const Folder folder;
  std::filesystem::path saved;
  Ended ended;
  with_trainers(first, ranks, [&](Trainer& trainer, comm::Rank& rank) {
    std::vector<double> losses, norms;
    for (int step = 0; step < before; ++step) {
      const StepReport report = trainer.step();
      losses.push_back(report.loss);
      norms.push_back(report.gradient_norm);
    }
    const nn::State whole = checkpoint::gather_whole(trainer.state(), rank.world());
    if (rank.rank() != 0) return;
    saved = checkpoint::save(whole, {.folder = folder.path, .step = before, .tokens = trainer.position().tokens});
    ended.losses = losses;
    ended.norms = norms;
  });
  with_trainers(second, ranks, [&](Trainer& trainer, comm::Rank& rank) {
    // Other numbers first, which are on their way to all ranks when the checkpoint is read.
    for (nn::Param& param : trainer.params()) param.master.fill_(7);
    trainer.loaded();
    checkpoint::load(formats::CheckpointFolder(saved), trainer.state());
    trainer.loaded();
    std::vector<double> losses, norms;
    for (int step = 0; step < after; ++step) {
      const StepReport report = trainer.step();
      losses.push_back(report.loss);
      norms.push_back(report.gradient_norm);
    }
    Tensors state = whole_state(trainer, rank);
    if (rank.rank() != 0) return;
    ended.losses.insert(ended.losses.end(), losses.begin(), losses.end());
    ended.norms.insert(ended.norms.end(), norms.begin(), norms.end());
    ended.state = std::move(state);
  });
  return ended;
}

/// Without offload too: weights that are still on their way when a checkpoint is read must not arrive after it, and
/// frozen ones are sent again when they change.
TEST(Offload, GoesOnFromACheckpointWithTheSameBits) {
  for (const int zero : {1, 2}) {
    spec::Recipe recipe = offload_recipe(Precision::kFp32, zero);
    recipe.train.freeze = {"layers.0.mlp.*"};
    for (const spec::Recipe& either : {recipe, offloaded(recipe)}) {
      expect_same_bits(train_offloaded(either, 2, 4), interrupted(either, either, 2, 2, 2));
    }
  }
}

TEST(DelayedUpdate, GoesOnFromACheckpointWithTheSameBits) {
  for (const int zero : {0, 1, 2, 3}) {
    SCOPED_TRACE(zero);
    const Precision precision = zero % 2 == 0 ? Precision::kBf16 : Precision::kFp32;
    const spec::Recipe recipe = delayed(offload_recipe(precision, zero), 1);
    const Ended straight = train_offloaded(recipe, 2, 5);
    for (const int before : {1, 2, 3}) {  // in the warmup, and with an update under way
      SCOPED_TRACE(fmt::format("saved after step {}", before));
      expect_same_bits(straight, interrupted(recipe, recipe, 2, before, 5 - before));
    }
  }
}

TEST(DelayedUpdate, GoesOnUnderAnotherLayout) {
  const spec::Recipe recipe = delayed(offload_recipe(Precision::kFp64, 1), 1);
  spec::Recipe stages = delayed(offload_recipe(Precision::kFp64, 3), 1);
  stages.layout.pp = 2;
  const Ended straight = train_offloaded(recipe, 4, 6), moved = interrupted(recipe, stages, 4, 3, 3);
  for (std::size_t i = 0; i < 6; ++i) EXPECT_NEAR(straight.losses[i], moved.losses[i], 1e-10) << "step " << i + 1;
}

/// As --explain does before the first step: nothing may change, though masters are ahead of what is computed with.
TEST(DelayedUpdate, ARehearsalBringsNothingIn) {
  for (const int zero : {0, 2, 3}) {
    SCOPED_TRACE(zero);
    const spec::Recipe recipe = delayed(offload_recipe(Precision::kBf16, zero), 0);
    const Ended straight = train_offloaded(recipe, 2, 4);
    Ended rehearsed;
    with_trainers(recipe, 2, [&](Trainer& trainer, comm::Rank& rank) {
      std::vector<double> losses, norms;
      for (int step = 0; step < 4; ++step) {
        trainer.rehearse();
        const StepReport report = trainer.step();
        losses.push_back(report.loss);
        norms.push_back(report.gradient_norm);
      }
      Tensors state = whole_state(trainer, rank);
      if (rank.rank() == 0) rehearsed = {losses, norms, std::move(state), trainer.memory()};
    });
    expect_same_bits(straight, rehearsed);
  }
}

/// The check is of a step's own gradient, at its end: no step later, and the update before it is not lost.
TEST(DelayedUpdate, StopsAtTheStepWhoseGradientIsNotFinite) {
  const spec::Recipe recipe = delayed(offload_recipe(Precision::kFp32, 0), 0);
  const Ended two = train_offloaded(recipe, 1, 2);
  with_trainers(recipe, 1, [&](Trainer& trainer, comm::Rank& rank) {
    trainer.step();
    trainer.step();
    trainer.on_gradients([](nn::Params& params) {
      params.at("layers.1.mlp.out.weight").gradient.fill_(std::numeric_limits<float>::infinity());
    });
    try {
      trainer.step();
      FAIL() << "an infinite gradient was used";
    } catch (const NonFiniteError& error) {
      EXPECT_EQ(error.step(), 3);
    }
    for (const auto& [name, tensor] : whole_state(trainer, rank)) {
      EXPECT_TRUE(at::equal(tensor, two.state.at(name))) << name;
    }
  });
}

TEST(OffloadedActivations, ChangeNoBitAndLeaveTheDevice) {
  for (const spec::RecomputeKind kind :
       {spec::RecomputeKind::kFull, spec::RecomputeKind::kSqrt, spec::RecomputeKind::kEvery}) {
    for (const Family family : {Family::kLlama, Family::kTransformer}) {
      SCOPED_TRACE(fmt::format("recompute {}, family {}", static_cast<int>(kind), static_cast<int>(family)));
      spec::Recipe recipe = small_recipe(family, Precision::kBf16);
      recipe.model.num_layers = 9;
      recipe.model.dropout = 0.1;
      recipe.train.recompute = kind;
      recipe.train.micro_batch_size = 3;
      const Ended kept = train_offloaded(recipe, 1, 3);
      recipe.train.offload_activations = true;
      const Ended away = train_offloaded(recipe, 1, 3);
      expect_same_bits(kept, away);
      EXPECT_EQ(kept.memory.host.peak_of(MemoryUse::kActivations), 0);
      EXPECT_GT(away.memory.host.peak_of(MemoryUse::kActivations), 0);
      EXPECT_EQ(away.memory.host.bytes_of(MemoryUse::kActivations), 0);
      EXPECT_EQ(away.memory.device.bytes_of(MemoryUse::kActivations), 0);
      if (kind == spec::RecomputeKind::kFull && family == Family::kLlama) {
        EXPECT_LT(away.memory.device.peak_of(MemoryUse::kActivations),
                  kept.memory.device.peak_of(MemoryUse::kActivations));
        // Nine blocks' inputs: 3 rows of 12 tokens of 16 numbers of 2 bytes each.
        EXPECT_EQ(away.memory.host.peak_of(MemoryUse::kActivations), 9 * 3 * 12 * 16 * 2);
      }
    }
  }
}

/// ZeRO-R's defragmentation: saved inputs lie side by side, also parts of them, of several micro-batches and of an
/// encoder's output that all of a decoder's blocks keep.
TEST(ContiguousActivations, ChangeNoBitAndLieInOnePlace) {
  struct Case {
    Family family;
    int ranks, tp, pp;
    const char* schedule;
    bool partition;
  };
  for (const Case& one :
       {Case{Family::kLlama, 1, 1, 1, "1f1b", false}, Case{Family::kTransformer, 1, 1, 1, "1f1b", false},
        Case{Family::kGpt2, 2, 2, 1, "1f1b", true}, Case{Family::kLlama, 2, 1, 2, "1f1b", false},
        Case{Family::kLlama, 2, 1, 2, "gpipe", false}, Case{Family::kGpt2, 2, 1, 2, "chimera-doubling", false}}) {
    SCOPED_TRACE(
        fmt::format("family {}, tp {}, pp {}, {}", static_cast<int>(one.family), one.tp, one.pp, one.schedule));
    spec::Recipe recipe = small_recipe(one.family, Precision::kBf16);
    recipe.model.num_layers = 5;
    recipe.model.dropout = 0.1;
    recipe.batch.global_batch_tokens = 8 * 12;
    recipe.layout.tp = one.tp, recipe.layout.pp = one.pp;
    recipe.pipeline.schedule = one.schedule;
    recipe.train.partition_activations = one.partition;
    recipe.train.recompute = spec::RecomputeKind::kFull;
    recipe.train.micro_batch_size = 2;
    const Ended scattered = train_offloaded(recipe, one.ranks, 3);
    recipe.train.contiguous_activations = true;
    const Ended together = train_offloaded(recipe, one.ranks, 3);
    expect_same_bits(scattered, together);
    EXPECT_EQ(scattered.memory.device.peak_of(MemoryUse::kActivations),
              together.memory.device.peak_of(MemoryUse::kActivations));
    EXPECT_EQ(together.memory.device.bytes_of(MemoryUse::kActivations), 0);
  }
}

TEST(OffloadedActivations, GoWithEverythingElse) {
  spec::Recipe recipe = delayed(offload_recipe(Precision::kBf16, 3), 1);
  recipe.model.num_layers = 4;
  recipe.batch.global_batch_tokens = 8 * 12;
  recipe.train.recompute = spec::RecomputeKind::kFull;
  for (const int stages : {1, 2}) {
    recipe.layout.pp = stages;
    recipe.train.offload_activations = false;
    const Ended kept = train_offloaded(recipe, 4, 4);
    recipe.train.offload_activations = true;
    expect_same_bits(kept, train_offloaded(recipe, 4, 4));
  }
}

}  // namespace
}  // namespace trireme::train
