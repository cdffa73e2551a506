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

/// Adam over master weights, moments and gradients, with the norm of the gradients first: reads and writes of fp32
/// numbers, and of the weights in sixteen bits. Narrower gradients are passed over three times, moments read and
/// written, and weights without master weights too.
constexpr double kOptimizerBytes = 42;
double optimizer_bytes(const StateTypes& types) {
  return kOptimizerBytes - 3 * (4 - types.gradient_bytes) - 2 * 2 * (4 - types.moment_bytes) -
         (types.master_weights ? 0 : 6);
}

/// Messages between stages. Every rank of a tensor-parallel group sends its own part of the activations through its own
/// adapter; those that need the whole gather it inside the node (Narayanan et al. 2021, section 4.1).
struct Message {
  double exposed = 0, hidden = 0;
};

Message message_of(const Hardware& hardware, const Job& job, const Layout& layout) {
  if (layout.pp == 1) return {};
  const double bytes = activation_bytes(job.arithmetic) * static_cast<double>(layout.micro_batch_size * job.length) /
                       layout.cp * static_cast<double>(job.shape.hidden_size);
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

/// Of a rank in the fullest stage.
struct HeldWeights {
  double dense = 0, experts = 0;
};

HeldWeights weights_of_fullest_stage(const Job& job, const Layout& layout) {
  const WeightCounts weights = count_weights(job);
  const std::vector<int> layers = stage_layers(layers_of(job.shape), layout.pp, layout.virtual_stages);
  double first = layers.front() * weights.layer + weights.embedding;
  const int most = *std::ranges::max_element(layers);
  if (layout.pp == 1) first += weights.head;
  return {.dense = std::max(first, most * weights.layer) / layout.tp,
          .experts = most * weights.experts / layout.tp / layout.ep};
}

/// Gradients to where they are needed and new weights back.
struct Exchange {
  double all_reduce = 0;          ///< gradients, summed for everyone
  double reduce = 0, gather = 0;  ///< gradients to their shards, weights back from them
  Exchange& operator+=(const Exchange& other) {
    all_reduce += other.all_reduce, reduce += other.reduce, gather += other.gather;
    return *this;
  }
};

/// Sharded within groups of copies, each shard is then summed over the groups (Zhang et al. 2022, MiCS; hybrid sharding
/// of FSDP).
Exchange exchange_seconds(const Hardware& hardware, const Layout& layout, const cost::GroupShape& all, int sharers,
                          double gradient, double value) {
  const auto seconds = [&](Collective op, const cost::GroupShape& group, double bytes) {
    return cost::group_seconds(hardware, op, group, bytes);
  };
  if (layout.zero == 0) return {.all_reduce = seconds(Collective::kAllReduce, all, gradient)};
  if (sharers >= all.ranks)
    return {.reduce = seconds(Collective::kReduceScatter, all, gradient),
            .gather = seconds(Collective::kAllGather, all, value)};
  cost::GroupShape near = all, far = all;
  near.ranks = sharers, near.per_node = std::min(all.per_node, sharers), near.groups = layout.gpus() / sharers;
  near.extent = static_cast<double>(layout.tp) * sharers;
  far.ranks = all.ranks / sharers, far.per_node = std::max(1, all.per_node / sharers);
  far.groups = layout.gpus() / far.ranks;
  return {.reduce = seconds(Collective::kReduceScatter, near, gradient) +
                    seconds(Collective::kAllReduce, far, gradient / sharers),
          .gather = seconds(Collective::kAllGather, near, value)};
}

/// Of all weights: experts have fewer copies, which lie further apart.
Exchange all_exchanges(const Hardware& hardware, const Job& job, const Layout& layout) {
  const cost::GroupShape group = replica_group(hardware, layout);
  const HeldWeights held = weights_of_fullest_stage(job, layout);
  const double gradient = wire_bytes_of_gradient(job.arithmetic);
  const double value = job.arithmetic == cost::Arithmetic::kFp32 ? 4 : 2;
  Exchange sum = exchange_seconds(hardware, layout, group, layout.sharers(), gradient * held.dense, value * held.dense);
  if (held.experts <= 0) return sum;
  cost::GroupShape copies = group;
  copies.ranks = group.ranks / layout.ep;
  copies.per_node = std::clamp(group.per_node / layout.ep, 1, std::max(1, copies.ranks));
  copies.groups = layout.gpus() / std::max(1, copies.ranks);
  return sum += exchange_seconds(hardware, layout, copies, layout.expert_sharers(), gradient * held.experts,
                                 value * held.experts);
}

/// What keeping the copies of the weights equal costs beside `pipeline` seconds of computing.
double replica_seconds(const Hardware& hardware, const Job& job, const Layout& layout, double pipeline,
                       double backward) {
  if (layout.dp * layout.cp == 1) return 0;
  const cost::Efficiency& efficiency = hardware.device.efficiency;
  const Exchange exchange = all_exchanges(hardware, job, layout);
  const auto micros = static_cast<double>(micros_of(job, layout));
  if (layout.zero == 3) {
    // Every micro-batch gathers every layer twice and reduces it once.
    const double moving = micros * (2 * exchange.gather + exchange.reduce) / efficiency.gather;
    return std::max(pipeline, moving) + (1 - efficiency.overlap) * std::min(pipeline, moving) - pipeline;
  }
  double moving = exchange.all_reduce, times = 1;
  if (layout.zero > 0) {
    // Sharded gradients are reduced whenever a chunk has seen a run of micro-batches: each one without a pipeline.
    if (layout.zero == 2) times = layout.pp == 1 ? micros : std::ceil(micros / layout.pp);
    moving = times * exchange.reduce + exchange.gather;
  }
  // They can hide behind what is still to be computed when the first gradients are final: the backward of the last
  // micro-batch; with several chunks, that of the last turn of micro-batches through all chunks but one.
  const double turns = layout.virtual_stages;
  const double window = backward * (1 + (layout.pp - 1) * (turns - 1)) / turns;
  return std::max(moving * (1 - efficiency.overlap), moving - times * std::max(backward, window));
}

/// Weights whose master weights and moments a rank updates.
double updated_weights(const Job& job, const Layout& layout) {
  const HeldWeights held = weights_of_fullest_stage(job, layout);
  if (layout.zero == 0) return held.dense + held.experts;
  return held.dense / layout.sharers() + held.experts / layout.expert_sharers();
}

double optimizer_seconds(const Hardware& hardware, const Job& job, const Layout& layout) {
  const double updated = updated_weights(job, layout);
  const double moved = optimizer_bytes(job.of_layers) * updated;  // tables are few beside layers
  if (layout.offload == Offload::kNone) return cost::stream_seconds(hardware, moved, 8);
  // The host updates: its memory streams what the device's would have, and new weights go up.
  const cost::Host& host = hardware.cluster.host;
  return moved / (host.memory_gb_per_s * 1e9 * hardware.device.efficiency.memory) +
         2 * updated / (host.link_gb_per_s * 1e9);
}

/// Gradients to the host for each micro-batch, and weights from it twice where they live there, as far as computing
/// does not hide them.
double offload_seconds(const Hardware& hardware, const Job& job, const Layout& layout, double pipeline) {
  if (layout.offload == Offload::kNone) return 0;
  const double updated = updated_weights(job, layout), link = hardware.cluster.host.link_gb_per_s * 1e9;
  const HeldWeights held = weights_of_fullest_stage(job, layout);
  // Sharded weights come up one shard to each rank, and are gathered between the devices (ZeRO-Infinity).
  const double weights = layout.zero >= 3 ? updated : held.dense + held.experts;
  const double bytes = 2 * updated + (layout.offload == Offload::kWeights ? 2 * 2 * weights : 0);
  const double moving = static_cast<double>(micros_of(job, layout)) * bytes / link;
  return std::max(moving - pipeline, (1 - hardware.device.efficiency.overlap) * moving);
}

}  // namespace

double hidden_message_seconds(const Hardware& hardware, const Job& job, const Layout& layout) {
  return message_of(hardware, job, layout).hidden;
}

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
  step.offload = offload_seconds(hardware, job, layout, computing);
  step.optimizer = optimizer_seconds(hardware, job, layout);
  return step;
}

}  // namespace trireme::plan
