#include "trireme/train/engine/pipeline_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <optional>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/spec/recipe.h"
#include "trireme/train/engine/drains.h"
#include "trireme/train/engine/feed.h"
#include "trireme/train/engine/pipeline_table.h"

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

}  // namespace

/// One call of run_steps(): what the executor asks for, step by step.
class PipelineSteps::Progress {
 public:
  Progress(PipelineSteps& engine, const StepsRequest& request)
      : engine_(engine),
        request_(request),
        norms_(static_cast<std::size_t>(request.steps), 0.0),
        begin_(Clock::now()) {}

  pipeline::Micro micro(int number) {
    const int step = number / request_.micros;
    ask_for(step);
    StepWork& work = works_.at(step);
    pipeline::Micro made{.context = work.contexts()};
    made.inputs = feed(work.batches.at(static_cast<std::size_t>(number % request_.micros)), made.context);
    move_to(engine_.device_, made.inputs, made.context, engine_.stage_.model->shape);
    return made;
  }

  /// Of the update that comes next: predictions go by it.
  double rate_to_come() {
    const int next = std::min(static_cast<int>(updates_.size()), request_.steps - 1);
    ask_for(next);
    return rate_of(next);
  }

  /// By this rank's own norm.
  void update_alone(int step) {
    if (request_.look) request_.look(request_.optimizer.params());
    try {
      norms_[static_cast<std::size_t>(step)] =
          optim::update(request_.optimizer, {.learning_rate = rate_of(step)}).gradient_norm;
    } catch (const optim::NonFiniteGradients& error) {
      // Others are at other steps: they learn of it at the drain.
      if (!not_finite_) not_finite_ = {step, error.message()};
      nn::zero_grad(request_.optimizer.params());
    }
    over(step);
  }

  void update_optimistically(int step, pipeline::PostValidatedUpdate& update) {
    if (request_.look) request_.look(request_.optimizer.params());
    update.take({.learning_rate = rate_of(step)});
    over(step);
  }
  bool validated(pipeline::PostValidatedUpdate& update) {
    if (!update.validated()) return false;
    norms_[settled_++] = update.result().gradient_norm;
    return true;
  }
  void redo(pipeline::PostValidatedUpdate& update) {
    update.redo();
    redone_.push_back(settled_);
    norms_[settled_++] = update.result().gradient_norm;
  }

  /// Throws on all ranks where a gradient was no number on some.
  void require_finite() {
    std::int64_t first = not_finite_ ? not_finite_->first : request_.steps;
    engine_.pipeline_.all_reduce(comm::Buffer{&first, 1, comm::DType::kI64}, comm::Reduce::kMin).wait();
    if (first == request_.steps) return;
    throw optim::NonFiniteGradients(
        fmt::format("{} after the last drain, {}", first == 0 ? "1 step" : fmt::format("{} steps", first + 1),
                    not_finite_ && not_finite_->first == first ? not_finite_->second
                                                               : "a gradient of another stage was not finite"),
        "go on from the last checkpoint (--resume) with a lower optim.learning_rate, or set optim.grad_clip_norm = "
        "1.0");
  }

  std::vector<StepMade> made(const pipeline::RunReport& report) {
    const auto steps = static_cast<std::size_t>(request_.steps);
    std::vector<double> sums, squares;
    for (std::size_t i = 0; i < steps; ++i) {
      sums.insert(sums.end(), {report.steps[i].loss, report.steps[i].flops});
      squares.push_back(norms_[i] * norms_[i]);
    }
    sum(engine_.copies_, sums);
    if (engine_.asynchronous_) sum(engine_.pipeline_, squares);  // each stage knows its own only
    double busy_s = 0;
    for (const pipeline::Ran& span : report.spans) {  // passes come first among the operations
      if (span.instruction.op <= schedule::Op::kForwardBackward) {
        busy_s += std::chrono::duration<double>(span.end - span.start).count();
      }
    }
    const double waited_s = std::max(0.0, seconds_between(begin_, Clock::now()) - busy_s);
    std::vector<StepMade> made;
    for (std::size_t i = 0; i < steps; ++i) {
      const Clock::time_point from = i == 0 ? begin_ : updates_[i - 1],
                              to = i + 1 == steps ? Clock::now() : updates_[i];
      made.push_back({.loss = sums[2 * i],
                      .flops = sums[2 * i + 1],
                      .gradient_norm = std::sqrt(squares[i]),
                      .seconds = seconds_between(from, to),
                      .comm_s = waited_s / static_cast<double>(steps)});
    }
    for (const std::size_t step : redone_) made[step].redone = true;
    return made;
  }

 private:
  double rate_of(int step) const { return rates_.at(static_cast<std::size_t>(step)); }
  void ask_for(int step) {
    for (; asked_for_ <= step; ++asked_for_) {
      const StepWork& work = works_[asked_for_] = request_.work(asked_for_);
      rates_.push_back(work.learning_rate);
    }
  }
  void over(int step) {
    works_.erase(step);  // its micros are all through on this rank
    updates_.push_back(Clock::now());
  }

