// Optimizer and activations on the host beside a GPU: what changes is where things are. Copies run beside kernels, so
// the larger of these models take long enough for a missing wait to show as other bits.
#include <ATen/ops/equal.h>
#include <unistd.h>

#include "tests/gpu/support.h"
#include "tests/train/support.h"
#include "trireme/device/copy.h"
#include "trireme/device/cuda.h"

namespace trireme::gpu {
namespace {

using spec::Family;
using spec::Precision;
using train::small_recipe;
using train::with_trainers;

std::vector<double> run(const spec::Recipe& recipe, int ranks = 1, int steps = 5) {
  std::vector<double> out;
  with_trainers(recipe, ranks, [&](train::Trainer& trainer, comm::Rank& rank) {
    for (int step = 0; step < steps; ++step) {
      const train::StepReport report = trainer.step();
      if (rank.rank() == 0) out.insert(out.end(), {report.loss, report.gradient_norm});
    }
  });
  return out;
}

spec::Recipe on_gpu(spec::Recipe recipe) {
  recipe.run.device = spec::DeviceKind::kCuda;
  return recipe;
}

spec::Recipe recipe_for(Precision precision, int zero) {
  spec::Recipe recipe = small_recipe(Family::kLlama, precision);
  recipe.batch.global_batch_tokens = 6 * 12;
  recipe.train.micro_batch_size = 2;
  recipe.layout.zero = zero;
  recipe.layout.bucket_mb = 0.002;
  return recipe;
}

void expect_all_near(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], tolerance) << i;
}

/// Megabytes out and back while the GPU overwrites what was copied: each waits for the other where it must.
TEST(GpuHostCopies, KeepTheirOrderBesideKernels) {
  const auto copies = device::HostCopies::make(gpu());
  const std::int64_t count = std::int64_t{1} << 24;
  for (int turn = 0; turn < 20; ++turn) {
    at::Tensor x = at::full({count}, turn, at::TensorOptions(at::kFloat).device(gpu()));
    const at::Tensor away = copies->empty_on_host(x);
    const auto out = copies->to_host(x, away);
    copies->make_stream_wait(out);
    x.fill_(-1);  // not before the copy has read it
    const at::Tensor back = copies->empty_on_device(away);
    const auto in = copies->to_device(away, back);
    copies->make_stream_wait(in);
    const at::Tensor differ = back.ne(turn).sum();  // not before the copy has written it
    EXPECT_EQ(differ.item<std::int64_t>(), 0) << turn;
    copies->wait(out);
    EXPECT_EQ(away.ne(turn).sum().item<std::int64_t>(), 0) << turn;
  }
  // Two blocks at most: one in use, one still held by a copy that ended a moment ago.
  EXPECT_LE(copies->pinned_bytes(), 2 * 4 * count);
}

TEST(GpuOffload, ChangesNothingUnderAnyZero) {
  for (const int zero : {0, 1, 2, 3}) {
    for (const int ranks : {1, 2}) {
      SCOPED_TRACE(fmt::format("zero {}, {} ranks", zero, ranks));
      const spec::Recipe recipe = recipe_for(Precision::kFp64, zero);
      spec::Recipe there = on_gpu(recipe);
      there.layout.offload = spec::OffloadKind::kOptimizer;
      const std::vector<double> cpu = run(recipe, ranks);
      expect_all_near(run(there, ranks), cpu, 1e-9);
      there.layout.reduce = spec::ReduceKind::kBf16;  // travels rounded, and is widened on the host
      expect_all_near(run(there, ranks), cpu, 0.05);
    }
  }
}

TEST(GpuOffload, HasLateUpdatesAsTheCpuHas) {
  for (const int zero : {0, 2}) {
    spec::Recipe recipe = recipe_for(Precision::kFp64, zero);
    recipe.layout.offload = spec::OffloadKind::kOptimizer;
    recipe.layout.delayed_update = true;
    recipe.layout.offload_warmup = 2;
    expect_all_near(run(on_gpu(recipe), 1, 8), run(recipe, 1, 8), 1e-9);
  }
}

