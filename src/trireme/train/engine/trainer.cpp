#include "trireme/train/engine/trainer.h"

#include <fmt/format.h>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/checkpoint/init_weights.h"
#include "trireme/checkpoint/open_model.h"
#include "trireme/train/engine/device.h"

namespace trireme::train {

spec::ModelShape model_shape(const spec::Recipe& recipe) {
  if (!recipe.model.init_from) {
    if (const auto shape = spec::shape_of(recipe.model)) return *shape;
    throw ConfigError("the recipe has no model", "set model.family, for instance --set model.family=gpt2");
  }
  const spec::ModelShape published = checkpoint::stored_shape(*recipe.model.init_from);
  if (recipe.model.family && *recipe.model.family != published.family) {
    const auto names = spec::enum_names(std::type_identity<spec::Family>());
    throw ConfigError(fmt::format("model.family is {}, but {} holds a {}", name_in(names, *recipe.model.family),
                                  *recipe.model.init_from, name_in(names, published.family)),
                      "leave model.family out: the folder says it");
  }
  spec::ModelShape shape = spec::with_keys(published, recipe.model);
  checkpoint::check_init_shape(published, shape, recipe.model);
  return shape;
}

Trainer::Trainer(const spec::Recipe& recipe, const spec::ModelShape& shape, comm::Group& world,
                 const data::Samples& samples, MakeEngine& make)
    : state_(recipe, shape, world, samples, make), driver_(make_driver(state_)) {
  if (!device().is_cuda() || world.rank() != 0) return;
  watch_ = std::make_unique<MemoryWatch>(
      device(), world.has_processes() ? state_.planned.peak() : state_.planned.together(state_.sharing));
}

void Trainer::loaded() {
  driver_->restart();
  state_.updates->loaded();
  state_.feeder.reset();
}

models::Model& Trainer::model() {
  models::Model* whole = state_.engine.whole_model();
  TRIREME_CHECK(whole != nullptr, "this rank holds only a part of the model");
  return *whole;
}

Evaluation Trainer::evaluate(const data::Samples& samples, const EvaluateOptions& options) {
  TRIREME_CHECK(at_rest(), "weights are evaluated after step {}, in the midst of steps that ran together",
                position().step);
  const bool ema = state_.recipe.eval.weights == spec::EvalWeights::kEma && state_.average;
  if (!ema && !state_.optimizer->has_evaluation_weights()) return state_.engine.evaluate(samples, options);
  EvaluationWeights other(state_.engine, *state_.updates, *state_.optimizer, ema ? state_.average.get() : nullptr);
  Evaluation evaluation = state_.engine.evaluate(samples, options);
  other.restore();
  return evaluation;
}

StepReport Trainer::step() {
  StepReport report =
      telling_what_fills_the_gpu(state_.recipe, state_.shape, state_.memory, [this] { return driver_->next(); });
  if (watch_) watch_->step_ended();
  if (state_.arena) state_.arena->end_step();
  return report;
}

std::vector<observe::NamedQueue> Trainer::other_queues() {
  std::vector<observe::NamedQueue> queues;
  if (const auto activations = state_.engine.activations()) {
    queues.push_back({.name = "activations", .reading = *activations});
  }
  if (state_.stash) {
    queues.push_back({.name = "stash", .reading = state_.stash->queue()});
    queues.push_back({.name = "stash_copies", .reading = state_.stash->copies()});
  }
  if (const auto copies = state_.engine.data_parallel().host_copies()) {
    queues.push_back({.name = "offload", .reading = *copies});
  }
  return queues;
}

bool Trainer::run_ahead() {
  if (runs_ahead_) return true;
  auto ahead = make_run_ahead_driver(state_);
  if (!ahead) return false;
  driver_ = std::move(ahead);
  runs_ahead_ = true;
  return true;
}

void Trainer::rehearse() {
  Engine& engine = state_.engine;
  Feeder feeder(state_.recipe, state_.samples, state_.position, engine.share());
  Fetched fetched = feeder.next();
  nn::zero_grad(engine.params());
  engine.rehearse(fetched.batches, [&] { return state_.context_for({}, state_.position.step); });
  nn::zero_grad(engine.params());
  if (nn::moe::Balance* balance = engine.balance()) {
    balance->choose_step(state_.position.step);
    balance->set_deciding(false);
    state_.advance_balance(/*taken=*/false);
    balance->set_deciding(true);
  }
  state_.updates->send_again();
}

void Trainer::skip_step() { state_.position = plan_step(state_.recipe, state_.position, state_.engine.share()).after; }

void Trainer::skip_data_to(std::int64_t tokens) {
  state_.position.skipped = tokens - state_.position.tokens;
  state_.feeder.reset();
}

}  // namespace trireme::train
