// The next step is started before this one's numbers are known: a GPU never waits for the host. DelayedUpdate leaves
// the weights as they were where a step's numbers are NaN or Inf, whatever was started since.
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <deque>
#include <utility>

#include "trireme/base/stopwatch.h"
#include "trireme/train/engine/delayed_update.h"
#include "trireme/train/engine/step_driver.h"
#include "trireme/train/engine/train_state.h"

namespace trireme::train {
namespace {

using Clock = std::chrono::steady_clock;

class RunAheadDriver final : public StepDriver {
 public:
  RunAheadDriver(TrainState& state, SingleStepEngine& engine)
      : state_(state), engine_(engine), update_(*state.optimizer) {}

  StepReport next() override;
  bool at_rest() const override { return in_flight_.empty(); }
  void rest_soon() override { rest_soon_ = true; }
  bool looks_before_update() const override { return false; }
  /// Steps, from when they are started until their numbers are known.
  std::vector<observe::NamedQueue> queues() const override { return {{.name = "steps", .reading = meter_.read()}}; }
  void restart() override { TRIREME_CHECK(in_flight_.empty(), "a state was read while a step is under way"); }

 private:
  /// Of a step that was started, and whose outcome is not known yet.
  struct StepInFlight {
    Fetched fetched;
    StepReport report;
    nn::LossCounts counts;
    StepScales scales;
    QueueMeter::Nanoseconds since = 0;
  };
  void start();
  /// Whether somebody looks at the state after this step.
  bool rests_after(std::int64_t step);
  [[noreturn]] void give_up(StepInFlight& anomalous);

  TrainState& state_;
  SingleStepEngine& engine_;
  DelayedUpdate update_;
  QueueMeter meter_;
  std::deque<StepInFlight> in_flight_;
  bool rest_soon_ = false;
};

void RunAheadDriver::start() {
  StepInFlight started{.fetched = state_.fetch()};
  started.since = QueueMeter::now();
  meter_.arrive(started.since);
  const StepPlan& plan = started.fetched.plan;
  started.report.position = plan.after;
  started.report.data_s = started.fetched.waited_s;
  started.report.learning_rate = plan.hyperparameters.learning_rate;
  started.report.batch = plan.hyperparameters.batch;
  started.counts = state_.count_losses(started.fetched);
  started.scales = scales_of(started.counts);
  const auto begin = Clock::now();
  nn::zero_grad(engine_.params());
  const StepSums sums = engine_.compute(
      started.fetched.batches, [&, scales = started.scales] { return state_.context_for(scales, plan.before.step); });
  update_.start(sums.losses, started.report.learning_rate);
  state_.advance_scales();
  engine_.updated();
  started.report.flops = sums.flops;
  started.report.compute_s = seconds_since(begin);
  in_flight_.push_back(std::move(started));
}

bool RunAheadDriver::rests_after(std::int64_t step) {
  const spec::Recipe& recipe = state_.recipe;
  const auto due = [&](std::int64_t every) { return every > 0 && step % every == 0; };
  return std::exchange(rest_soon_, false) || step >= last_step(recipe) || due(recipe.eval.every) ||
         due(recipe.checkpoint.every) || due(recipe.train.hash_every);
}

StepReport RunAheadDriver::next() {
  if (in_flight_.empty()) start();
  const bool rests = rests_after(in_flight_.front().report.position.step);
  if (!rests && in_flight_.size() == 1) start();
  const auto begin = Clock::now();
  const DelayedUpdate::Outcome outcome = update_.wait();
  StepInFlight done = std::move(in_flight_.front());
  in_flight_.pop_front();
  meter_.depart(done.since);
  tell_losses(done.report, outcome.losses, done.counts);
  done.report.gradient_norm = outcome.gradient_norm;
  if (!outcome.taken) give_up(done);
  state_.count_memory();
  done.report.compute_s += seconds_since(begin);
  state_.position = done.report.position;
  return done.report;
}

/// The weights are those before this step: nothing was updated since.
void RunAheadDriver::give_up(StepInFlight& anomalous) {
  while (update_.waiting() > 0) update_.wait();
  for (const StepInFlight& lost : in_flight_) meter_.depart(lost.since);
  in_flight_.clear();
  update_.go_on();
  state_.feeder.reset();
  nn::zero_grad(engine_.params());
  const StepReport& report = anomalous.report;
  state_.raise_non_finite(
      anomalous.fetched, anomalous.scales,
      !std::isfinite(report.loss)
          ? describe_loss(report)
          : fmt::format("the loss is {}, but the norm of its gradient is {}", report.loss, report.gradient_norm));
}

}  // namespace

std::unique_ptr<StepDriver> make_run_ahead_driver(TrainState& state) {
  auto* single = std::get_if<std::unique_ptr<SingleStepEngine>>(&state.any_engine);
  const spec::LayoutConfig& layout = state.recipe.layout;
  // Loads of experts decide on the next step's biases, and the host reads them.
  const bool plain = single != nullptr && state.world.size() == 1 && !state.loss_scale && !state.judge && !state.look &&
                     !state.average && !state.noise_scale && state.engine.balance() == nullptr &&
                     !layout.delayed_update && layout.offload == spec::OffloadKind::kNone;
  if (!plain || !state.optimizer->is_capturable() || !(*single)->defer_losses(true)) return nullptr;
  return std::make_unique<RunAheadDriver>(state, **single);
}

}  // namespace trireme::train
