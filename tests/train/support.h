// tests/train/support.h -- small recipes of every family on tasks without files.
#pragma once

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "trireme/comm/rank.h"
#include "trireme/data/open_samples.h"
#include "trireme/spec/parallel_config.h"
#include "trireme/train/diagnose/verify.h"
#include "trireme/train/engine/trainer.h"

namespace trireme::train {

/// One thread an operator: these models are so small that others would only wait for each other.
class OneThread : public testing::Environment {
  void SetUp() override { at::set_num_threads(1); }
};
inline const testing::Environment* const kOneThread = testing::AddGlobalTestEnvironment(new OneThread);

inline spec::Recipe small_recipe(spec::Family family, spec::Precision precision = spec::Precision::kFp32) {
  spec::Recipe recipe;
  recipe.run.seed = 3;
  recipe.model.family = family;
  recipe.model.vocab_size = 24;
  recipe.model.max_seq_len = 24;
  recipe.model.hidden_size = 16;
  recipe.model.num_layers = 2;
  recipe.model.num_heads = 2;
  recipe.model.num_kv_heads = family == spec::Family::kLlama ? 1 : 2;
  recipe.model.head_dim = 8;
  recipe.model.ffn_size = 24;
  recipe.data.seq_len = 12;
  recipe.data.synthetic.vocab_size = 16;
  recipe.data.synthetic.kind = spec::SyntheticKind::kCopy;
  if (spec::has_encoder(family)) {
    recipe.model.num_encoder_layers = family == spec::Family::kT5 ? 2 : 1;
    recipe.data.synthetic.kind = spec::SyntheticKind::kReverse;
  }
  if (family == spec::Family::kDeepseekV3) {
    recipe.model.mla = {.q_lora_rank = 12, .kv_lora_rank = 8, .qk_rope_head_dim = 4, .v_head_dim = 6};
  }
  recipe.batch.global_batch_tokens = 5 * 12;
  recipe.optim.learning_rate = 1e-3;
  recipe.optim.grad_clip_norm = 1;
  recipe.train.steps = 1000;
  recipe.precision.compute = precision;
  return recipe;
}

/// Runs `body` with a trainer on so many thread ranks.
inline void with_trainers(const spec::Recipe& recipe, int ranks,
                          const std::function<void(Trainer&, comm::Rank&)>& body) {
  comm::run_ranks(ranks, [&](comm::Rank& rank) {
    at::set_num_threads(1);
    const auto samples = data::open_samples(recipe, data::Split::kTrain);
    Trainer trainer(recipe, model_shape(recipe), rank.world(), *samples);
    body(trainer, rank);
  });
}

/// What a single rank has held by the end of its first step.
inline device::RankMemory memory_after_a_step(const spec::Recipe& recipe) {
  device::RankMemory memory;
  with_trainers(recipe, 1, [&](Trainer& trainer, comm::Rank&) {
    trainer.step();
    memory = trainer.memory();
  });
  return memory;
}

/// The recipe's layout and pipeline on so many thread ranks beside neither of them on one.
inline VerifyResult verify_beside_one_rank(const spec::Recipe& recipe, int ranks, std::int64_t steps) {
  VerifyRequest request{.recipes = {recipe}, .reference = recipe, .steps = steps};
  spec::undistribute(request.reference);
  VerifyResult result;
  comm::run_ranks(ranks, [&](comm::Rank& rank) {
    verify(request, rank, [&](std::size_t, const VerifyResult& mine) {
      if (rank.rank() == 0) result = mine;
    });
  });
  return result;
}

}  // namespace trireme::train
