#include "trireme/plan/step_time.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "trireme/cost/group_time.h"
#include "trireme/cost/roofline.h"
#include "trireme/schedule/builders.h"
#include "trireme/schedule/passes.h"
#include "trireme/schedule/replay.h"

namespace trireme::plan {
namespace {

using cost::Collective;
using cost::Hardware;

/// Adam over masters, moments and gradients, with the norm of the gradients first: reads and writes of fp32 numbers,
/// and of the weights in sixteen bits.
constexpr double kOptimizerBytes = 42;

/// Messages between stages. Every rank of a tensor-parallel group sends its own part of the activations through its own
/// adapter; those that need the whole gather it inside the node (Narayanan et al. 2021, section 4.1).
struct Message {
  double exposed = 0, hidden = 0;
};

Message message_of(const Hardware& hardware, const Job& job, const Layout& layout) {
  if (layout.pp == 1) return {};
  const double bytes =
      2 * static_cast<double>(layout.microbatch * job.length) / layout.cp * static_cast<double>(job.shape.width);
  const bool across = layout.gpus() > hardware.cluster.gpus_per_node;
  const double start =
      (across ? hardware.cluster.network : cost::Network{.latency_us = hardware.cluster.link.latency_us}).latency_us *
          1e-6 +
      hardware.device.efficiency.kernel_seconds;
  double moving = cost::message_seconds(hardware, bytes / layout.tp, across);
  if (layout.tp > 1 && !layout.sequence_parallel)
    moving += cost::group_seconds(hardware, Collective::kAllGather,
                                  {.ranks = layout.tp, .per_node = std::min(layout.tp, hardware.cluster.gpus_per_node)},
                                  bytes);
  const double overlap = hardware.device.efficiency.overlap;
  return {.exposed = start + (1 - overlap) * moving, .hidden = overlap * moving};
}

cost::GroupShape replica_group(const Hardware& hardware, const Layout& layout) {
  const int inner = layout.tp * layout.cp;
  const int ranks =
      layout.dp * layout.cp;  // weights are the same along a sequence, so gradients are summed over it too
  return {.ranks = ranks,
          .per_node = std::clamp(hardware.cluster.gpus_per_node / layout.tp, 1, ranks),
          .groups = layout.gpus() / ranks,
          .extent = static_cast<double>(inner) * layout.dp};
}

/// Bytes of a gradient on the wire: fp16 runs reduce what they computed, bf16 runs, whose numbers are coarser, reduce
/// in fp32 (as Megatron-LM and Llama 3 do).
double wire_bytes_of_gradient(cost::Arithmetic arithmetic) { return arithmetic == cost::Arithmetic::kFp16 ? 2 : 4; }

double weights_of_fullest_stage(const Job& job, const Layout& layout) {
  const Weights weights = count_weights(job.shape);
  const std::vector<int> layers = stage_layers(layers_of(job.shape), layout.pp, layout.virtual_stages);
  double first = layers.front() * weights.layer + weights.embedding;
  const double most = *std::ranges::max_element(layers) * weights.layer;
  if (layout.pp == 1) first += weights.head;
  return std::max(first, most) / layout.tp;
}

/// What keeping the copies of the weights equal costs beside `pipeline` seconds of computing.
double replica_seconds(const Hardware& hardware, const Job& job, const Layout& layout, double pipeline,
                       double backward) {
  const cost::GroupShape group = replica_group(hardware, layout);
  if (group.ranks == 1) return 0;
  const cost::Efficiency& efficiency = hardware.device.efficiency;
  const double weights = weights_of_fullest_stage(job, layout);
  const double gradient = wire_bytes_of_gradient(job.arithmetic) * weights;
  const double value = (job.arithmetic == cost::Arithmetic::kFp32 ? 4 : 2) * weights;
  const auto micros = static_cast<double>(micros_of(job, layout));
  if (layout.zero == 3) {
    // Every microbatch gathers every layer twice and reduces it once.
    const double once = (2 * cost::group_seconds(hardware, Collective::kAllGather, group, value) +
                         cost::group_seconds(hardware, Collective::kReduceScatter, group, gradient)) /
                        efficiency.gather;
    const double moving = micros * once;
    return std::max(pipeline, moving) + (1 - efficiency.overlap) * std::min(pipeline, moving) - pipeline;
  }
  double moving = 0, times = 1;
  if (layout.zero == 0) {
    moving = cost::group_seconds(hardware, Collective::kAllReduce, group, gradient);
  } else {
    // Sharded gradients are reduced whenever a chunk has seen a run of microbatches: each one without a pipeline.
    if (layout.zero == 2) times = layout.pp == 1 ? micros : std::ceil(micros / layout.pp);
    moving = times * cost::group_seconds(hardware, Collective::kReduceScatter, group, gradient) +
             cost::group_seconds(hardware, Collective::kAllGather, group, value);
  }
  // They can hide behind what is still to be computed when the first gradients are final: the backward of the last
  // microbatch; with several chunks, that of the last turn of microbatches through all chunks but one.
  const double turns = layout.virtual_stages;
  const double window = backward * (1 + (layout.pp - 1) * (turns - 1)) / turns;
  return std::max(moving * (1 - efficiency.overlap), moving - times * std::max(backward, window));
}

double optimizer_seconds(const Hardware& hardware, const Job& job, const Layout& layout) {
  const double weights = weights_of_fullest_stage(job, layout);
  return cost::stream_seconds(hardware, kOptimizerBytes * weights / (layout.zero >= 1 ? layout.dp * layout.cp : 1), 8);
}

}  // namespace

std::vector<StageTime> stage_times(const Hardware& hardware, const Job& job, const Layout& layout) {
  const PassTimes layer = layer_times(hardware, job, layout);
  const PassTimes embedding = embedding_times(hardware, job, layout), head = head_times(hardware, job, layout);
  const std::vector<int> layers = stage_layers(layers_of(job.shape), layout.pp, layout.virtual_stages);
  const double exposed = message_of(hardware, job, layout).exposed;
  std::vector<StageTime> stages;
  for (int stage = 0; stage < layout.pp; ++stage) {
    const int count = layers[static_cast<std::size_t>(stage)];
    StageTime time;
    time.forward = count * layer.forward.total();
    time.backward = count * (layer.backward.total() + layer.recompute.total());
    time.backward_weight = count * layer.backward_weight;
    if (stage == 0) time.forward += embedding.forward.total(), time.backward += embedding.backward.total();
    if (stage == layout.pp - 1) time.forward += head.forward.total(), time.backward += head.backward.total();
    time.exposed = 2 * layout.virtual_stages * exposed;
    stages.push_back(time);
  }
  return stages;
}

double pipeline_closed_form(const Layout& layout, std::int64_t micros, const std::vector<StageTime>& stages) {
  double sum = 0, most = 0;
  const StageTime* slowest = &stages.front();
  for (const StageTime& stage : stages) {
    sum += stage.total();
    if (stage.total() > most) most = stage.total(), slowest = &stage;
  }
  const auto count = static_cast<double>(micros);
  const bool plain = layout.schedule == "1f1b" || layout.schedule == "gpipe" || layout.schedule == "interleaved" ||
                     layout.schedule == "breadth-first";
  if (layout.pp == 1 || plain) return count * most + (sum - most) / layout.virtual_stages;
  const schedule::Times times{.forward = slowest->forward + slowest->exposed / 2,
                              .backward_input = slowest->backward - slowest->backward_weight + slowest->exposed / 2,
                              .backward_weight = slowest->backward_weight};
  const schedule::Shape shape{
      .ranks = layout.pp, .micros = static_cast<int>(micros), .chunks_per_rank = layout.virtual_stages};
  if (const auto bubble = schedule::find_kind(layout.schedule).bubble(shape, times))
    return count * most / (1 - *bubble);
  return pipeline_replayed(layout, micros, stages, 0);
}

double pipeline_replayed(const Layout& layout, std::int64_t micros, const std::vector<StageTime>& stages, double link) {
  const schedule::Schedule table = schedule::build(
      layout.schedule,
      {.ranks = layout.pp, .micros = static_cast<int>(micros), .chunks_per_rank = layout.virtual_stages});
  const double share = 1.0 / layout.virtual_stages;
  schedule::ReplayOptions options;
  options.times.link = link;
  options.time_of = [&](int rank, const schedule::Instruction& instruction) {
    const StageTime& stage = stages[static_cast<std::size_t>(rank)];
    const schedule::Times times{.forward = stage.forward + stage.exposed / 2,
                                .backward_input = stage.backward - stage.backward_weight + stage.exposed / 2,
                                .backward_weight = stage.backward_weight};
    return times.scaled(share).of(instruction.op);
  };
  return schedule::replay(table, options).makespan;
}

StepTime estimate_step(const Hardware& hardware, const Job& job, const Layout& layout, Pipeline pipeline) {
  const std::int64_t micros = micros_of(job, layout);
  const std::vector<StageTime> stages = stage_times(hardware, job, layout);
  const auto slowest = std::ranges::max_element(stages, {}, &StageTime::total);
  const auto stage = static_cast<int>(slowest - stages.begin());
  const std::vector<int> layers = stage_layers(layers_of(job.shape), layout.pp, layout.virtual_stages);

  StepTime step;
  const PassTimes layer = layer_times(hardware, job, layout);
  PassTimes all;
  all.forward = layers[static_cast<std::size_t>(stage)] * layer.all();
  if (stage == 0) all.forward += embedding_times(hardware, job, layout).all();
  if (stage == layout.pp - 1) all.forward += head_times(hardware, job, layout).all();
  const auto count = static_cast<double>(micros);
  step.work = count * all.forward;
  step.recompute = count * layers[static_cast<std::size_t>(stage)] * layer.recompute.total();
  step.pipeline = count * slowest->exposed;

  step.replayed = pipeline == Pipeline::kReplay && layout.pp > 1;
  const double computing = step.replayed
                               ? pipeline_replayed(layout, micros, stages, message_of(hardware, job, layout).hidden)
                               : pipeline_closed_form(layout, micros, stages);
  step.bubble = std::max(0.0, computing - step.work.total() - step.pipeline);
  step.replicas = replica_seconds(hardware, job, layout, computing, slowest->backward);
  step.optimizer = optimizer_seconds(hardware, job, layout);
  return step;
}

}  // namespace trireme::plan
