#include <unistd.h>

#include <filesystem>

#include "tests/gpu/support.h"
#include "tests/train/support.h"
#include "trireme/checkpoint/store.h"

namespace trireme::gpu {
namespace {

using spec::DeviceKind;
using spec::Family;
using spec::Precision;
using train::small_recipe;
using train::with_trainers;

struct Outcome {
  std::vector<double> losses, norms;
  double validation = 0;
};

/// Some steps, a checkpoint in `folder`, and some more.
Outcome train_and_save(const spec::Recipe& recipe, const std::filesystem::path& folder) {
  Outcome outcome;
  with_trainers(recipe, 1, [&](train::Trainer& trainer, comm::Rank&) {
    for (int step = 0; step < 6; ++step) {
      if (step == 3) checkpoint::save(trainer.state(), {.folder = folder, .name = "state", .step = 3});
      const train::StepReport report = trainer.step();
      outcome.losses.push_back(report.loss);
      outcome.norms.push_back(report.gradient_norm);
    }
    const auto samples = data::open_samples(recipe, data::Split::kTrain);
    outcome.validation = trainer.evaluate(*samples, {.count = 4, .rows = 2}).loss();
  });
  return outcome;
}

Outcome go_on(const spec::Recipe& recipe, const std::filesystem::path& folder) {
  Outcome outcome;
  with_trainers(recipe, 1, [&](train::Trainer& trainer, comm::Rank&) {
    checkpoint::load(formats::CheckpointFolder(folder / "state"), trainer.state());
    trainer.loaded();
    for (int step = 3; step < 6; ++step) outcome.losses.push_back(trainer.step().loss);
  });
  return outcome;
}

class GpuTrainer : public testing::Test {
 protected:
  std::filesystem::path folder_ = std::filesystem::temp_directory_path() / fmt::format("trireme-gpu-test-{}", getpid());
  void TearDown() override { std::filesystem::remove_all(folder_); }
};

TEST_F(GpuTrainer, TrainsEvaluatesAndGoesOnAsTheCpuDoes) {
  for (const Family family : {Family::kGpt2, Family::kLlama, Family::kBert, Family::kTransformer}) {
    SCOPED_TRACE(static_cast<int>(family));
    spec::Recipe recipe = small_recipe(family, Precision::kFp64);
    recipe.model.dropout = 0.1;
    recipe.train.micro_batch_size = 2;
    spec::Recipe there = recipe;
    there.run.device = DeviceKind::kCuda;
    const Outcome cpu = train_and_save(recipe, folder_ / "cpu"), gpu = train_and_save(there, folder_ / "gpu");
    for (std::size_t i = 0; i < cpu.losses.size(); ++i) {
      EXPECT_NEAR(gpu.losses[i], cpu.losses[i], 1e-9);
      EXPECT_NEAR(gpu.norms[i], cpu.norms[i], 1e-9);
    }
    EXPECT_NEAR(gpu.validation, cpu.validation, 1e-9);
    // A checkpoint does not know where it was written.
    for (const auto& [on, from] : {std::pair{&there, "cpu"}, std::pair{&recipe, "gpu"}}) {
      const Outcome rest = go_on(*on, folder_ / from);
      for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(rest.losses[i], cpu.losses[3 + i], 1e-9);
    }
  }
}

TEST_F(GpuTrainer, TakesEveryOptimizerAndPrecision) {
  for (const auto kind : {spec::OptimizerKind::kSgd, spec::OptimizerKind::kAdagrad, spec::OptimizerKind::kAdamw,
                          spec::OptimizerKind::kLamb, spec::OptimizerKind::kLars}) {
    for (const Precision precision : {Precision::kFp32, Precision::kBf16, Precision::kFp16}) {
      spec::Recipe recipe = small_recipe(Family::kLlama, precision);
      recipe.optim.kind = kind;
      spec::Recipe there = recipe;
      there.run.device = DeviceKind::kCuda;
      const Outcome cpu = train_and_save(recipe, folder_ / "cpu"), gpu = train_and_save(there, folder_ / "gpu");
      for (std::size_t i = 0; i < cpu.losses.size(); ++i) {
        EXPECT_NEAR(gpu.losses[i], cpu.losses[i], precision == Precision::kFp32 ? 1e-4 : 0.02)
            << static_cast<int>(kind) << " " << static_cast<int>(precision);
      }
    }
  }
}

/// What was captured gives the bits of what runs kernel by kernel, micro after micro.
TEST_F(GpuTrainer, ReplayedStepsHaveTheBitsOfPlainOnes) {
  for (const Family family : {Family::kGpt2, Family::kLlama}) {
    for (const Precision precision : {Precision::kFp32, Precision::kBf16}) {
      spec::Recipe recipe = small_recipe(family, precision);
      recipe.run.device = DeviceKind::kCuda;
      recipe.batch.global_batch_tokens = 4 * 12;
      recipe.train.micro_batch_size = 2;
      const auto losses = [&](bool capture) {
        recipe.train.cuda_graphs = capture;
        std::vector<double> out;
        with_trainers(recipe, 1, [&](train::Trainer& trainer, comm::Rank&) {
          for (int step = 0; step < 8; ++step) {
            const train::StepReport report = trainer.step();
            out.insert(out.end(), {report.loss, report.gradient_norm});
          }
        });
        return out;
      };
      EXPECT_EQ(losses(true), losses(false)) << static_cast<int>(family) << " " << static_cast<int>(precision);
    }
  }
}

/// The update too, with nobody waiting for it, and dropout, whose draws lie in the GPU's memory.
TEST_F(GpuTrainer, ReplayedUpdatesHaveTheBitsOfPlainOnes) {
  for (const auto kind : {spec::OptimizerKind::kSgd, spec::OptimizerKind::kAdagrad, spec::OptimizerKind::kAdam,
                          spec::OptimizerKind::kAdamw}) {
    for (const Precision precision : {Precision::kFp64, Precision::kBf16}) {
      SCOPED_TRACE(fmt::format("{} {}", static_cast<int>(kind), static_cast<int>(precision)));
      spec::Recipe recipe = small_recipe(Family::kGpt2, precision);
      recipe.run.device = DeviceKind::kCuda;
      recipe.optim.kind = kind;
      recipe.optim.weight_decay = 0.1;
      recipe.optim.grad_clip_norm = 0.1;
      recipe.model.dropout = 0.2;
      recipe.model.attention_dropout = 0;  // whose draws the host draws
      recipe.batch.global_batch_tokens = 4 * 12;
      recipe.train.micro_batch_size = 2;
      recipe.checkpoint.every = 5;
      const auto course = [&](bool capture, bool ahead) {
        recipe.train.cuda_graphs = capture;
        std::vector<double> out;
        with_trainers(recipe, 1, [&](train::Trainer& trainer, comm::Rank&) {
          EXPECT_TRUE(!ahead || trainer.run_ahead());
          for (int step = 0; step < 10; ++step) {
            const train::StepReport report = trainer.step();
            out.insert(out.end(), {report.loss, report.gradient_norm});
            EXPECT_EQ(trainer.at_rest(), !ahead || step == 4 || step == 9);
          }
          for (const nn::Param& param : trainer.params()) out.push_back(param.master.cpu().sum().item<double>());
        });
        return out;
      };
      const auto plain = course(false, false);
      EXPECT_EQ(course(true, false), plain) << "replayed";
      EXPECT_EQ(course(false, true), plain) << "ahead";
      EXPECT_EQ(course(true, true), plain) << "replayed and ahead";
    }
  }
}

/// Gradients of 16 bits: beside the CPU's, beside fp32 ones, and replayed and ahead to the bit, with one micro and with
/// several.
TEST_F(GpuTrainer, TakesGradientsOfSixteenBits) {
  for (const Family family : {Family::kGpt2, Family::kLlama}) {
    for (const Precision precision : {Precision::kBf16, Precision::kFp16}) {
      for (const std::int64_t micro_batch_size : {4, 2}) {
        SCOPED_TRACE(fmt::format("{} {} {}", static_cast<int>(family), static_cast<int>(precision), micro_batch_size));
        spec::Recipe recipe = small_recipe(family, precision);
        recipe.model.dropout = recipe.model.attention_dropout = 0;
        recipe.model.hidden_size = 64, recipe.model.num_heads = 4, recipe.model.num_kv_heads = 4,
        recipe.model.head_dim = 16;
        recipe.model.ffn_size = 256;
        recipe.batch.global_batch_tokens = 4 * 12;
        recipe.train.micro_batch_size = micro_batch_size;
        recipe.optim.grad_clip_norm = 0.1;
        const Outcome wide = train_and_save(recipe, folder_ / "wide");
        recipe.precision.gradients = precision == Precision::kFp16 ? spec::Gradients::kFp16 : spec::Gradients::kBf16;
        const Outcome cpu = train_and_save(recipe, folder_ / "cpu");
        recipe.run.device = DeviceKind::kCuda;
        const auto course = [&](bool capture, bool ahead) {
          recipe.train.cuda_graphs = capture;
          Outcome out;
          with_trainers(recipe, 1, [&](train::Trainer& trainer, comm::Rank&) {
            EXPECT_TRUE(!ahead || trainer.run_ahead());
            for (int step = 0; step < 6; ++step) {
              const train::StepReport report = trainer.step();
              out.losses.push_back(report.loss);
              out.norms.push_back(report.gradient_norm);
            }
          });
          return out;
        };
        const Outcome gpu = course(false, false);
        for (std::size_t i = 0; i < cpu.losses.size(); ++i) {
          EXPECT_NEAR(gpu.losses[i], cpu.losses[i], 0.02) << i;
          EXPECT_NEAR(gpu.losses[i], wide.losses[i], 0.02) << i;
          EXPECT_NEAR(gpu.norms[i], cpu.norms[i], 0.03 * cpu.norms[i]) << i;
        }
        const Outcome replayed = course(true, false);
        EXPECT_EQ(replayed.losses, gpu.losses);
        EXPECT_EQ(replayed.norms, gpu.norms);
        if (precision == Precision::kFp16) continue;  // its loss scale is decided on by the host
        const Outcome ahead = course(true, true);
        EXPECT_EQ(ahead.losses, gpu.losses);
        EXPECT_EQ(ahead.norms, gpu.norms);
      }
    }
  }
}

/// A graph serves any number of targets: their weight is read from the GPU's memory.
TEST_F(GpuTrainer, CapturesStepsWithDifferentNumbersOfTargets) {
  spec::Recipe recipe = small_recipe(Family::kBert, Precision::kFp32);
  recipe.run.device = DeviceKind::kCuda;
  recipe.model.dropout = recipe.model.attention_dropout = 0;
  const auto losses = [&](bool capture) {
    recipe.train.cuda_graphs = capture;
    std::vector<double> out;
    with_trainers(recipe, 1, [&](train::Trainer& trainer, comm::Rank&) {
      for (int step = 0; step < 8; ++step) out.push_back(trainer.step().loss);
    });
    return out;
  };
  EXPECT_EQ(losses(true), losses(false));
}

TEST_F(GpuTrainer, AStepAheadLeavesTheWeightsBeforeNumbersThatAreNone) {
  spec::Recipe recipe = small_recipe(Family::kGpt2, Precision::kBf16);
  recipe.run.device = DeviceKind::kCuda;
  recipe.train.cuda_graphs = true;
  with_trainers(recipe, 1, [&](train::Trainer& trainer, comm::Rank&) {
    ASSERT_TRUE(trainer.run_ahead());
    for (int step = 0; step < 5; ++step) trainer.step();
    trainer.rest_soon();
    trainer.step();
    ASSERT_TRUE(trainer.at_rest());
    nn::Param& norm = trainer.params().at("norm.weight");
    const at::Tensor kept = norm.master.clone();
    norm.master.fill_(NAN);
    nn::publish(norm);
    std::vector<at::Tensor> before;
    for (const nn::Param& param : trainer.params()) before.push_back(param.master.cpu());
    EXPECT_THROW(trainer.step(), train::NonFiniteError);
    EXPECT_EQ(trainer.position().step, 6);
    EXPECT_EQ(trainer.optimizer().steps(), 6);
    std::size_t i = 0;
    for (const nn::Param& param : trainer.params()) {
      EXPECT_TRUE(same_bits(param.master.cpu(), before[i++])) << param.name;
    }
    norm.master.copy_(kept);
    nn::publish(norm);
    EXPECT_TRUE(std::isfinite(trainer.step().loss));
    EXPECT_EQ(trainer.position().step, 7);
  });
}

/// More than any card has: not a stack trace but what is where, and what to change.
TEST_F(GpuTrainer, SaysWhatFillsTheGpu) {
  spec::Recipe recipe = small_recipe(Family::kGpt2, Precision::kBf16);
  recipe.run.device = DeviceKind::kCuda;
  recipe.model.hidden_size = 65536;
  recipe.model.num_heads = 512;
  recipe.model.head_dim = 128;
  recipe.model.ffn_size = 4 * 65536;
  std::string why;
  try {
    with_trainers(recipe, 1, [](train::Trainer&, comm::Rank&) {});
  } catch (const Error& error) {
    why = error.block();
  }
  EXPECT_THAT(why, testing::HasSubstr("GPU memory"));
  EXPECT_THAT(why, testing::HasSubstr("train.micro_batch_size"));
}

}  // namespace
}  // namespace trireme::gpu