  PipelineSteps& engine_;
  const StepsRequest& request_;
  std::map<int, StepWork> works_;
  std::vector<double> rates_, norms_;
  std::vector<Clock::time_point> updates_;
  int asked_for_ = 0;
  std::size_t settled_ = 0;
  std::vector<std::size_t> redone_;
  std::optional<std::pair<int, std::string>> not_finite_;
  Clock::time_point begin_;
};

PipelineSteps::PipelineSteps(const spec::Recipe& recipe, pipeline::Stage& stage, comm::Group& pipeline,
                             comm::Group& copies, parallel::DataParallel& data_parallel, MakeTable make_table)
    : stage_(stage),
      pipeline_(pipeline),
      copies_(copies),
      device_(data_parallel.device()),
      data_parallel_(data_parallel),
      asynchronous_(is_asynchronous(recipe)),
      drain_every_(train::drain_every(recipe, asynchronous_)),
      make_table_(std::move(make_table)) {
  if (recipe.precision.compute == spec::Precision::kFp16) {
    throw ConfigError(
        fmt::format("schedule {} runs {} steps together, but the loss scale of fp16 may change after each",
                    recipe.pipeline.schedule, drain_every_),
        "set precision.compute = \"bf16\", or take a synchronous schedule with pipeline.drain_every = 1");
  }
  const spec::LayoutConfig& layout = recipe.layout;
  if (layout.offload != spec::OffloadKind::kNone) {
    throw ConfigError(fmt::format("schedule {} runs {} steps together, and updates on the host come once a step",
                                  recipe.pipeline.schedule, drain_every_),
                      "set layout.offload = \"none\", or take a synchronous schedule with pipeline.drain_every = 1");
  }
  if (layout.tp > 1 || layout.cp > 1 || layout.zero > 0) {
    throw ConfigError(fmt::format("schedule {} runs {} steps together, in which a rank updates whole stages by itself; "
                                  "tp {}, cp {} and ZeRO-{} split them",
                                  recipe.pipeline.schedule, drain_every_, layout.tp, layout.cp, layout.zero),
                      "set layout.tp = 1, layout.cp = 1 and layout.zero = 0, or take a synchronous schedule with "
                      "pipeline.drain_every = 1");
  }
  if (!asynchronous_) return;
  pipeline::require_own_updates(recipe.pipeline.schedule, stage.holdings);
  if (pipeline.rank() != 0 || copies.rank() != 0) return;
  log_info("schedule {} stays full for {} steps at a time; {}", recipe.pipeline.schedule, drain_every_,
           recipe.optim.grad_clip_norm > 0
               ? fmt::format("each stage clips its own gradients to {}", recipe.optim.grad_clip_norm)
               : std::string("gradients are not clipped"));
}

PipelineSteps::Walk& PipelineSteps::walk_for(const StepsRequest& request) {
  if (walk_.executor && walk_.micros == request.micros && walk_.steps == request.steps) return walk_;
  walk_.optimistic.reset();
  walk_.executor.reset();
  walk_.micros = request.micros;
  walk_.steps = request.steps;
  walk_.table = make_table_(request.micros, request.steps);
  if (!walk_.predictor) {
    walk_.predictor = pipeline::make_weight_predictor(walk_.table.weights, request.optimizer,
                                                      [this] { return progress_->rate_to_come(); });
  }
  walk_.executor = std::make_unique<pipeline::Executor>(pipeline::ExecutorParts{.table = walk_.table,
                                                                                .stage = stage_,
                                                                                .pipeline = pipeline_,
                                                                                .data_parallel = &data_parallel_,
                                                                                .predictor = walk_.predictor.get()});
  if (!asynchronous_) {
    walk_.optimistic = std::make_unique<pipeline::PostValidatedUpdate>(request.optimizer, walk_.executor->reduction());
  }
  return walk_;
}

std::vector<StepMade> PipelineSteps::run_steps(const StepsRequest& request) {
  Walk& walk = walk_for(request);
  Progress progress(*this, request);
  progress_ = &progress;
  nn::zero_grad(request.optimizer.params());
  pipeline::ExecutorCall run{
      .micro = [&](int micro) { return progress.micro(micro); }, .update = {}, .keep_spans = true};
  if (asynchronous_) {
    run.update = [&](int step) { progress.update_alone(step); };
  } else {
    run.update = [&](int step) { progress.update_optimistically(step, *walk.optimistic); };
    run.validated = [&] { return progress.validated(*walk.optimistic); };
    run.redo = [&] { progress.redo(*walk.optimistic); };
  }
  const pipeline::RunReport report = walk.executor->run(run);
  progress.require_finite();
  return progress.made(report);
}

}  // namespace trireme::train
