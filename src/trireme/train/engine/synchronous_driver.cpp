// Compute, look at the loss, update: after every step the state is whole.
#include <fmt/format.h>

#include <chrono>
#include <cmath>

#include "trireme/base/stopwatch.h"
#include "trireme/train/engine/step_driver.h"
#include "trireme/train/engine/train_state.h"

namespace trireme::train {
namespace {

using Clock = std::chrono::steady_clock;

class SynchronousDriver final : public StepDriver {
 public:
  SynchronousDriver(TrainState& state, SingleStepEngine& engine) : state_(state), engine_(engine) {}

  StepReport next() override;
  bool looks_before_update() const override { return true; }

 private:
  optim::UpdateResult update(Fetched& fetched, const StepScales& scales, const StepReport& report);

  TrainState& state_;
  SingleStepEngine& engine_;
};

StepReport SynchronousDriver::next() {
  StepReport report;
  Fetched fetched = state_.fetch();
  report.data_s = fetched.waited_s;

  auto begin = Clock::now();
  const nn::LossCounts counts = state_.count_losses(fetched);
  report.comm_s += seconds_since(begin);
  const StepScales scales = scales_of(counts, state_.loss_scale ? state_.loss_scale->scale() : 1.0);

  begin = Clock::now();
  nn::zero_grad(engine_.params());
  const StepSums sums =
      engine_.compute(fetched.batches, [&] { return state_.context_for(scales, state_.position.step); });
  report.comm_s += sums.comm_s;
  report.compute_s += seconds_since(begin) - sums.comm_s;
  tell_losses(report, sums.losses, counts);
  report.flops = sums.flops;
  if (!std::isfinite(report.loss)) state_.raise_non_finite(fetched, scales, describe_loss(report));

  report.learning_rate = fetched.plan.hyperparameters.learning_rate;
  report.batch = fetched.plan.hyperparameters.batch;
  report.refused = state_.judge && !state_.judge(report.loss);
  if (report.refused) {
    report.taken = false;
    report.loads = state_.advance_balance(false);
    state_.position = report.position = fetched.plan.after;
    return report;
  }
  if (state_.look) state_.look(engine_.params());
  begin = Clock::now();
  const optim::UpdateResult result = update(fetched, scales, report);
  state_.advance_scales();
  report.loads = state_.advance_balance(result.taken);
  state_.count_memory();
  report.compute_s += seconds_since(begin);
  report.taken = result.taken;
  report.gradient_norm = result.gradient_norm;
  state_.position = report.position = fetched.plan.after;
  return report;
}

optim::UpdateResult SynchronousDriver::update(Fetched& fetched, const StepScales& scales, const StepReport& report) {
  try {
    return state_.updates->take(
        {.learning_rate = report.learning_rate, .loss_scale = state_.loss_scale.get(), .across = engine_.across()},
        state_.position.step);
  } catch (const optim::NonFiniteGradients& error) {
    state_.raise_non_finite(fetched, scales, fmt::format("the loss is {}, but {}", report.loss, error.message()));
  }
}

}  // namespace

std::unique_ptr<StepDriver> make_synchronous_driver(TrainState& state, SingleStepEngine& engine) {
  return std::make_unique<SynchronousDriver>(state, engine);
}

}  // namespace trireme::train
