// Several steps of a pipeline in one execution of a table: schedules that update while micros are on their way, and
// steps that are validated after the fact.
//
// Asynchronous: each stage updates when the table says, with the norm of its own gradients alone; ranks that share the
// stage (tensor, context and data parallelism) reach that update in the same order, and sum norms among themselves.
// Others: each updates at once as if nothing had to be clipped and goes on with the next step; where the norm over all
// stages says otherwise, it goes back (pipeline/post_validation.h).
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <limits>
#include <map>
#include <optional>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/device/tensor_buffer.h"
#include "trireme/pipeline/post_validation.h"
#include "trireme/pipeline/scale_versions.h"
#include "trireme/pipeline/stage_update.h"
#include "trireme/pipeline/waves.h"
#include "trireme/schedule/versions.h"
#include "trireme/spec/rules.h"
#include "trireme/train/engine/feed.h"
#include "trireme/train/engine/pipeline_table.h"
#include "trireme/train/engine/staged_model.h"

namespace trireme::train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

void sum(comm::Group& group, std::vector<double>& numbers) {
  if (group.size() == 1) return;
  group.all_reduce(comm::Buffer{numbers.data(), numbers.size(), comm::DType::kF64}, comm::Reduce::kSum).wait();
}

class PipelineSteps final : public PipelineEngineOf<MultiStepEngine> {
 public:
  explicit PipelineSteps(std::unique_ptr<StagedModel> staged);

  std::int64_t drain_every() const override { return drain_every_; }
  std::vector<StepMade> run(const StepsRequest& request) override;
  VersionBytes version_bytes() const override { return version_bytes_; }
  Staleness staleness() const override {
    if (!execution_.waves) return {};
    const schedule::StalenessMonitor& monitor = execution_.waves->monitor();
    return {.local = monitor.local, .global = monitor.global, .pushes = execution_.waves->pushes()};
  }
  void rehearse(std::vector<data::Batch>& batches, const MakeContext& contexts) override {
    staged_->execute(batches, contexts);
  }

 private:
  /// What executes a table of so many steps of so many micros.
  struct Execution {
    int micros = 0, steps = 0;
    int ahead = 0;  // steps by which its forwards are ahead of updates
    schedule::Schedule table;
    std::unique_ptr<pipeline::WeightPredictor> predictor;
    std::unique_ptr<pipeline::WaveWeights> waves;     // of virtual workers
    std::unique_ptr<pipeline::ScaleVersions> scales;  // of FP8 GEMMs, where they are delayed
    std::unique_ptr<pipeline::Executor> executor;
    std::unique_ptr<pipeline::PostValidatedUpdate> optimistic;
  };
  class Progress;
  Execution& execution_for(const StepsRequest& request);
  /// The first rank of a stage, where several have it.
  bool counts_norm() const {
    const int chunk = stage_.chunks.front().number;
    return schedule::holders_of(execution_.table, chunk).front() == pipeline_.rank();
  }

  pipeline::Stage& stage_;
  comm::Group& pipeline_;
  bool asynchronous_;
  VersionBytes version_bytes_;  // of the last run
  std::int64_t drain_every_;
  Progress* progress_ = nullptr;  // of the call that is running
  Execution execution_;
};

/// One call of run(): what the executor asks for, step by step.
class PipelineSteps::Progress {
 public:
  Progress(PipelineSteps& engine, const StepsRequest& request)
      : engine_(engine),
        request_(request),
        norms_(static_cast<std::size_t>(request.steps), 0.0),
        own_squares_(norms_),
        shared_squares_(norms_),
        begin_(Clock::now()) {}

  pipeline::Micro micro(int number) {
    const int step = number / request_.micros;
    ask_for(step);
    StepWork& work = works_.at(step);
    pipeline::Micro made =
        engine_.staged_->micro_of(work.batches.at(static_cast<std::size_t>(number % request_.micros)),
                                  [&] { return work.contexts(loss_scale_of(step)); });
    if (!engine_.execution_.waves)  // whose gradients are pushed a wave at a time
      made.context.on_gradient = [this](nn::Param& param) { engine_.staged_->data_parallel().added(param); };
    return made;
  }

  /// Of a wave that has begun.
  double rate_of_wave(int wave) const { return rate_of(wave); }
  /// What the losses of a step that has begun are multiplied by.
  double loss_scale_of(int step) const { return loss_scales_.at(static_cast<std::size_t>(step)); }

