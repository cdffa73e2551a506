// The plan of a run's memory beside what the allocator measured, and steps that ask the driver for nothing.
#include "tests/gpu/support.h"
#include "tests/train/support.h"
#include "trireme/device/cuda.h"

namespace trireme::gpu {
namespace {

using train::small_recipe;
using train::with_trainers;

/// Large enough that what a library keeps for itself is little beside it.
spec::Recipe middle(spec::Family family) {
  spec::Recipe recipe = small_recipe(family, spec::Precision::kBf16);
  recipe.run.device = spec::DeviceKind::kCuda;
  recipe.model.hidden_size = 1024;
  recipe.model.num_heads = recipe.model.num_kv_heads = 16;
  recipe.model.head_dim = 64;
  recipe.model.ffn_size = 4096;
  recipe.model.num_layers = 8;
  recipe.model.max_seq_len = 1024;
  recipe.model.vocab_size = 32768;
  recipe.data.seq_len = 1024;
  recipe.batch.global_batch_tokens = 8 * 1024;
  return recipe;
}

std::vector<std::pair<const char*, spec::Recipe>> recipes() {
  std::vector<std::pair<const char*, spec::Recipe>> all;
  const auto add = [&](const char* name, spec::Family family, auto&& change) {
    spec::Recipe recipe = middle(family);
    change(recipe);
    all.emplace_back(name, std::move(recipe));
  };
  using enum spec::Family;
  add("gpt2", kGpt2, [](spec::Recipe&) {});
  add("llama", kLlama, [](spec::Recipe&) {});
  add("graphs", kGpt2, [](spec::Recipe& recipe) { recipe.train.cuda_graphs = true; });
  add("micros", kLlama, [](spec::Recipe& recipe) { recipe.train.micro_batch_size = 2; });
  add("recompute", kGpt2, [](spec::Recipe& recipe) { recipe.train.recompute = spec::RecomputeKind::kFull; });
  add("narrow", kLlama, [](spec::Recipe& recipe) {
    recipe.precision.master_weights = spec::MasterWeights::kNone;
    recipe.optim.state_dtype = spec::StateDtype::kBf16;
  });
  add("offload", kGpt2, [](spec::Recipe& recipe) { recipe.layout.offload = spec::OffloadKind::kOptimizer; });
  add("offload, zero 2", kGpt2, [](spec::Recipe& recipe) {
    recipe.layout.offload = spec::OffloadKind::kOptimizer;
    recipe.layout.zero = 2;
  });
  add("all away", kGpt2, [](spec::Recipe& recipe) {
    recipe.layout.offload = spec::OffloadKind::kOptimizer;
    recipe.train.recompute = spec::RecomputeKind::kFull;
    recipe.train.offload_activations = true;
  });
  return all;
}

TEST(GpuMemory, IsPlannedAndThenAskedForNoMore) {
  for (const auto& [name, recipe] : recipes()) {
    SCOPED_TRACE(name);
    with_trainers(recipe, 1, [&](train::Trainer& trainer, comm::Rank&) {
      device::cuda_runtime().reset_peak_memory_stats(0);
      for (int step = 0; step < 6; ++step) trainer.step();
      const std::int64_t before = device::cuda_runtime().num_device_allocs(0);
      for (int step = 0; step < 8; ++step) trainer.step();
      EXPECT_EQ(device::cuda_runtime().num_device_allocs(0), before) << "steps that look alike allocate";
      const double measured = static_cast<double>(device::cuda_runtime().max_memory_allocated(0)),
                   planned = trainer.planned().peak();
      EXPECT_NEAR(measured, planned, 0.08 * planned) << trainer.planned().table();
    });
  }
}

TEST(GpuMemory, IsRefusedBeforeAnythingIsAllocated) {
  spec::Recipe recipe = middle(spec::Family::kLlama);
  recipe.model.hidden_size = 16384;
  recipe.model.num_heads = recipe.model.num_kv_heads = 128;
  recipe.model.head_dim = 128;
  recipe.model.ffn_size = 65536;
  recipe.model.num_layers = 32;
  device::cuda_runtime();
  const std::int64_t before = device::cuda_runtime().num_device_allocs(0);
  try {
    with_trainers(recipe, 1, [](train::Trainer&, comm::Rank&) {});
    FAIL() << "a hundred billion parameters fit";
  } catch (const Error& error) {
    EXPECT_THAT(error.block(), testing::HasSubstr("GPU memory, planned"));
    EXPECT_THAT(error.block(), testing::HasSubstr("optimizer"));
  }
  EXPECT_EQ(device::cuda_runtime().num_device_allocs(0), before);
}

}  // namespace
}  // namespace trireme::gpu
