// An engine that keeps its pipeline full runs the steps up to its next drain, updates included; they are told one by
// one.
#include <fmt/format.h>

#include <algorithm>
#include <deque>

#include "trireme/train/engine/pipeline_table.h"
#include "trireme/train/engine/step_driver.h"
#include "trireme/train/engine/train_state.h"
#include "trireme/train/engine/weight_average.h"

namespace trireme::train {
namespace {

class MultiStepDriver final : public StepDriver {
 public:
  MultiStepDriver(TrainState& state, MultiStepEngine& engine) : state_(state), engine_(engine) {
    if (nn::moe::Balance* balance = engine.balance()) balance->keep_steps();
  }

  StepReport next() override {
    if (told_later_.empty()) run_until_drain();
    StepReport report = std::move(told_later_.front());
    told_later_.pop_front();
    state_.position = report.position;
    return report;
  }
  bool at_rest() const override { return told_later_.empty(); }
  bool looks_before_update() const override { return false; }
  void restart() override { told_later_.clear(); }

 private:
  void run_until_drain();

  TrainState& state_;
  MultiStepEngine& engine_;
  std::deque<StepReport> told_later_;
};

void MultiStepDriver::run_until_drain() {
  const spec::Position position = state_.position;
  const auto steps =
      static_cast<int>(steps_until_drain(state_.recipe, engine_.drain_every(), position, engine_.share()));
  std::vector<nn::LossCounts> counts;
  const auto prepare = [&](int) {
    Fetched fetched = state_.fetch();
    StepReport& report = told_later_.emplace_back();
    report.position = fetched.plan.after;
    report.learning_rate = fetched.plan.hyperparameters.learning_rate;
    report.batch = fetched.plan.hyperparameters.batch;
    report.data_s = fetched.waited_s;
    counts.push_back(state_.count_losses(fetched));
    const auto contexts = [this, counted = counts.back(), step = fetched.plan.before.step](double loss_scale) {
      return state_.context_for(scales_of(counted, loss_scale), step);
    };
    return StepWork{.batches = std::move(fetched.batches), .contexts = contexts, .learning_rate = report.learning_rate};
  };
  const auto micros = static_cast<int>(plan_step(state_.recipe, position, engine_.share()).microbatches.size());
  std::vector<StepMade> made;
  try {
    made = engine_.run({.steps = steps,
                        .micros = micros,
                        .work = prepare,
                        .look = state_.look,
                        .taken =
                            [this] {
                              if (state_.average) state_.average->update();
                            },
                        .optimizer = *state_.optimizer,
                        .loss_scale = state_.loss_scale.get(),
                        .fp8_history = state_.fp8_history.get()});
  } catch (Error& error) {
    error.add_context(fmt::format("in steps {} to {}, which run together", position.step + 1, position.step + steps));
    throw;
  }
  state_.count_memory();
  nn::moe::Balance* balance = state_.engine.balance();
  state_.memory.device.set(device::MemoryUse::kVersions, engine_.version_bytes().device);
  state_.memory.host.set(device::MemoryUse::kVersions, engine_.version_bytes().host);
  for (std::size_t i = 0; i < made.size(); ++i) {
    StepReport& report = told_later_[i];
    tell_losses(report, made[i].losses, counts[i]);
    if (balance != nullptr) {
      balance->choose_step(position.step + static_cast<std::int64_t>(i));
      report.loads = state_.advance_balance(made[i].taken).loads;
    }
    report.gradient_norm = made[i].gradient_norm;
    report.flops = made[i].flops;
    report.comm_s = made[i].comm_s;
    report.seconds = made[i].seconds;
    report.redone = made[i].redone;
    report.taken = made[i].taken;
    report.compute_s = std::max(0.0, made[i].seconds - made[i].comm_s - report.data_s);
  }
}

}  // namespace

std::unique_ptr<StepDriver> make_multi_step_driver(TrainState& state, MultiStepEngine& engine) {
  return std::make_unique<MultiStepDriver>(state, engine);
}

}  // namespace trireme::train