  /// Of the update that comes next: predictions go by it.
  double rate_to_come() {
    const int next = std::min(static_cast<int>(updates_.size()), request_.steps - 1);
    ask_for(next);
    return rate_of(next);
  }

  /// By the norm of this stage's own gradients.
  void update_alone(int step) {
    if (request_.look) request_.look(request_.optimizer.params());
    parallel::DataParallel& data_parallel = engine_.staged_->data_parallel();
    try {
      const pipeline::StageUpdated updated =
          pipeline::update_stage(request_.optimizer, engine_.execution_.executor->reduction(),
                                 {.learning_rate = rate_of(step),
                                  .loss_scale = loss_scale_of(step),
                                  .may_overflow = request_.loss_scale != nullptr,
                                  .across = data_parallel.across()});
      own_squares_[static_cast<std::size_t>(step)] = updated.squares;
      shared_squares_[static_cast<std::size_t>(step)] = updated.shared_squares;
      if (request_.loss_scale != nullptr) tell_others(updated.finite);
      if (updated.finite) data_parallel.step_taken(rate_of(step));
      data_parallel.updated();
      if (request_.taken) request_.taken();
    } catch (const optim::NonFiniteGradients& error) {
      // Others are at other steps: they learn of it at the drain.
      if (!not_finite_) not_finite_ = {step, error.message()};
      nn::zero_grad(request_.optimizer.params());
    }
    over(step);
  }

  void update_optimistically(int step, pipeline::PostValidatedUpdate& update) {
    if (request_.look) request_.look(request_.optimizer.params());
    // The scale may have grown since the step's first micro was made: it is the one they were made with that counts.
    optim::LossScale* now = request_.loss_scale;
    update.take({.learning_rate = rate_of(step),
                 .gradient_scale = now != nullptr ? now->scale() / loss_scale_of(step) : 1,
                 .loss_scale = now});
    over(step);
  }
  bool validated(pipeline::PostValidatedUpdate& update) {
    if (!update.validated()) return false;
    norms_[settled_++] = update.result().gradient_norm;
    if (request_.taken) request_.taken();
    return true;
  }
  void redo(pipeline::PostValidatedUpdate& update) {
    update.redo();
    redone_.push_back(settled_);
    if (!update.result().taken) skipped_.push_back(settled_);
    if (request_.taken && update.result().taken) request_.taken();
    norms_[settled_++] = update.result().gradient_norm;
    // The forwards that run again begin with what one rank would now have.
    for (std::size_t step = settled_; step < loss_scales_.size(); ++step) loss_scales_[step] = loss_scale_now();
  }

  /// Whether gradients of its step overflowed on this stage, beside what comes next.
  void tell_others(bool finite) {
    Verdict& verdict = verdicts_.emplace_back(Verdict{std::make_unique<double>(finite ? 0 : 1), {}});
    verdict.work =
        engine_.pipeline_.all_reduce(comm::Buffer{verdict.overflowed.get(), 1, comm::DType::kF64}, comm::Reduce::kMax);
  }
  /// The loss scale learns of steps up to this one, in order: the same on every rank.
  void learn_of(int last) {
    for (; judged_ <= last && !verdicts_.empty(); ++judged_) {
      verdicts_.front().work.wait();
      const bool taken = request_.loss_scale->take(*verdicts_.front().overflowed == 0);
      if (!taken) skipped_.push_back(static_cast<std::size_t>(judged_));
      verdicts_.pop_front();
    }
  }

  /// Throws on all ranks where a gradient was NaN or Inf on some.
  void require_finite() {
    learn_of(request_.steps - 1);
    std::int64_t first = not_finite_ ? not_finite_->first : request_.steps;
    engine_.pipeline_.all_reduce(comm::Buffer{&first, 1, comm::DType::kI64}, comm::Reduce::kMin).wait();
    if (first == request_.steps) return;
    throw optim::NonFiniteGradients(
        fmt::format("{} after the last drain, {}", counted(static_cast<std::size_t>(first + 1), "step"),
                    not_finite_ && not_finite_->first == first ? not_finite_->second
                                                               : "a gradient of another stage was not finite"),
        "go on from the last checkpoint (--resume) with a lower optim.learning_rate, or set optim.grad_clip_norm = "
        "1.0");
  }

