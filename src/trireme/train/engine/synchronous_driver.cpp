// Compute, look at the loss, update: after every step the state is whole.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "trireme/base/log.h"
#include "trireme/base/stopwatch.h"
#include "trireme/parallel/mesh_groups.h"
#include "trireme/train/engine/feed.h"
#include "trireme/train/engine/step_driver.h"
#include "trireme/train/engine/train_state.h"
#include "trireme/train/engine/work_stealing.h"

namespace trireme::train {
namespace {

using Clock = std::chrono::steady_clock;

/// Ranks with parts of the same rows lie along tp and cp. The first of them chooses, and tells along one axis after the
/// other. On all ranks together.
WorkStealing::SharedRows shared_rows(parallel::MeshGroups& groups) {
  std::vector<comm::Group*> along;
  for (const char* axis : {nn::kContextAxis, nn::kTensorAxis}) {
    if (comm::Group* group = groups.along({axis})) along.push_back(group);
  }
  WorkStealing::SharedRows rows{
      .leads = std::ranges::all_of(along, [](const comm::Group* group) { return group->rank() == 0; })};
  if (along.empty()) return rows;
  rows.tell = [along](std::span<std::int64_t> numbers) {
    for (comm::Group* group : along)
      group->broadcast(comm::Buffer{numbers.data(), numbers.size(), comm::DType::kI64}, 0).wait();
  };
  return rows;
}

/// fp16 where copies step by gradients of their own: all skip what one of them cannot take, so that they have taken
/// equally many steps and have one loss scale. Null elsewhere. On all ranks together.
comm::Group* copies_that_skip_together(const TrainState& state, SingleStepEngine& engine) {
  const layout::AxisNames axes = engine.data_parallel().reducer().drift_axes();
  if (!state.loss_scale || axes.empty()) return nullptr;
  return engine.account().groups->along(axes, parallel::MeshGroups::kFiniteLane);
}

class SynchronousDriver final : public StepDriver {
 public:
  SynchronousDriver(TrainState& state, SingleStepEngine& engine)
      : state_(state), engine_(engine), copies_(copies_that_skip_together(state, engine)) {
    if (state.recipe.train.work_stealing && engine.share().ranks > 1)
      stealing_ =
          std::make_unique<WorkStealing>(engine.readers(), state.samples, shared_rows(*engine.account().groups));
  }

  StepReport next() override;
  bool looks_before_update() const override { return true; }

 private:
  optim::UpdateResult update(Fetched& fetched, const StepScales& scales, const StepReport& report);
  bool all_finite(bool finite);
  void measure_noise(const Fetched& fetched, const nn::LossCounts& counts, const optim::UpdateResult& result,
                     double loss_scale, StepReport& report);
  void follow_noise();
  StepSums compute_stealing(const Fetched& fetched, const MakeContext& contexts);

