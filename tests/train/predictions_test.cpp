// What `check` predicts of a run beside what the run does, over random recipes: bytes of every rank by what they are
// for, and every byte that it sends.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <mutex>

#include "tests/train/support.h"
#include "trireme/base/random.h"
#include "trireme/cost/hardware.h"
#include "trireme/plan/activations.h"
#include "trireme/plan/check_recipe.h"
#include "trireme/plan/from_recipe.h"
#include "trireme/plan/layout_matrix.h"
#include "trireme/schedule/builders.h"
#include "trireme/train/diagnose/explain.h"

namespace trireme::train {
namespace {

using device::MemoryUse;
using Planned = plan::MemoryUse;

/// Draws one value after the other: the same recipes every time.
class RecipeDraw {
 public:
  explicit RecipeDraw(std::uint64_t seed) : random_(seed, "predictions") {}

  /// A recipe of at most eight ranks, which may be refused.
  std::pair<spec::Recipe, int> draw() {
    spec::Recipe recipe = small_recipe(spec::Family::kLlama);
    draw_model(recipe);
    spec::LayoutConfig& layout = recipe.layout;
    layout.tp = one_of({1, 1, 2, 4});
    layout.pp = layout.tp < 4 ? one_of({1, 2, 2, 4}) : one_of({1, 2});
    layout.cp = layout.tp * layout.pp <= 4 ? one_of({1, 1, 2}) : 1;
    const int most = 8 / static_cast<int>(layout.ranks_per_copy());
    layout.dp = std::min(most, one_of({1, 2, 4}));
    layout.zero = layout.dp > 1 || layout.cp > 1 ? one_of({0, 1, 2, 3}) : 0;
    if (layout.zero > 0 && layout.dp == 4 && chance(0.3)) layout.zero_group = 2;
    layout.sequence_parallel = layout.tp > 1 && chance(0.5);
    layout.sp_save_gathered = layout.sequence_parallel && chance(0.3);
    layout.cp_kind = one_of({spec::ContextKind::kRing, spec::ContextKind::kUlysses, spec::ContextKind::kGather});
    layout.bucket_mb = one_of({25.0, 0.02});
    if (layout.pp > 1) draw_schedule(recipe);
    draw_step(recipe);
    return {recipe, static_cast<int>(layout.ranks_per_copy()) * *layout.dp};
  }

 private:
  bool chance(double share) { return random_.uniform(at_++) < share; }
  template <typename T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[random_.below(values.size(), at_++)];
  }

  void draw_model(spec::Recipe& recipe) {
    spec::ModelConfig& model = recipe.model;
    model.family = one_of({spec::Family::kGpt2, spec::Family::kLlama, spec::Family::kMistral});
    model.num_heads = 8;
    model.num_kv_heads = model.family == spec::Family::kGpt2 ? 8 : one_of({2, 4, 8});
    model.head_dim = one_of({8, 16});
    model.hidden_size = *model.num_heads * *model.head_dim;
    model.ffn_size = one_of({96, 160});
    model.num_layers = one_of({4, 8});
    model.vocab_size = one_of({64, 128});
    model.max_seq_len = recipe.data.seq_len = one_of({16, 32});
    model.tied = chance(0.3);
    recipe.batch.global_batch_tokens = 16 * recipe.data.seq_len;
  }

  void draw_schedule(spec::Recipe& recipe) {
    const auto kinds = schedule::kinds();
    const schedule::Kind& kind = kinds[random_.below(kinds.size(), at_++)];
    recipe.pipeline.schedule = kind.name;
    recipe.pipeline.virtual_stages = kind.default_chunks;
    if (kind.name == "spectrain") {
      recipe.optim.kind = spec::OptimizerKind::kSgd;
      recipe.optim.momentum = 0.9;
    }
    if (kind.name == "hetpipe") {  // plain SGD, nothing sharded over virtual workers
      recipe.optim.kind = spec::OptimizerKind::kSgd;
      recipe.optim.momentum = recipe.optim.weight_decay = recipe.optim.grad_clip_norm = 0;
      recipe.layout.zero = 0;
    }
    recipe.checkpoint.every = recipe.train.hash_every = 0;
  }

