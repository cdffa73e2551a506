// A training loop of one's own: model, optimizer and data are taken as parts, and every line of the step is visible.
//
//   build/release/examples/own_loop
//
// This is what Trainer does on one rank, less its care: two microbatches a step, a learning rate by hand, a checkpoint
// at the end that goes back into a second model.
#include <ATen/ops/equal.h>
#include <fmt/format.h>

#include <cmath>
#include <filesystem>

#include "trireme/base/error.h"
#include "trireme/checkpoint/store.h"
#include "trireme/data/open_samples.h"
#include "trireme/models/model.h"
#include "trireme/optim/update.h"
#include "trireme/train/engine/feed.h"

using namespace trireme;

int main() try {
  spec::Recipe recipe;
  recipe.model.family = spec::Family::kGpt2;
  recipe.model.vocab_size = 16;
  recipe.model.max_seq_len = 32;
  recipe.model.hidden_size = 48;
  recipe.model.num_layers = 2;
  recipe.model.num_heads = recipe.model.num_kv_heads = 3;
  recipe.model.head_dim = 16;
  recipe.model.ffn_size = 96;
  recipe.data.seq_len = 32;
  recipe.data.synthetic.kind = spec::SyntheticKind::kCopy;
  const auto samples = data::open_samples(recipe, data::Split::kTrain);

  const auto model = models::build(*spec::shape_of(recipe.model));
  nn::initialise(model->params, nn::Precision::kFp32, /*seed=*/1);
  const auto optimizer = optim::make_optimizer(recipe.optim, model->params);

  std::int64_t sample = 0;
  double first = 0, last = 0;
  for (int step = 0; step < 120; ++step) {
    constexpr int kMicros = 2, kRows = 8;
    std::vector<data::Batch> batches;
    double targets = 0;
    for (int micro = 0; micro < kMicros; ++micro) {
      std::vector<std::int64_t> rows;
      for (int row = 0; row < kRows; ++row) rows.push_back(sample++);
      batches.push_back(samples->read(rows));
      targets += train::count_targets(batches.back());
    }
    nn::zero_grad(model->params);
    double loss = 0;
    for (data::Batch& batch : batches) {
      nn::Context context;
      context.training = true;
      context.step = step;
      context.gradient_scale = 1 / targets;  // the mean over all tokens, however they are cut
      nn::Tape tape;
      model->forward(train::feed(batch, context, model->shape), context, &tape);
      model->backward(context, tape);
      loss += context.losses[0].sum / targets;
    }
    optim::update(*optimizer, {.learning_rate = 3e-3 * std::min(1.0, (step + 1) / 20.0)});
    if (step == 0) first = loss;
    last = loss;
    if (step % 20 == 0) fmt::print("step {:3}  loss {:.4f}\n", step, loss);
  }
  fmt::print("loss {:.4f}, then {:.4f}; the best possible is {:.4f}\n", first, last, *samples->best_loss());

  nn::State state;
  nn::add_params(state, model->params);
  const auto folder = std::filesystem::temp_directory_path() / "trireme_own_loop";
  const auto path = checkpoint::save(state, {.folder = folder, .step = 120});
  const auto copy = models::build(model->shape);
  nn::allocate(copy->params, nn::Precision::kFp32);
  nn::State copied;
  nn::add_params(copied, copy->params);
  checkpoint::load(formats::CheckpointFolder(path), copied);
  const bool same = at::equal(copied.tensors()[0].tensor, state.tensors()[0].tensor);
  std::filesystem::remove_all(folder);
  fmt::print("the checkpoint gives the same weights: {}\n", same ? "yes" : "no");
  return last < first && same ? 0 : 1;
} catch (const Error& error) {
  fmt::print(stderr, "{}", error.block());
  return 1;
}