  std::vector<StepMade> made(pipeline::RunReport& report) {
    const auto steps = static_cast<std::size_t>(request_.steps);
    std::vector<double> flops, squares;
    std::vector<std::vector<nn::LossTerm>> losses;
    for (std::size_t i = 0; i < steps; ++i) {
      flops.push_back(report.steps[i].flops);
      losses.push_back(std::move(report.steps[i].losses));
      // Of asynchronous stages each knows its own only, all ranks of it the same.
      if (engine_.asynchronous_)
        squares.push_back((engine_.counts_norm() ? own_squares_[i] : 0.0) + shared_squares_[i]);
      else
        squares.push_back(norms_[i] * norms_[i]);
    }
    engine_.staged_->sum_over_pipelines(losses, flops);
    if (engine_.asynchronous_) sum(engine_.pipeline_, squares);
    const double busy_s = busy_seconds(report);
    const double waited_s = std::max(0.0, seconds_between(begin_, Clock::now()) - busy_s);
    std::vector<StepMade> made;
    for (std::size_t i = 0; i < steps; ++i) {
      const Clock::time_point from = i == 0 ? begin_ : updates_[i - 1],
                              to = i + 1 == steps ? Clock::now() : updates_[i];
      made.push_back({.losses = std::move(losses[i]),
                      .flops = flops[i],
                      .gradient_norm = std::sqrt(squares[i]),
                      .seconds = seconds_between(from, to),
                      .comm_s = waited_s / static_cast<double>(steps)});
    }
    for (const std::size_t step : redone_) made[step].redone = true;
    for (const std::size_t step : skipped_) made[step].taken = false;
    return made;
  }

 private:
  double rate_of(int step) const { return rates_.at(static_cast<std::size_t>(step)); }
  double loss_scale_now() const { return request_.loss_scale != nullptr ? request_.loss_scale->scale() : 1; }
  void ask_for(int step) {
    for (; asked_for_ <= step; ++asked_for_) {
      // Of steps so far back every stage has told, whatever it does now.
      if (engine_.asynchronous_) learn_of(asked_for_ - 1 - engine_.execution_.ahead);
      const StepWork& work = works_[asked_for_] = request_.work(asked_for_);
      rates_.push_back(work.learning_rate);
      loss_scales_.push_back(loss_scale_now());
    }
  }
  void over(int step) {
    works_.erase(step);  // its micros are all through on this rank
    updates_.push_back(Clock::now());
  }

  PipelineSteps& engine_;
  const StepsRequest& request_;
  std::map<int, StepWork> works_;
  std::vector<double> rates_, loss_scales_, norms_, own_squares_, shared_squares_;  // by step
  /// Of one step, in fp16: whether gradients overflowed on any stage.
  struct Verdict {
    std::unique_ptr<double> overflowed;
    comm::Work work;
  };
  std::deque<Verdict> verdicts_;
  int judged_ = 0;  // steps of which the loss scale knows
  std::vector<Clock::time_point> updates_;
  int asked_for_ = 0;
  std::size_t settled_ = 0;
  std::vector<std::size_t> redone_, skipped_;
  std::optional<std::pair<int, std::string>> not_finite_;
  Clock::time_point begin_;
};

PipelineSteps::PipelineSteps(std::unique_ptr<StagedModel> staged)
    : PipelineEngineOf(std::move(staged)),
      stage_(staged_->stage()),
      pipeline_(staged_->pipeline()),
      asynchronous_(is_asynchronous(staged_->recipe())),
      drain_every_(spec::steps_between_drains(staged_->recipe(), asynchronous_)) {
  const spec::Recipe& recipe = staged_->recipe();
  TRIREME_CHECK(!recipe.layout.delayed_update, "schedule {} runs steps together with what spec/rules refuses",
                recipe.pipeline.schedule);
  if (!asynchronous_) return;
  if (staged_->groups().parallel.rank != 0) return;
  log_info("schedule {} stays full for {} at a time; {}", recipe.pipeline.schedule,
           counted(static_cast<std::size_t>(drain_every_), "step"),
           recipe.optim.grad_clip_norm > 0
               ? fmt::format("each stage clips its own gradients to {}", recipe.optim.grad_clip_norm)
               : std::string("gradients are not clipped"));
}