  void draw_step(spec::Recipe& recipe) {
    recipe.precision.compute = one_of({spec::Precision::kFp32, spec::Precision::kBf16, spec::Precision::kFp64});
    if (recipe.optim.kind == spec::OptimizerKind::kAdamw)
      recipe.optim.kind = one_of({spec::OptimizerKind::kAdamw, spec::OptimizerKind::kSgd, spec::OptimizerKind::kLamb});
    recipe.train.recompute = one_of({spec::RecomputeKind::kNone, spec::RecomputeKind::kNone, spec::RecomputeKind::kFull,
                                     spec::RecomputeKind::kSelective});
    recipe.train.recompute_norms = chance(0.2);
    recipe.train.micro_batch_size = one_of({1, 2});
    recipe.train.steps = 4;
  }

  const Random random_;
  std::uint64_t at_ = 0;
};

std::string text_of(const spec::Recipe& recipe) {
  const plan::LayoutCase layout{{.layout = recipe.layout, .pipeline = recipe.pipeline}, {}};
  return fmt::format("{}, family {}, {} heads of keys, compute {}, recompute {}, micro-batches of {}", layout.text(),
                     static_cast<int>(*recipe.model.family), *recipe.model.num_kv_heads,
                     static_cast<int>(recipe.precision.compute), static_cast<int>(recipe.train.recompute),
                     *recipe.train.micro_batch_size);
}

/// Where a rank's bytes are more than one part in twenty from the prediction, with both. `again`: of a layer that is
/// recomputed, which the plan has among what works for a while.
std::vector<std::string> differing(const plan::RankMemory& planned, double again, const device::MemoryPool& held) {
  struct Line {
    const char* name;
    double planned;
    MemoryUse held;
  };
  const Line lines[] = {
      {"weights", planned[Planned::kWeights], MemoryUse::kParameters},
      {"weight versions", planned[Planned::kWeightVersions], MemoryUse::kVersions},
      {"gradients", planned[Planned::kGradients], MemoryUse::kGradients},
      {"optimizer", planned[Planned::kMasterWeights] + planned[Planned::kOptimizerState], MemoryUse::kOptimizer},
      {"activations", planned[Planned::kActivations] + planned[Planned::kHead] + again, MemoryUse::kActivations},
  };
  std::vector<std::string> found;
  for (const auto& [name, bytes, use] : lines) {
    const auto measured = static_cast<double>(held.peak_of(use));
    if (std::abs(measured - bytes) > 0.05 * std::max(measured, bytes))
      found.push_back(fmt::format("{}: {} measured, {} planned", name, measured, bytes));
  }
  return found;
}

/// What rank by rank is not as predicted.
std::vector<std::string> run_and_compare(const spec::Recipe& recipe, int ranks, const plan::Checkup& checkup) {
  std::vector<std::string> wrong;
  std::mutex mutex;
  const plan::ParallelConfig config = plan::config_of(recipe, *checkup.job, ranks);
  const plan::ActivationBytes activations = plan::activation_bytes(*checkup.job, config);
  const double again = activations.recomputed_layers * activations.whole_layer;
  with_trainers(recipe, ranks, [&](Trainer& trainer, comm::Rank& rank) {
    const Explanation explanation = explain(trainer);
    trainer.step();  // of a pipeline that is never emptied, all that it runs until the run ends
    const int stage = trainer.mesh().coordinate(rank.rank(), "pp");
    std::vector<std::string> found =
        differing(checkup.stages[static_cast<std::size_t>(stage)], again, trainer.memory().device);
    for (const Explanation::Line& line : explanation.traffic) {
      if (std::abs(line.measured - line.formula) > 1)
        found.push_back(fmt::format("{}: {} bytes sent, {} predicted", line.name, line.measured, line.formula));
    }
    const std::lock_guard lock(mutex);
    for (const std::string& one : found) wrong.push_back(fmt::format("rank {}, stage {}: {}", rank.rank(), stage, one));
  });
  return wrong;
}

/// Second copies of weights (Chimera, DualPipe), versions (PipeDream, 2BW) and predictions: counted from the schedule,
/// held by the run.
TEST(Predictions, OfEverySchedulesWeightsAreWhatIsMeasured) {
  for (const schedule::Kind& kind : schedule::kinds()) {
    for (const int stages : {2, 4}) {
      spec::Recipe recipe = small_recipe(spec::Family::kLlama, spec::Precision::kBf16);
      recipe.model.num_layers = 8;
      recipe.model.tied = false;
      recipe.batch.global_batch_tokens = 8 * recipe.data.seq_len;
      recipe.layout.pp = stages;
      recipe.pipeline.schedule = kind.name;
      recipe.pipeline.virtual_stages = kind.default_chunks;
      recipe.checkpoint.every = recipe.train.hash_every = 0;
      recipe.train.micro_batch_size = kind.name == "chimera-halving" ? 2 : 1;
      recipe.train.steps = 4;
      if (kind.name == "spectrain") {
        recipe.optim.kind = spec::OptimizerKind::kSgd;
        recipe.optim.momentum = 0.9;
        recipe.train.micro_batch_size.reset();
        recipe.train.steps = 4 * stages;  // until it is full
      }
      if (kind.name == "hetpipe") {
        recipe.optim.kind = spec::OptimizerKind::kSgd;
        recipe.optim.momentum = recipe.optim.weight_decay = recipe.optim.grad_clip_norm = 0;
      }
      const plan::Checkup checkup = plan::check_recipe(
          recipe, {.ranks = stages, .hardware = cost::load_hardware("local"), .judge_memory = false});
      ASSERT_THAT(checkup.problems, testing::IsEmpty()) << kind.name;
      EXPECT_THAT(run_and_compare(recipe, stages, checkup), testing::IsEmpty()) << kind.name << " on " << stages;
    }
  }
}

/// Where a rank does not run all that it holds for every micro-batch, or fetches some of it more than once.
TEST(Predictions, OfPartialPassesAreWhatIsMeasured) {
  struct Partial {
    const char* layout;
    int ranks;
    bool tied = false;
    spec::RecomputeKind recompute = spec::RecomputeKind::kNone;
    int drain_every = 1;
    bool partition = false;  // saved inputs
  };
  using enum spec::RecomputeKind;
  const Partial cases[] = {
      {"tp=2", 2, /*tied=*/false, kFull, /*drain_every=*/1, /*partition=*/true},
      {"pp=2 zero=1 schedule=zb-h2", 4, /*tied=*/false, kNone, /*drain_every=*/2},
      {"pp=2 zero=2 schedule=zb-h2", 4, /*tied=*/true, kNone, /*drain_every=*/2},
      {"pp=2 zero=3 schedule=1f1b", 4, /*tied=*/false, kNone, /*drain_every=*/2},
      {"pp=2 tp=2 schedule=chimera", 4},
      {"pp=2 zero=3 schedule=chimera", 4, /*tied=*/true},
      {"pp=2 zero=2 schedule=chimera-doubling", 4},
      {"pp=2 zero=3 schedule=chimera-halving", 4},
      {"pp=2 cp=2 zero=3 schedule=dualpipe", 4},
      {"pp=2 zero=2 schedule=dualpipe", 4, /*tied=*/true},
      {"pp=2 zero=3 schedule=zb-v", 4, /*tied=*/true},
      {"zero=3", 2, /*tied=*/true},
      {"pp=2 tp=2 sp schedule=1f1b", 4, /*tied=*/false, kStage},
      {"pp=2 zero=3 schedule=gpipe", 4, /*tied=*/false, kStage},
      {"pp=4 schedule=1f1b", 4, /*tied=*/false, kStage},
      {"pp=2 schedule=interleaved virtual_stages=2", 2, /*tied=*/false, kStage},
      {"pp=4 schedule=pipedream-2bw", 4, /*tied=*/false, kStage},
      {"pp=2 schedule=zb-v", 2, /*tied=*/false, kStage},
      {"pp=2 schedule=chimera", 2, /*tied=*/false, kStage},
      {"pp=2 schedule=1f1b", 2, /*tied=*/false, kRecursive},
      {"pp=2 zero=3 schedule=zb-h1", 4, /*tied=*/false, kRecursive},
      {"pp=2 schedule=dualpipe", 2, /*tied=*/false, kRecursive},
      {"pp=2 zero=1 schedule=xpipe", 4},
      {"pp=2 zero=2 schedule=xpipe", 4},
      {"pp=2 zero=3 schedule=xpipe", 4},
      {"pp=2 zero=3 schedule=pipedream", 4},
      {"pp=2 zero=3 zero_group=2 schedule=pipedream-2bw", 8},
      {"pp=2 cp=2 zero=3 schedule=stale", 4},
  };
  for (const auto& [text, ranks, tied, recompute, drain_every, partition] : cases) {
    spec::Recipe recipe = small_recipe(spec::Family::kLlama, spec::Precision::kBf16);
    recipe.model.num_layers = 4;
    recipe.model.num_kv_heads = 2;
    recipe.model.tied = tied;
    recipe.batch.global_batch_tokens = 16 * recipe.data.seq_len;
    recipe.train.micro_batch_size = 2;
    recipe.train.steps = 2;
    recipe.train.recompute = recompute;
    recipe.checkpoint.every = recipe.train.hash_every = 0;
    const plan::LayoutCase parsed = plan::parse_layout(text);
    recipe.layout = parsed.layout;
    recipe.pipeline = parsed.pipeline;
    if (drain_every > 1) recipe.pipeline.drain_every = drain_every;
    recipe.train.partition_activations = partition;
    const plan::Checkup checkup =
        plan::check_recipe(recipe, {.ranks = ranks, .hardware = cost::load_hardware("local"), .judge_memory = false});
    ASSERT_THAT(checkup.problems, testing::IsEmpty()) << text;
    EXPECT_THAT(run_and_compare(recipe, ranks, checkup), testing::IsEmpty()) << text;
  }
}

/// Averages of weights, weights without masters under every optimizer, ranks that ask who used what, halves of what is
/// saved.
TEST(Predictions, OfStatesAndUnusedParametersAreWhatIsMeasured) {
  using spec::OptimizerKind;
  struct Case {
    const char* layout;
    int ranks;
    std::function<void(spec::Recipe&)> change;
  };
  const auto unused = [](spec::Recipe& r) { r.layout.find_unused = true; };
  const auto narrow = [](OptimizerKind kind) {
    return [kind](spec::Recipe& r) {
      r.optim.kind = kind;
      r.precision.master_weights = spec::MasterWeights::kVectors;
    };
  };
  const Case cases[] = {
      {"", 2, unused},
      {"zero=1", 2, unused},
      {"zero=2", 2, unused},
      {"zero=3", 2, [&](auto& r) { unused(r), r.model.tied = true, r.layout.bucket_mb = 0.002; }},
      {"zero=2 zero_group=2", 4, unused},
      {"pp=2 zero=2", 4, unused},
      {"pp=2 zero=3 schedule=zb-h1", 4, unused},
      {"zero=1", 2, [](auto& r) { r.optim.ema_decay = 0.9; }},
      {"pp=2", 2, [](auto& r) { r.optim.ema_decay = 0.9; }},
      {"zero=1", 2, narrow(OptimizerKind::kSgd)},
      {"", 2, narrow(OptimizerKind::kAdagrad)},
      {"zero=2", 2, narrow(OptimizerKind::kLamb)},
      {"zero=3", 2, narrow(OptimizerKind::kLars)},
      {"zero=1", 2, narrow(OptimizerKind::kLion)},
      {"zero=1", 2, narrow(OptimizerKind::kScheduleFree)},
      {"pp=2 tp=2 schedule=chimera-doubling", 4,
       [](auto& r) { r.train.recompute = spec::RecomputeKind::kFull, r.train.partition_activations = true; }},
  };
  for (const auto& [text, ranks, change] : cases) {
    spec::Recipe recipe = small_recipe(spec::Family::kLlama, spec::Precision::kBf16);
    recipe.model.num_layers = 4;
    recipe.model.num_kv_heads = 2;
    recipe.model.tied = false;
    recipe.batch.global_batch_tokens = 16 * recipe.data.seq_len;
    recipe.train.micro_batch_size = 2;
    recipe.train.steps = 2;
    recipe.checkpoint.every = recipe.train.hash_every = 0;
    const plan::LayoutCase parsed = plan::parse_layout(text);
    recipe.layout = parsed.layout;
    recipe.pipeline = parsed.pipeline;
    change(recipe);
    const plan::Checkup checkup =
        plan::check_recipe(recipe, {.ranks = ranks, .hardware = cost::load_hardware("local"), .judge_memory = false});
    ASSERT_THAT(checkup.problems, testing::IsEmpty()) << text;
    EXPECT_THAT(run_and_compare(recipe, ranks, checkup), testing::IsEmpty())
        << text << " optimizer " << static_cast<int>(recipe.optim.kind);
  }
}

/// Experts, wherever tokens go: with routers of zeros all of them choose the first ones, which one rank has. What a
/// rank keeps stays within the plan, since rows beyond the arena are computed again.
TEST(Predictions, OfExpertsBoundWhatIsMeasuredWhereverTokensGo) {
  for (const int ranks : {2, 4}) {
    for (const bool collapsed : {false, true}) {
      spec::Recipe recipe = small_recipe(spec::Family::kMistral, spec::Precision::kBf16);
      recipe.model.num_layers = 4;
      recipe.model.experts = {.num_experts = 8, .top_k = 2, .ffn_size = 32, .num_shared_experts = 1};
      recipe.layout.dp = recipe.layout.ep = ranks;
      recipe.batch.global_batch_tokens = 16 * recipe.data.seq_len;
      recipe.train.micro_batch_size = 2;
      const plan::Checkup checkup =
          plan::check_recipe(recipe, {.ranks = ranks, .hardware = cost::load_hardware("local"), .judge_memory = false});
      ASSERT_THAT(checkup.problems, testing::IsEmpty());
      const plan::RankMemory& planned = checkup.stages[0];
      with_trainers(recipe, ranks, [&](Trainer& trainer, comm::Rank& rank) {
        for (nn::Param& param : *trainer.engine().layer_params()) {
          if (!collapsed || !param.name.ends_with("router.weight")) continue;
          param.master.zero_();
          param.value.zero_();
        }
        const StepReport report = trainer.step();
        if (collapsed) {
          EXPECT_EQ(report.loads.at(0).counts[0] + report.loads.at(0).counts[1], 16 * 12 * 2) << "all to one rank";
        }
        const device::MemoryPool& held = trainer.memory().device;
        const auto near = [&](MemoryUse use, double bytes) {
          EXPECT_NEAR(static_cast<double>(held.peak_of(use)), bytes, 0.05 * bytes) << "rank " << rank.rank();
        };
        near(MemoryUse::kParameters, planned[Planned::kWeights]);
        near(MemoryUse::kGradients, planned[Planned::kGradients]);
        near(MemoryUse::kOptimizer, planned[Planned::kMasterWeights] + planned[Planned::kOptimizerState]);
        EXPECT_LE(static_cast<double>(held.peak_of(MemoryUse::kActivations)),
                  1.01 * (planned[Planned::kActivations] + planned[Planned::kHead]))
            << "rank " << rank.rank() << " of " << ranks << (collapsed ? ", all tokens to one" : "");
      });
    }
  }
}

TEST(Predictions, OfRandomRecipesAreWhatIsMeasured) {
  RecipeDraw draws(11);
  int ran = 0, staged = 0;
  while (ran < 24) {
    const auto [recipe, ranks] = draws.draw();
    const plan::Checkup checkup =
        plan::check_recipe(recipe, {.ranks = ranks, .hardware = cost::load_hardware("local"), .judge_memory = false});
    if (!checkup.problems.empty()) continue;
    ASSERT_EQ(checkup.stages.size(), static_cast<std::size_t>(recipe.layout.pp));
    EXPECT_THAT(run_and_compare(recipe, ranks, checkup), testing::IsEmpty()) << text_of(recipe);
    ++ran;
    staged += recipe.layout.pp > 1 ? 1 : 0;
  }
  EXPECT_GT(staged, 8);
}

}  // namespace
}  // namespace trireme::train
