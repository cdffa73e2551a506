#include "trireme/plan/step_time.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/cost/group_time.h"
#include "trireme/cost/roofline.h"
#include "trireme/plan/makespan.h"
#include "trireme/spec/rules.h"

namespace trireme::plan {
namespace {

using cost::Collective;
using cost::Hardware;

/// Adam over master weights, moments and gradients, with the norm of the gradients first: reads and writes of fp32
/// numbers, and of the weights in sixteen bits. Narrower gradients are passed over three times, moments read and
/// written, and weights without master weights too.
constexpr double kOptimizerBytes = 42;
double optimizer_bytes(const Job& job) {
  const bool master_weights = job.precision.master_weights == spec::MasterWeights::kFp32;
  const double gradient = spec::has_narrow_gradients(job.precision) || !master_weights ? job.compute_bytes() : 4;
  const double moment = job.optim.state_dtype == spec::StateDtype::kBf16 ? 2 : 4;
  return kOptimizerBytes - 3 * (4 - gradient) - 2 * 2 * (4 - moment) - (master_weights ? 0 : 6);
}

/// Messages between stages. Every rank of a tensor-parallel group sends its own part of the activations through its own
/// adapter; those that need the whole gather it inside the node (Narayanan et al. 2021, section 4.1).
struct Message {
  double exposed = 0, hidden = 0;
};

Message message_of(const Hardware& hardware, const Job& job, const ParallelConfig& config) {
  const spec::LayoutConfig& layout = config.layout;
  if (layout.pp == 1) return {};
  const double bytes = job.compute_bytes() * static_cast<double>(config.micro_batch_size * job.seq_len) / layout.cp *
                       static_cast<double>(job.shape.hidden_size);
  const bool across = config.ranks() > hardware.cluster.gpus_per_node;
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

/// Weights are the same along a sequence, and in both directions of a pipeline that has two, so gradients are summed
/// over those too.
cost::GroupShape replica_group(const Hardware& hardware, const ParallelConfig& config, int directions) {
  const int ranks = config.replicas() * directions;
  return {.ranks = ranks,
          .per_node = std::clamp(hardware.cluster.gpus_per_node / config.layout.tp, 1, config.replicas()),
          .groups = config.ranks() / ranks,
          .extent = static_cast<double>(config.layout.tp) * ranks};
}

/// Bytes of a gradient on the wire: fp16 runs reduce what they computed, bf16 runs, whose numbers are coarser, reduce
/// in fp32 (as Megatron-LM and Llama 3 do) unless the recipe says otherwise.
double wire_bytes_of_gradient(const Job& job) {
  return job.precision.compute == spec::Precision::kFp16 || spec::has_narrow_gradients(job.precision) ? 2 : 4;
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
Exchange exchange_seconds(const Hardware& hardware, const ParallelConfig& config, const cost::GroupShape& all,
                          int sharers, double gradient, double value) {
  const auto seconds = [&](Collective op, const cost::GroupShape& group, double bytes) {
    return cost::group_seconds(hardware, op, group, bytes);
  };
  if (config.layout.zero == 0) return {.all_reduce = seconds(Collective::kAllReduce, all, gradient)};
  if (sharers >= all.ranks)
    return {.reduce = seconds(Collective::kReduceScatter, all, gradient),
            .gather = seconds(Collective::kAllGather, all, value)};
  cost::GroupShape near = all, far = all;
  near.ranks = sharers, near.per_node = std::min(all.per_node, sharers), near.groups = config.ranks() / sharers;
  near.extent = static_cast<double>(config.layout.tp) * sharers;
  far.ranks = all.ranks / sharers, far.per_node = std::max(1, all.per_node / sharers);
  far.groups = config.ranks() / far.ranks;
  return {.reduce = seconds(Collective::kReduceScatter, near, gradient) +
                    seconds(Collective::kAllReduce, far, gradient / sharers),
          .gather = seconds(Collective::kAllGather, near, value)};
}

/// Of all weights: experts have fewer copies, which lie further apart.
Exchange all_exchanges(const Hardware& hardware, const Job& job, const ParallelConfig& config, const Computing& held) {
  const cost::GroupShape group = replica_group(hardware, config, held.directions);
  const double gradient = config.layout.reduce == spec::ReduceKind::kBf16 ? 2 : wire_bytes_of_gradient(job);
  const double value = job.compute_bytes();
  Exchange sum =
      exchange_seconds(hardware, config, group, config.zero_ranks(), gradient * held.dense, value * held.dense);
  if (held.experts <= 0) return sum;
  const int ep = config.layout.ep;
  cost::GroupShape copies = group;
  copies.ranks = group.ranks / ep;
  copies.per_node = std::clamp(group.per_node / ep, 1, std::max(1, copies.ranks));
  copies.groups = config.ranks() / std::max(1, copies.ranks);
  return sum += exchange_seconds(hardware, config, copies, std::max(1, config.zero_ranks() / ep),
                                 gradient * held.experts, value * held.experts);
}

/// Predicted weights of a step: one version for forwards and one for backwards.
double predictions(const std::string& schedule) { return schedule == "spectrain" || schedule == "xpipe" ? 2 : 0; }

/// What keeping the copies of the weights equal costs beside `pipeline` seconds of computing.
double replica_seconds(const Hardware& hardware, const Job& job, const ParallelConfig& config, const Computing& held) {
  if (config.replicas() * held.directions == 1) return 0;
  const spec::LayoutConfig& layout = config.layout;
  const cost::Efficiency& efficiency = hardware.device.efficiency;
  const Exchange exchange = all_exchanges(hardware, job, config, held);
  const auto micros = static_cast<double>(config.micros(job.batch));
  if (layout.zero == 3) {
    // Every micro-batch gathers every layer twice and reduces it once.
    const double moving = micros * (2 * exchange.gather + exchange.reduce) / efficiency.gather;
    return std::max(held.pipeline, moving) + (1 - efficiency.overlap) * std::min(held.pipeline, moving) - held.pipeline;
  }
  double moving = exchange.all_reduce, times = 1;
  if (layout.zero > 0) {
    // Sharded gradients are reduced whenever a chunk has seen a run of micro-batches: each one without a pipeline.
    if (layout.zero == 2) times = layout.pp == 1 ? micros : std::ceil(micros / layout.pp);
    // What weights are predicted from is sharded, so predictions are gathered too.
    moving = times * exchange.reduce + (1 + predictions(config.pipeline.schedule)) * exchange.gather;
  }
  // They can hide behind what is still to be computed when the first gradients are final: the backward of the last
  // micro-batch; with several chunks, that of the last turn of micro-batches through all chunks but one.
  const double turns = chunks_per_rank(config);
  const double window = held.backward * (1 + (layout.pp - 1) * (turns - 1)) / turns;
  return std::max(moving * (1 - efficiency.overlap), moving - times * std::max(held.backward, window));
}

/// Weights whose master weights and moments a rank updates.
double updated_weights(const ParallelConfig& config, const Computing& held) {
  if (config.layout.zero == 0) return held.dense + held.experts;
  const double sharers = config.zero_ranks();
  return held.dense / sharers + held.experts / std::max(1.0, sharers / config.layout.ep);
}

double optimizer_seconds(const Hardware& hardware, const Job& job, const ParallelConfig& config,
                         const Computing& held) {
  const double updated = updated_weights(config, held);
  const double moved = optimizer_bytes(job) * updated;  // tables are few beside layers
  if (config.layout.offload == spec::OffloadKind::kNone) return cost::stream_seconds(hardware, moved, 8);
  // The host updates: its memory streams what the device's would have, and new weights go up.
  const cost::Host& host = hardware.cluster.host;
  return moved / (host.memory_gb_per_s * 1e9 * hardware.device.efficiency.memory) +
         job.compute_bytes() * updated / (host.link_gb_per_s * 1e9);
}

/// Gradients to the host, as far as computing does not hide them: once a step, and with ZeRO 2 and 3, whose gradients
/// leave as they are reduced, with each micro-batch.
double offload_seconds(const Hardware& hardware, const Job& job, const ParallelConfig& config, const Computing& held) {
  if (config.layout.offload == spec::OffloadKind::kNone) return 0;
  const double times = config.layout.zero >= 2 ? static_cast<double>(config.micros(job.batch)) : 1;
  const double moving =
      times * job.compute_bytes() * updated_weights(config, held) / (hardware.cluster.host.link_gb_per_s * 1e9);
  return std::max(moving - held.pipeline, (1 - hardware.device.efficiency.overlap) * moving);
}

/// Kinds whose bubble is that of 1F1B over their chunks.
bool waits_as_1f1b(const std::string& schedule) {
  return schedule == "1f1b" || schedule == "gpipe" || schedule == "interleaved" || schedule == "breadth-first";
}

/// Layers that run again: all, or those that the schedule says.
double recompute_passes(const LayerPasses& passes, const StageLoad& load) {
  return passes.recomputes_stages ? load.recompute_passes : load.layer_passes;
}

}  // namespace

ChunkTime LayerPasses::of(const spec::ChunkShare& share) const {
  ChunkTime time;
  time.forward = share.layers * layer.forward.total();
  time.backward = share.layers * layer.backward.total();
  (recomputes_stages ? time.recompute : time.backward) += share.layers * layer.recompute.total();
  time.backward_weight = share.layers * layer.backward_weight;
  if (layer.dispatch > 0) {
    time.dispatch = share.layers * layer.dispatch;
    time.experts = layer.experts / (layer.forward.total() - layer.dispatch);
    time.mixtures = std::max(1, static_cast<int>(std::lround(share.layers * mixed)));
  }
  if (share.embedding) time.forward += embedding.forward.total(), time.backward += embedding.backward.total();
  if (share.head) time.forward += head.forward.total(), time.backward += head.backward.total();
  time.message = message;
  return time;
}

LayerPasses layer_passes(const Hardware& hardware, const Job& job, const ParallelConfig& config) {
  const Message message = message_of(hardware, job, config);
  return {.layer = layer_times(hardware, job, config),
          .embedding = embedding_times(hardware, job, config),
          .head = head_times(hardware, job, config),
          .message = message.exposed,
          .hidden_message = message.hidden,
          .recomputes_stages = config.recompute == spec::RecomputeKind::kStage,
          .mixed = static_cast<double>(spec::expert_layers(job.shape)) / layers_of(job.shape)};
}

std::vector<ChunkTime> chunk_times(const LayerPasses& passes, const std::vector<spec::ChunkShare>& chunks) {
  std::vector<ChunkTime> times;
  for (const spec::ChunkShare& share : chunks) times.push_back(passes.of(share));
  return times;
}

std::vector<schedule::Times> pass_times(const LayerPasses& passes, const schedule::Schedule& table,
                                        const std::vector<spec::ChunkShare>& chunks) {
  std::vector<schedule::Times> times;
  for (const ChunkTime& one : chunk_times(passes, chunks))
    times.push_back(one.passes().scaled(1.0 / table.micro_parts));
  return times;
}

double busy_seconds(const LayerPasses& passes, const StageLoad& load) {
  const auto both = [](const PassTimes& times) { return (times.forward + times.backward).total(); };
  return load.layer_passes * both(passes.layer) + recompute_passes(passes, load) * passes.layer.recompute.total() +
         load.embedding_passes * both(passes.embedding) + load.head_passes * both(passes.head) +
         2 * load.chunk_passes * passes.message;
}

double pipeline_closed_form(const ParallelConfig& config, std::int64_t micros, const LayerPasses& passes,
                            const std::vector<StageLoad>& loads, ScheduleCache& schedules) {
  double sum = 0, most = 0;
  for (const StageLoad& load : loads) {
    const double busy = busy_seconds(passes, load);
    sum += busy;
    most = std::max(most, busy);
  }
  const int stages = config.layout.pp;
  if (stages == 1) return most;
  const double others = (sum - most) / static_cast<double>(micros);  // one micro-batch on all stages but the slowest
  if (waits_as_1f1b(config.pipeline.schedule)) return most + others / chunks_per_rank(config);
  const PassTimes& layer = passes.layer;  // which nearly all of a pass is
  const double idle = schedules.idle(
      config, {.forward = layer.forward.total(),
               .backward_input = layer.backward.total() + layer.recompute.total() - layer.backward_weight,
               .backward_weight = layer.backward_weight});
  return most + others / (stages - 1) * idle;
}

double pipeline_replayed(const Job& job, const ParallelConfig& config, const LayerPasses& passes,
                         ScheduleCache& schedules) {
  const std::int64_t micros = config.micros(job.batch);
  const std::size_t splits = spec::worker_splits(config.pipeline.split).size();
  const auto seconds = [&](const schedule::Schedule& table) {
    double slowest = 0;  // of virtual workers, which wait for each other
    for (std::size_t worker = 0; worker < splits; ++worker) {
      const auto chunks = spec::chunk_shares(job.shape, config.pipeline, table.chunks(), static_cast<int>(worker));
      const std::vector<schedule::Times> times = pass_times(passes, table, chunks);
      slowest = std::max(slowest, makespan(config.pipeline.overlap_experts ? pairs_in_parts(table, times) : table,
                                           times, passes.hidden_message));
    }
    return slowest;
  };
  if (!is_asynchronous(config)) return seconds(schedules.table(config, micros));
  const int steps = steps_to_settle(config, micros);
  const double further = seconds(stage_table(config, micros, 2 * steps)) - seconds(stage_table(config, micros, steps));
  // Where two ranks are about as slow, so few steps may still be led by the one that is behind at first; in the end a
  // step takes what the slower one computes.
  double busiest = 0;
  for (const StageLoad& load : schedules.loads(config).all) busiest = std::max(busiest, busy_seconds(passes, load));
  return std::max(further / steps, busiest);
}

Computing computing_of(const Job& job, const ParallelConfig& config, const LayerPasses& passes,
                       const std::vector<StageLoad>& loads, const WeightCounts& weights, double pipeline) {
  const auto busy = [&](const StageLoad& load) { return busy_seconds(passes, load); };
  const StageLoad& slowest = *std::ranges::max_element(loads, {}, busy);
  Computing out{.pipeline = pipeline};
  StepTime& step = out.time;
  const double again = recompute_passes(passes, slowest);
  step.work = slowest.layer_passes * (passes.layer.forward + passes.layer.backward);
  step.work += again * passes.layer.recompute;
  step.work += slowest.embedding_passes * passes.embedding.all();
  step.work += slowest.head_passes * passes.head.all();
  step.recompute = again * passes.layer.recompute.total();
  step.pipeline = 2 * slowest.chunk_passes * passes.message;
  step.bubble = pipeline - step.work.total() - step.pipeline;
  if (step.bubble < 0) {
    // Rows of experts that travelled beside the other pass of a pair, of which no rank waited.
    const double hidden = std::min(-step.bubble, 2 * slowest.layer_passes * passes.layer.dispatch);
    step.work.communication -= hidden;
    step.bubble += hidden;
  }
  TRIREME_CHECK(step.bubble >= -1e-9 * pipeline, "a bubble of {} s in a pipeline of {} s: {}", step.bubble, pipeline,
                to_text(config));
  const auto micros = static_cast<double>(config.micros(job.batch));
  const auto back = [&](double times, const PassTimes& passed) {
    return times / micros * (passed.backward.total() + passed.recompute.total());
  };
  out.backward = back(slowest.layer_passes, passes.layer) + back(slowest.head_passes, passes.head) +
                 back(slowest.embedding_passes, passes.embedding);
  int layers = 0;
  const double tp = config.layout.tp;
  for (const StageLoad& load : loads) {
    const double dense =
        load.layers * weights.layer + load.embeddings * weights.embedding + load.heads * (weights.mtp + weights.head);
    out.dense = std::max(out.dense, dense / tp);
    out.experts = std::max(
        out.experts, (load.layers * weights.experts + load.heads * weights.mtp_experts) / weights.expert_ranks(config));
    layers += load.layers;
  }
  out.directions = std::max(1, layers / layers_of(job.shape));
  return out;
}

StepTime finish_step(const Hardware& hardware, const Job& job, const ParallelConfig& config,
                     const Computing& computing) {
  StepTime step = computing.time;
  step.replicas = replica_seconds(hardware, job, config, computing);
  step.offload = offload_seconds(hardware, job, config, computing);
  step.optimizer = optimizer_seconds(hardware, job, config, computing);
  return step;
}

StepTime estimate_step(const Hardware& hardware, const Job& job, const ParallelConfig& config, Pipeline pipeline,
                       ScheduleCache& schedules) {
  const LayerPasses passes = layer_passes(hardware, job, config);
  const std::vector<StageLoad>& loads = schedules.loads(config).all;
  const bool replays = pipeline == Pipeline::kReplay && config.layout.pp > 1;
  const double pipeline_seconds =
      replays ? pipeline_replayed(job, config, passes, schedules)
              : pipeline_closed_form(config, config.micros(job.batch), passes, loads, schedules);
  StepTime step = finish_step(hardware, job, config,
                              computing_of(job, config, passes, loads, count_weights(job), pipeline_seconds));
  step.replayed = replays;
  return step;
}

StepTime estimate_step(const Hardware& hardware, const Job& job, const ParallelConfig& config, Pipeline pipeline) {
  ScheduleCache schedules(job);
  return estimate_step(hardware, job, config, pipeline, schedules);
}

}  // namespace trireme::plan
