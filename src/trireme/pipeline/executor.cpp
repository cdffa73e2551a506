#include "trireme/pipeline/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/schedule/check.h"

namespace trireme::pipeline {

using schedule::Instruction;
using schedule::Op;

namespace {

using Clock = std::chrono::steady_clock;

/// The table, if it can run on this group.
const schedule::Schedule& checked(const ExecutorParts& parts) {
  const schedule::Schedule& table = parts.table;
  if (static_cast<int>(table.ranks.size()) != parts.pipeline.size()) {
    throw ConfigError(fmt::format("schedule {} is for {} ranks, but the pipeline has {}", table.name,
                                  table.ranks.size(), parts.pipeline.size()));
  }
  schedule::require_fine(table);
  const bool versions = table.weights == schedule::WeightChoice::kPredictMomentum ||
                        table.weights == schedule::WeightChoice::kPredictAdam;
  TRIREME_CHECK(!versions || parts.predictor != nullptr,
                "schedule {} predicts weights, but there is no weight predictor", table.name);
  if (table.weights == schedule::WeightChoice::kWaves) require_own_updates(table.name, parts.stage.param_holders);
  return table;
}

}  // namespace

void require_own_updates(const std::string& schedule, std::span<const ParamHolders> param_holders) {
  for (const ParamHolders& held : param_holders) {
    if (held.chunks.size() == 1) continue;
    throw ConfigError(fmt::format("{} is in {} stages of the pipeline, and with schedule {} each computes with updates "
                                  "of its own minibatches that the others have not met",
                                  held.param, held.chunks.size(), schedule),
                      "set model.tied = false, or take another schedule, such as 1f1b or pipedream");
  }
}

Executor::Executor(const ExecutorParts& parts)
    : table_(checked(parts)),
      pipeline_(parts.pipeline),
      stage_(parts.stage),
      data_parallel_(parts.data_parallel),
      waves_(parts.waves),
      versions_(table_, stage_.chunks, parts.predictor, parts.data_parallel),
      passes_(table_, pipeline_.rank(), stage_.chunks, stage_.boundaries, versions_),
      transfers_(table_, pipeline_, stage_.boundaries, passes_, parts.scatter, parts.receives),
      portals_(table_, pipeline_, stage_.skips, passes_),
      interleaved_(table_),
      reduction_(stage_.param_holders, stage_.model->params, pipeline_, parts.data_parallel),
      loss_reducer_(pipeline_) {
  if (table_.weights != schedule::WeightChoice::kFlush) reduction_.delay_shared(schedule::steps_ahead(table_));
  versions_.use_waves(waves_);
  versions_.use_scales(parts.scales);
  passes_.tell(parts.activations);
  const auto& list = table_.ranks[static_cast<std::size_t>(pipeline_.rank())];
  before_forward_.resize(list.size());
  for (std::size_t position = 0; position < list.size(); ++position) {
    before_forward_[position] = is_version(list[position].op) && next_pass_is_forward(list, position);
  }
}

RunReport Executor::run(const ExecutorCall& run) {
  const auto& list = table_.ranks[static_cast<std::size_t>(pipeline_.rank())];
  RunReport report;
  if (run.keep_spans) report.spans.reserve(list.size());
  if (run.validated && windows_.empty()) windows_ = find_speculation_windows(table_);
  if (run.validated && !portals_.empty()) {
    throw ConfigError(fmt::format("skip {} crosses stages, and steps that are validated after the fact cannot take it "
                                  "back",
                                  stage_.skips.front().name),
                      "set pipeline.drain_every = 1");
  }
  const auto begin = report.began = Clock::now();
  present_ = settled_ = 0;
  again_ = false;
  interleaved_.clear();
  passes_.begin(run.micro);
  versions_.begin();
  reduction_.begin();
  if (waves_ != nullptr) waves_->begin();
  for (std::size_t position = 0; position <= list.size(); ++position) {
    if (run.validated && settled_ < present_) position = settle(position, run);
    if (position == list.size()) break;
    const Instruction& instruction = list[position];
    // Transfers of the step before ended when this stretch was executed first.
    if (again_ && is_transfer(instruction.op) && table_.step_of(instruction.micro) < present_) continue;
    const auto start = run.keep_spans ? Clock::now() : begin;
    execute_in_context(instruction, position, run);
    if (run.keep_spans) report.spans.push_back({instruction, start - begin, Clock::now() - begin});
    if (!is_version(instruction.op)) continue;
    report.max_weight_copies = std::max(report.max_weight_copies, versions_.copies());
    report.max_version_bytes = std::max(report.max_version_bytes, versions_.bytes());
  }
  if (waves_ != nullptr) report.max_version_bytes = waves_->max_bytes();
  report.max_delayed_bytes = reduction_.delayed_bytes();
  versions_.end();
  transfers_.end();
  portals_.end();
  report.steps = passes_.end();
  add_up(report.steps);
  return report;
}

/// Where to go on: here, or at the begin of the window when the update behind it was wrong.
std::size_t Executor::settle(std::size_t position, const ExecutorCall& run) {
  const auto rank = static_cast<std::size_t>(pipeline_.rank());
  const SpeculationWindow& window = windows_[static_cast<std::size_t>(settled_)];
  if (position < window.end[rank]) return position;
  ++settled_;
  if (again_) {  // the right update was taken before it was executed again
    again_ = false;
    return position;
  }
  if (run.validated()) return position;
  const int step = settled_ - 1;
  const Unmatched unmatched = find_unmatched(table_, window, step, pipeline_.rank());
  transfers_.rewind(unmatched, step);
  passes_.rewind(step);
  versions_.rewind(step);
  run.redo();
  for (const Instruction& receive : unmatched.early_receives) transfers_.execute(receive);
  --settled_;
  again_ = true;
  if (window.begin[rank] < window.end[rank]) return window.begin[rank];
  return settle(position, run);
}

void Executor::execute_in_context(const Instruction& instruction, std::size_t position, const ExecutorCall& run) {
  try {
    execute(instruction, position, run);
  } catch (Error& error) {
    std::string what;
    if (instruction.micro >= 0) {
      what = fmt::format(", {} {}", is_version(instruction.op) ? "version" : "micro", instruction.micro);
    }
    error.add_context(fmt::format("on rank {} of the pipeline, at instruction {} ({}: {}{}) of schedule {}",
                                  pipeline_.rank(), position, schedule::to_text(instruction, true),
                                  schedule::info(instruction.op).words, what, table_.name));
    throw;
  }
}

void Executor::execute(const Instruction& it, std::size_t position, const ExecutorCall& run) {
  switch (it.op) {
    case Op::kForward:
    case Op::kForwardDoubled:
      return forward(it.chunk, it.micro);
    case Op::kBackward:
      return backward(it.chunk, it.micro, /*weights=*/true);
    case Op::kBackwardInput:
      return backward(it.chunk, it.micro, /*weights=*/false);
    case Op::kBackwardWeight:
      passes_.backward_weight(it.chunk, it.micro);
      if (data_parallel_ != nullptr) data_parallel_->end_pass(it.chunk);
      return;
    case Op::kRecompute:
      return passes_.recompute(it.chunk, it.micro);
    case Op::kForwardBackward:
      // One thread computes: what overlaps are the transfers posted around the two. Where mixtures send rows, pairs are
      // in parts.
      forward(it.chunk, it.micro);
      return backward(it.back_chunk, it.back_micro, /*weights=*/true);
    case Op::kBeginForward:
      return interleaved_.begin(it, passes_.context(it.micro), [this, it] { forward(it.chunk, it.micro); });
    case Op::kBeginBackward:
      return interleaved_.begin(it, passes_.context(it.micro),
                                [this, it] { backward(it.chunk, it.micro, /*weights=*/true); });
    case Op::kDispatch:
    case Op::kExpert:
    case Op::kCombine:
      return interleaved_.go_on(it);
    case Op::kReduceGradients:
      return waves_ != nullptr ? waves_->push() : reduction_.post(it.chunk);
    case Op::kOptimizerStep:
      waves_ != nullptr ? waves_->pull() : reduction_.finish(present_, present_ + 1 == table_.steps());
      run.update(present_);
      if (waves_ != nullptr) waves_->pulled();
      versions_.updated();
      ++present_;
      return;
    case Op::kStashWeights:
    case Op::kLoadWeights:
    case Op::kPredictWeights:
    case Op::kDropWeights:
      if (data_parallel_ != nullptr) data_parallel_->wait_for_weights();  // which ranks gather from their shards
      return versions_.execute(it, before_forward_[position]);
    case Op::kRecvActivation:
    case Op::kRecvGradient:
      transfers_.execute(it);
      return portals_.post(it.chunk, it.micro, /*forward=*/it.op == Op::kRecvActivation);
    default:
      return transfers_.execute(it);
  }
}

void Executor::forward(int chunk, int micro) {
  portals_.before(chunk, micro, /*forward=*/true);
  passes_.forward(chunk, micro);
  portals_.after(chunk, micro, /*forward=*/true);
}

void Executor::backward(int chunk, int micro, bool weights) {
  portals_.before(chunk, micro, /*forward=*/false);
  passes_.backward(chunk, micro, weights);
  if (weights && data_parallel_ != nullptr) data_parallel_->end_pass(chunk);
  if (waves_ != nullptr) waves_->returned(micro);
  portals_.after(chunk, micro, /*forward=*/false);
}

void Executor::add_up(std::vector<PassSums>& steps) {
  std::vector<double> flops;
  std::vector<std::vector<nn::LossTerm>> losses;
  for (PassSums& step : steps) {
    flops.insert(flops.end(), {step.flops, step.recomputed_flops});
    losses.push_back(std::move(step.losses));
  }
  loss_reducer_.reduce(losses, flops);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    steps[i] = {.losses = std::move(losses[i]), .flops = flops[2 * i], .recomputed_flops = flops[2 * i + 1]};
  }
}