PipelineSteps::Execution& PipelineSteps::execution_for(const StepsRequest& request) {
  if (execution_.executor && execution_.micros == request.micros && execution_.steps == request.steps)
    return execution_;
  execution_.optimistic.reset();
  execution_.executor.reset();
  execution_.waves.reset();
  execution_.scales.reset();
  execution_.micros = request.micros;
  execution_.steps = request.steps;
  execution_.table = staged_->make_table(request.micros, request.steps);
  execution_.ahead = schedule::steps_ahead(execution_.table);
  if (!execution_.predictor) {
    execution_.predictor = pipeline::make_weight_predictor(execution_.table.weights, request.optimizer,
                                                           [this] { return progress_->rate_to_come(); });
  }
  if (execution_.table.weights == schedule::WeightChoice::kWaves) {
    execution_.waves = std::make_unique<pipeline::WaveWeights>(
        pipeline::WaveWeights::Parts{.table = execution_.table,
                                     .chunk = stage_.chunks.front(),
                                     .shares = staged_->wave_shares(),
                                     .rate_of = [this](int wave) { return progress_->rate_of_wave(wave); },
                                     .stage_sums = staged_->stage_sums(),
                                     .reduce_bf16 = staged_->recipe().layout.reduce == spec::ReduceKind::kBf16});
  }
  if (request.fp8_history != nullptr) {
    comm::Group* ranks = staged_->stage_ranks();
    // Of the stage's ranks in other pipelines, and in this one where a stage has several.
    execution_.scales =
        std::make_unique<pipeline::ScaleVersions>(*request.fp8_history, [this, ranks](at::Tensor& largest) {
          const auto agree = [&](comm::Group& group) {
            group.all_reduce(device::to_buffer(largest), comm::Reduce::kMax).wait();
          };
          if (ranks != nullptr) agree(*ranks);
          for (comm::Group* twins : execution_.executor->reduction().twins()) agree(*twins);
        });
  }
  execution_.executor =
      std::make_unique<pipeline::Executor>(pipeline::ExecutorParts{.table = execution_.table,
                                                                   .stage = stage_,
                                                                   .pipeline = pipeline_,
                                                                   .data_parallel = &staged_->data_parallel(),
                                                                   .predictor = execution_.predictor.get(),
                                                                   .waves = execution_.waves.get(),
                                                                   .scatter = staged_->scatter(),
                                                                   .scales = execution_.scales.get(),
                                                                   .receives = &staged_->receives(),
                                                                   .activations = &staged_->activations()});
  if (asynchronous_ && request.loss_scale != nullptr) {
    execution_.executor->reduction().delay_shared(execution_.ahead,
                                                  [this](int step) { return progress_->loss_scale_of(step); });
  }
  if (!asynchronous_) {
    execution_.optimistic =
        std::make_unique<pipeline::PostValidatedUpdate>(request.optimizer, execution_.executor->reduction());
  }
  return execution_;
}

std::vector<StepMade> PipelineSteps::run(const StepsRequest& request) {
  Execution& execution = execution_for(request);
  Progress progress(*this, request);
  progress_ = &progress;
  nn::zero_grad(request.optimizer.params());
  pipeline::ExecutorCall call{
      .micro = [&](int micro) { return progress.micro(micro); }, .update = {}, .keep_spans = true};
  if (asynchronous_) {
    call.update = [&](int step) { progress.update_alone(step); };
  } else {
    call.update = [&](int step) { progress.update_optimistically(step, *execution.optimistic); };
    call.validated = [&] { return progress.validated(*execution.optimistic); };
    call.redo = [&] { progress.redo(*execution.optimistic); };
  }
  pipeline::RunReport report = execution.executor->run(call);
  version_bytes_ = {.device = report.max_version_bytes};
  const bool offload = staged_->recipe().layout.offload != spec::OffloadKind::kNone;
  (offload ? version_bytes_.host : version_bytes_.device) += report.max_delayed_bytes;
  if (execution.optimistic) (offload ? version_bytes_.host : version_bytes_.device) += execution.optimistic->bytes();
  if (request.fp8_history != nullptr) {
    request.fp8_history->share(
        [this](at::Tensor& table) { pipeline_.all_reduce(device::to_buffer(table), comm::Reduce::kMax).wait(); });
  }
  progress.require_finite();
  return progress.made(report);
}

}  // namespace

std::unique_ptr<MultiStepEngine> make_pipeline_steps(std::unique_ptr<StagedModel> staged) {
  return std::make_unique<PipelineSteps>(std::move(staged));
}

}  // namespace trireme::train
