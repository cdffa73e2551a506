// Delayed weights on a small language model: schedules that mind them learn as the synchronous run does; the one that
// does not is worse where the pipeline is deep and the learning rate high.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/train/support.h"
#include "trireme/optim/update.h"

namespace trireme::train {
namespace {

constexpr int kSteps = 120;

/// `kind`: of a schedule, or "sgd" or "adam" for the synchronous run.
spec::Recipe language(const std::string& kind, int stages, double rate) {
  spec::Recipe recipe;
  recipe.run.seed = 1;
  recipe.model.family = spec::Family::kLlama;
  recipe.model.vocab_size = 32;
  recipe.model.max_seq_len = 32;
  recipe.model.hidden_size = 32;
  recipe.model.num_layers = stages;
  recipe.model.num_heads = 2;
  recipe.model.num_kv_heads = 2;
  recipe.model.head_dim = 16;
  recipe.model.ffn_size = 64;
  recipe.model.tied = false;
  recipe.data.seq_len = 32;
  recipe.data.synthetic.kind = spec::SyntheticKind::kMarkov;
  recipe.data.synthetic.vocab_size = 32;
  recipe.batch.global_batch_tokens = 16 * 32;
  recipe.train.steps = kSteps;
  recipe.checkpoint.every = recipe.train.hash_every = 0;
  recipe.optim.kind = kind == "xpipe" || kind == "adam" ? spec::OptimizerKind::kAdam : spec::OptimizerKind::kSgd;
  if (recipe.optim.kind == spec::OptimizerKind::kSgd) recipe.optim.momentum = 0.9;
  recipe.optim.weight_decay = 0;
  recipe.optim.grad_clip_norm = 0;
  recipe.optim.learning_rate = rate;
  recipe.lr_schedule.warmup = 20;
  if (kind == "sgd" || kind == "adam") return recipe;
  recipe.layout.pp = stages;
  recipe.pipeline.schedule = kind;
  recipe.pipeline.drain_every = kSteps;
  if (kind == "pipedream-2bw" || kind == "xpipe") recipe.train.micro_batch_size = 16 / stages;
  return recipe;
}

/// The mean loss of the last 20 steps; infinite where training diverged. On thread ranks, or where `alone` by the
/// serial mathematics, which together_test.cpp shows to be the same.
double last_loss(const std::string& kind, int stages, double rate, bool alone) {
  const spec::Recipe recipe = language(kind, stages, rate);
  double sum = 0;
  try {
    comm::run_ranks(alone ? 1 : recipe.layout.pp, [&](comm::Rank& rank) {
      at::set_num_threads(1);
      const auto samples = data::open_samples(recipe, data::Split::kTrain);
      Trainer trainer(recipe, model_shape(recipe), rank.world(), *samples,
                      alone && recipe.layout.pp > 1 ? make_delayed_engine : make_engine);
      for (int step = 0; step < kSteps; ++step) {
        const double loss = trainer.step().loss;
        if (rank.rank() == 0 && step >= kSteps - 20) sum += loss / 20;
      }
    });
  } catch (const optim::NonFiniteGradients&) {
    return INFINITY;
  } catch (const NonFiniteError&) {
    return INFINITY;
  }
  return std::isfinite(sum) ? sum : INFINITY;
}

TEST(Convergence, AsynchronousSchedulesReachTheSynchronousLoss) {
  const double sgd = last_loss("sgd", 4, 0.02, true), adam = last_loss("adam", 4, 3e-3, true);
  for (const char* kind : {"pipedream", "pipedream-vsync", "pipedream-2bw", "spectrain"}) {
    const double loss = last_loss(kind, 4, 0.02, kind != std::string("pipedream-2bw"));
    EXPECT_LT(loss, 1.03 * sgd) << kind;
  }
  EXPECT_LT(last_loss("xpipe", 4, 3e-3, false), 1.03 * adam);
}

TEST(Convergence, PlainStaleWeightsAreWorseInADeepPipelineAtAHighRate) {
  constexpr double kRate = 0.1;
  const double synchronous = last_loss("sgd", 8, kRate, true), stale = last_loss("stale", 8, kRate, true);
  EXPECT_GT(stale, 1.1 * synchronous);
}

}  // namespace
}  // namespace trireme::train
