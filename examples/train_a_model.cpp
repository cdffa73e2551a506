// A whole training program on the public headers: a small Llama learns a made-up task, two ranks share each step.
//
//   build/release/examples/train_a_model [STEPS]
//
// The recipe is a value, as if read from a file; Trainer does the steps; what is printed is up to us.
#include <fmt/format.h>

#include <cstdlib>

#include "trireme/comm/rank.h"
#include "trireme/data/open_samples.h"
#include "trireme/train/engine/trainer.h"
#include "trireme/train/run/evaluate.h"

using namespace trireme;

int main(int count, char** words) try {
  spec::Recipe recipe;
  recipe.run.seed = 1;
  recipe.model.family = spec::Family::kLlama;
  recipe.model.vocab_size = 32;
  recipe.model.hidden_size = 64;
  recipe.model.num_layers = 2;
  recipe.model.num_heads = 4;
  recipe.model.num_kv_heads = 2;
  recipe.model.head_dim = 16;
  recipe.model.ffn_size = 128;
  recipe.data.seq_len = 64;
  recipe.data.synthetic.kind = spec::SyntheticKind::kMarkov;
  recipe.data.synthetic.vocab_size = 32;
  recipe.batch.global_batch_tokens = 16 * 64;  // tokens a step, over all ranks
  recipe.optim.learning_rate = 3e-3;
  recipe.train.steps = count > 1 ? std::atoi(words[1]) : 100;

  comm::run_ranks(2, [&](comm::Rank& rank) {
    const auto samples = data::open_samples(recipe, data::Split::kTrain);
    train::Trainer trainer(recipe, train::model_shape(recipe), rank.world(), *samples);
    while (trainer.position().step < *recipe.train.steps) {
      const train::StepReport step = trainer.step();
      if (rank.rank() == 0 && step.position.step % 20 == 0) {
        fmt::print("step {:4}  loss {:.4f}  gradient norm {:.3f}\n", step.position.step, step.loss, step.gradient_norm);
      }
    }
    const auto held_out = data::open_samples(recipe, data::Split::kValidation);
    const auto found = train::evaluate(trainer.model(), *held_out, rank.world(), {.count = 64});
    if (rank.rank() == 0) {
      fmt::print("validation loss {:.4f}, the best possible is {:.4f}\n", found.loss(), *samples->best_loss());
    }
  });
  return 0;
} catch (const Error& error) {
  fmt::print(stderr, "{}", error.block());
  return 1;
}