void TimelineRecorder::add(const RunReport& report) {
  std::vector<double> times;
  times.reserve(2 * report.spans.size());
  const auto began = report.began.time_since_epoch();
  for (const ExecutedInstruction& ran : report.spans) {
    times.push_back(std::chrono::duration<double>(began + ran.start).count());
    times.push_back(std::chrono::duration<double>(began + ran.end).count());
  }
  executions_.push_back(std::move(times));
  if (executions_.size() > most_) executions_.pop_front();
}

std::vector<schedule::Timeline> TimelineRecorder::gather(comm::Group& pipeline) const {
  std::vector<std::size_t> counts;
  for (const auto& list : table_.ranks) counts.push_back(2 * list.size());
  std::size_t all = 0;
  for (const std::size_t count : counts) all += count;
  std::vector<schedule::Timeline> timelines;
  for (const std::vector<double>& mine : executions_) {
    TRIREME_CHECK(mine.size() == counts[static_cast<std::size_t>(pipeline.rank())],
                  "a step with {} times is stored, but the list has {}", mine.size(),
                  counts[static_cast<std::size_t>(pipeline.rank())]);
    std::vector<double> whole(pipeline.rank() == 0 ? all : 0);
    pipeline
        .gather_v(comm::ConstBuffer{mine.data(), mine.size(), comm::DType::kF64},
                  comm::Buffer{whole.data(), whole.size(), comm::DType::kF64}, counts, 0)
        .wait();
    if (pipeline.rank() != 0) continue;
    const double first = *std::ranges::min_element(whole);
    schedule::Timeline& timeline = timelines.emplace_back();
    const double* at = whole.data();
    for (const auto& list : table_.ranks) {
      auto& spans = timeline.ranks.emplace_back();
      for (const schedule::Instruction& it : list) {
        spans.push_back({it, at[0] - first, at[1] - first});
        at += 2;
      }
    }
  }
  return timelines;
}

}  // namespace trireme::pipeline