  TrainState& state_;
  SingleStepEngine& engine_;
  comm::Group* copies_;                     // of copies that step by themselves in fp16; null elsewhere
  std::unique_ptr<WorkStealing> stealing_;  // train.work_stealing only
};

bool SynchronousDriver::all_finite(bool finite) {
  std::uint8_t overflows = finite ? 0 : 1;
  copies_->all_reduce(comm::Buffer{&overflows, 1, comm::DType::kU8}, comm::Reduce::kMax).wait();
  return overflows == 0;
}

StepSums SynchronousDriver::compute_stealing(const Fetched& fetched, const MakeContext& contexts) {
  stealing_->begin(state_.recipe, fetched, engine_.share());
  std::optional<Clock::time_point> begun;
  const StepSums sums = engine_.compute_from(
      [&] {
        if (begun && state_.micro) state_.micro(state_.position.step + 1, seconds_since(*begun));
        std::optional<data::Batch> batch = stealing_->next();
        begun = Clock::now();
        return batch;
      },
      contexts);
  stealing_->end();
  return sums;
}

/// Seconds of compression that lie in backward and in updates so far.
double compressing_beside(Engine& engine) {
  const parallel::CompressionReport* report = engine.data_parallel().reducer().report();
  return report != nullptr ? report->beside_seconds + report->update_seconds : 0;
}

void tell_balance(StepReport& report, TrainState::Balanced balanced) {
  report.loads = std::move(balanced.loads);
  report.experts_moved = balanced.moved;
}

StepReport SynchronousDriver::next() {
  StepReport report;
  Fetched fetched = state_.fetch();
  report.data_s = fetched.waited_s;
  const double compressing = compressing_beside(engine_);

  auto begin = Clock::now();
  const nn::LossCounts counts = state_.count_losses(fetched);
  report.comm_s += seconds_since(begin);
  const StepScales scales = scales_of(counts, state_.loss_scale ? state_.loss_scale->scale() : 1.0);

  begin = Clock::now();
  if (state_.loss_scale) engine_.data_parallel().set_loss_scale(state_.loss_scale->scale());
  nn::zero_grad(engine_.params());
  const auto contexts = [&] { return state_.context_for(scales, state_.position.step); };
  const StepSums sums = stealing_ ? compute_stealing(fetched, contexts) : engine_.compute(fetched.batches, contexts);
  if (stealing_) report.stolen = stealing_->stolen();
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
    tell_balance(report, state_.advance_balance(false));
    state_.position = report.position = fetched.plan.after;
    return report;
  }
  if (state_.look) state_.look(engine_.params());
  begin = Clock::now();
  const double loss_scale = state_.loss_scale ? state_.loss_scale->scale() : 1.0;  // of these gradients
  const optim::UpdateResult result = update(fetched, scales, report);
  measure_noise(fetched, counts, result, loss_scale, report);
  state_.advance_scales();
  tell_balance(report, state_.advance_balance(result.taken));
  state_.count_memory();
  const double compressed = compressing_beside(engine_) - compressing;
  report.compute_s += seconds_since(begin) - compressed;
  report.comm_s += compressed;
  report.taken = result.taken;
  report.gradient_norm = result.gradient_norm;
  state_.position = fetched.plan.after;
  follow_noise();
  report.position = state_.position;
  return report;
}

void SynchronousDriver::measure_noise(const Fetched& fetched, const nn::LossCounts& counts,
                                      const optim::UpdateResult& result, double loss_scale, StepReport& report) {
  if (!state_.noise_scale) return;
  const double first = fetched.batches.empty() ? 0 : count_targets(fetched.batches.front());
  state_.noise_scale->add(first, counts.targets, result.squares, loss_scale);
  report.noise_scale = state_.noise_scale->scale();
  report.noise_scales = state_.noise_scale->layers();
}

/// batch.kind = "noise": the next steps' batch, where it is time for another. What was read ahead is read again.
void SynchronousDriver::follow_noise() {
  const spec::BatchConfig& batch = state_.recipe.batch;
  if (batch.kind != spec::BatchKind::kNoise || state_.position.step % batch.noise_every != 0) return;
  const std::optional<double> scale = state_.noise_scale->scale();
  if (!scale) return;
  const std::int64_t now = state_.position.batch > 0 ? state_.position.batch : batch.global_batch_tokens;
  // It grows by one power of two at a time, and never falls: a noisy estimate must not undo it.
  const std::int64_t wanted = std::min(spec::batch_for_noise(batch, *scale), 2 * now);
  if (wanted <= now) return;
  state_.position.batch = wanted;
  state_.feeder.reset();
  if (state_.world.rank() == 0)
    log_info("step {}: the noise scale is {:.3g} tokens, so the batch grows from {} to {}", state_.position.step,
             *scale, now, wanted);
}

optim::UpdateResult SynchronousDriver::update(Fetched& fetched, const StepScales& scales, const StepReport& report) {
  optim::UpdateOptions options{
      .learning_rate = report.learning_rate, .loss_scale = state_.loss_scale.get(), .across = engine_.across()};
  if (copies_ != nullptr) options.all_finite = [this](bool finite) { return all_finite(finite); };
  try {
    return state_.updates->take(options, state_.position.step);
  } catch (const optim::NonFiniteGradients& error) {
    state_.raise_non_finite(fetched, scales, fmt::format("the loss is {}, but {}", report.loss, error.message()));
  }
}

}  // namespace

std::unique_ptr<StepDriver> make_synchronous_driver(TrainState& state, SingleStepEngine& engine) {
  return std::make_unique<SynchronousDriver>(state, engine);
}

}  // namespace trireme::train