TEST(GpuOffload, GoesWithCudaGraphsAndNarrowStates) {
  spec::Recipe recipe = on_gpu(recipe_for(Precision::kFp32, 0));
  recipe.layout.offload = spec::OffloadKind::kOptimizer;
  const std::vector<double> plain = run(recipe, 1, 8);
  recipe.train.cuda_graphs = true;
  EXPECT_EQ(run(recipe, 1, 8), plain);
  spec::Recipe few = on_gpu(recipe_for(Precision::kBf16, 0));
  few.precision.master_weights = spec::MasterWeights::kNone;
  few.optim.state_dtype = spec::StateDtype::kBf16;
  const std::vector<double> here = run(few);
  few.layout.offload = spec::OffloadKind::kOptimizer;
  expect_all_near(run(few), here, 0.02);
}

TEST(GpuOffload, BringsActivationsBackAsTheyWere) {
  for (const auto kind : {spec::RecomputeKind::kFull, spec::RecomputeKind::kEvery, spec::RecomputeKind::kSqrt}) {
    for (const Family family : {Family::kGpt2, Family::kTransformer}) {
      spec::Recipe recipe = on_gpu(small_recipe(family, Precision::kFp32));
      recipe.model.num_layers = 5;
      recipe.train.recompute = kind;
      const std::vector<double> kept = run(recipe);
      recipe.train.offload_activations = true;
      EXPECT_EQ(run(recipe), kept) << static_cast<int>(kind) << " " << static_cast<int>(family);
    }
  }
}

/// Tens of megabytes a layer: copies last as long as kernels. Twice the same bits, and those of a run without.
TEST(GpuOffload, IsTheSameBitsAtASizeWhereCopiesTakeTime) {
  spec::Recipe recipe = on_gpu(small_recipe(Family::kGpt2, Precision::kBf16));
  recipe.model.hidden_size = 1024;
  recipe.model.num_heads = recipe.model.num_kv_heads = 16;
  recipe.model.head_dim = 64;
  recipe.model.ffn_size = 4096;
  recipe.model.num_layers = 6;
  recipe.model.max_seq_len = 512;
  recipe.data.seq_len = 512;
  recipe.batch.global_batch_tokens = 16 * 512;
  recipe.train.micro_batch_size = 8;
  recipe.train.recompute = spec::RecomputeKind::kFull;
  recipe.precision.deterministic_attention = true;  // or the order of its sums would decide about bits
  const std::vector<double> plain = run(recipe, 1, 6);
  spec::Recipe stash = recipe;
  stash.train.offload_activations = true;
  EXPECT_EQ(run(stash, 1, 6), plain);
  for (const int zero : {0, 2}) {
    SCOPED_TRACE(zero);
    spec::Recipe moved = stash;
    moved.layout.zero = zero;
    moved.layout.offload = spec::OffloadKind::kOptimizer;
    const std::vector<double> once = run(moved, 1, 6);
    EXPECT_EQ(run(moved, 1, 6), once);
    expect_all_near(once, plain, 0.02 * plain.front());  // the host's update fuses other operations
  }
}

TEST(GpuOffload, LeavesTheGpuLessThanHalf) {
  spec::Recipe recipe = on_gpu(small_recipe(Family::kGpt2, Precision::kBf16));
  recipe.model.hidden_size = 512;
  recipe.model.num_heads = recipe.model.num_kv_heads = 8;
  recipe.model.head_dim = 64;
  recipe.model.ffn_size = 2048;
  recipe.model.num_layers = 8;
  recipe.layout.zero = 2;
  recipe.layout.bucket_mb = 4;
  const auto peak = [&] {
    device::cuda_runtime().reset_peak_memory_stats(0);
    const std::int64_t before = device::cuda_runtime().max_memory_allocated(0);  // workspaces of earlier tests' threads
    run(recipe, 1, 3);
    return static_cast<double>(device::cuda_runtime().max_memory_allocated(0) - before);
  };
  const double whole = peak();
  recipe.layout.offload = spec::OffloadKind::kOptimizer;
  EXPECT_LT(peak(), 0.5 * whole);
}

}  // namespace
}  // namespace trireme::gpu
