// A program of somebody else's, against what was installed: two ranks train a small GPT-2, and its loss falls.
#include <trireme/comm/rank.h>
#include <trireme/data/open_samples.h>
#include <trireme/train/engine/trainer.h>

#include <cstdio>

int main() {
  using namespace trireme;
  spec::Recipe recipe;
  recipe.model.family = spec::Family::kGpt2;
  recipe.model.vocab_size = 16;
  recipe.model.max_seq_len = 32;
  recipe.model.hidden_size = 32;
  recipe.model.num_layers = 1;
  recipe.model.num_heads = recipe.model.num_kv_heads = 2;
  recipe.model.head_dim = 16;
  recipe.model.ffn_size = 64;
  recipe.data.seq_len = 32;
  recipe.data.synthetic.kind = spec::SyntheticKind::kMarkov;
  recipe.data.synthetic.vocab_size = 16;
  recipe.batch.global_batch_tokens = 8 * 32;
  recipe.optim.learning_rate = 1e-2;
  recipe.train.steps = 30;
  double first = 0, last = 0;
  comm::run_ranks(2, [&](comm::Rank& rank) {
    const auto samples = data::open_samples(recipe, data::Split::kTrain);
    train::Trainer trainer(recipe, train::model_shape(recipe), rank.world(), *samples);
    while (trainer.position().step < *recipe.train.steps) {
      const train::StepReport step = trainer.step();
      if (rank.rank() == 0) (step.position.step <= 1 ? first : last) = step.loss;
    }
  });
  std::printf("loss %.3f, then %.3f\n", first, last);
  return last > 0 && last < 0.9 * first ? 0 : 1;
}
