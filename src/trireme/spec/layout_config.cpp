#include "trireme/spec/layout_config.h"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/base/text.h"

namespace trireme::spec {
namespace {

constexpr Named<ContextKind> kContexts[] = {
    {"ring", ContextKind::kRing}, {"ulysses", ContextKind::kUlysses}, {"gather", ContextKind::kGather}};

constexpr Named<ReduceKind> kReduces[] = {{"fp32", ReduceKind::kFp32}, {"bf16", ReduceKind::kBf16}};

constexpr Named<OffloadKind> kOffloads[] = {{"none", OffloadKind::kNone}, {"optimizer", OffloadKind::kOptimizer}};

}  // namespace

std::span<const Named<ReduceKind>> enum_names(std::type_identity<ReduceKind>) { return kReduces; }
std::span<const Named<OffloadKind>> enum_names(std::type_identity<OffloadKind>) { return kOffloads; }
std::span<const Named<ContextKind>> enum_names(std::type_identity<ContextKind>) { return kContexts; }

void describe(config::Section<LayoutConfig>& section) {
  section.meaning("parallelism: how model, optimizer state and data are distributed over the ranks");
  section.field("dp", &LayoutConfig::dp, "data-parallel size (replicas of the model); unset: ranks / (tp * pp * cp)")
      .at_least(1);
  section.field("tp", &LayoutConfig::tp, "tensor-parallel size: ranks that shard each weight matrix").at_least(1);
  section.field("pp", &LayoutConfig::pp, "pipeline-parallel size: number of pipeline stages").at_least(1);
  section.field("cp", &LayoutConfig::cp, "context-parallel size: ranks that shard each sequence").at_least(1);
  section
      .field(
          "ep", &LayoutConfig::ep,
          "expert-parallel size: ranks of dp x cp, neighbours, that the experts of a layer are sharded over; divides "
          "experts.num_experts")
      .at_least(1);
  section
      .field("zero", &LayoutConfig::zero,
             "ZeRO stage, what data-parallel ranks shard: 0 nothing, 1 optimizer state, 2 gradients too, 3 weights too "
             "(FSDP)")
      .range(0, 3);
  section
      .field("zero_group", &LayoutConfig::zero_group,
             "data-parallel ranks in one ZeRO sharding group, replicated across groups (HSDP, MiCS); unset: all")
      .at_least(1);
  section.field("sequence_parallel", &LayoutConfig::sequence_parallel,
                "sequence parallelism: norms, dropout and residuals are sharded along the sequence over tp");
  section.field("cp_kind", &LayoutConfig::cp_kind,
                "context-parallel attention: ring attention, ulysses (all-to-all over heads), or gather (all-gather of "
                "keys and values)");
  section
      .field("cp_ulysses", &LayoutConfig::cp_ulysses,
             "of cp, ranks that use ulysses inside a ring or gather (hybrid context parallelism); divides cp")
      .at_least(1);
  section.field("order", &LayoutConfig::order,
                "rank order of the mesh axes, outermost first: neighbouring ranks differ in the last axis");
  section
      .field("bucket_mb", &LayoutConfig::bucket_mb,
             "size of a gradient bucket in MB (10^6 bytes); each is reduced while backward goes on; 0: one bucket")
      .at_least(0.0);
  section
      .field("first_bucket_mb", &LayoutConfig::first_bucket_mb,
             "size of the bucket that backward completes first, in MB: a small one starts communication early; unset: "
             "bucket_mb")
      .above(0);
  section
      .field("reduce_groups", &LayoutConfig::reduce_groups,
             "process groups of the same ranks that buckets are reduced over in turn (round-robin), each with its own "
             "order of calls")
      .range(1, 16);
  section.field("find_unused", &LayoutConfig::find_unused,
                "parameters may have no gradient in a step: ranks find out together which nobody used and leave those "
                "as they are");
  section.field("reduce", &LayoutConfig::reduce, "data type in which gradients are sent in reductions");
  section.field("tp_overlap", &LayoutConfig::tp_overlap,
                "with sequence_parallel: all-gather and reduce-scatter in chunks that overlap with the GEMMs");
  section.field("sp_save_gathered", &LayoutConfig::sp_save_gathered,
                "with sequence_parallel: save all-gathered inputs for backward instead of gathering them again: less "
                "communication, more memory");
  section.field("dp_batch_weights", &LayoutConfig::dp_batch_weights,
                "relative share of the global batch for each data-parallel rank, for ranks of different speed; empty: "
                "equal shares");
  section.field("offload", &LayoutConfig::offload,
                "what lives in host memory; optimizer: master weights, optimizer state and reduced gradients, and the "
                "update runs on the CPU (ZeRO-Offload)");
  section.field("delayed_update", &LayoutConfig::delayed_update,
                "with offload: the update overlaps with the next step, which computes with weights one step old "
                "(delayed parameter update)");
  section
      .field("offload_warmup", &LayoutConfig::offload_warmup,
             "with delayed_update: steps at the start of training whose updates are not delayed")
      .at_least(0);
  section.retired("cp_inner", "cp_ulysses");
  section.retired("keep_gathered", "sp_save_gathered");
  section.retired("shares", "dp_batch_weights");
  section.retired("offload_delay", "delayed_update");
}

void describe(config::Section<PipelineConfig>& section) {
  section.meaning("pipeline schedule and how the model is split into stages");
  section.field("schedule", &PipelineConfig::schedule,
                "pipeline schedule: gpipe, 1f1b, interleaved, zb-h1, dualpipe, chimera, pipedream, ...: all are listed "
                "by `trireme schedule list`");
  section
      .field("virtual_stages", &PipelineConfig::virtual_stages,
             "virtual pipeline stages (model chunks) of each rank, for interleaved schedules")
      .at_least(1);
  section
      .field("drain_every", &PipelineConfig::drain_every,
             "steps between pipeline flushes; checkpoints and evaluations happen only at a flush; unset: 1, for "
             "asynchronous schedules as many as lie between evaluations and checkpoints")
      .at_least(1);
  section.field(
      "split", &PipelineConfig::split,
      "how layers are assigned to stages: count (equal layers), size (equal parameters), time (equal measured "
      "time), pipedream (its planner; a stage may have several ranks), or the entries at which chunks begin: "
      "layers.3,layers.5; size:2,1 and time:2,1 for stages on ranks of these relative speeds; with schedule hetpipe "
      "also one for each virtual worker, size:2,1;size:1,2");
  section.field("stage_ranks", &PipelineConfig::stage_ranks,
                "ranks of each stage, which deal its micro-batches out in turn (PipeDream's replicated stages), with "
                "schedule 1f1b or pipedream: [3, 1]; empty: one rank a stage, or what split = \"pipedream\" finds");
  section.field(
      "overlap_experts", &PipelineConfig::overlap_experts,
      "with layout.ep: while rows of one micro-batch are on their way to experts or back, the rank computes the "
      "other of an overlapped pair (dualpipe, dualpipe-v); false: it waits");
  section.field("scatter_gather", &PipelineConfig::scatter_gather,
                "with tp: each rank sends 1/tp of what crosses to the next stage, whose ranks all-gather it: the links "
                "between stages carry it once instead of tp times");
}

std::vector<config::Problem> find_problems(const LayoutConfig& layout, std::optional<int> ranks) {
  std::vector<config::Problem> problems;
  const std::int64_t copy = layout.ranks_per_copy();
  if (ranks && layout.dp && copy * *layout.dp != *ranks) {
    problems.push_back({.key = "layout",
                        .reason = fmt::format("tp {} x pp {} x cp {} x dp {} = {}, but comm.ranks = {}", layout.tp,
                                              layout.pp, layout.cp, *layout.dp, copy * *layout.dp, *ranks),
                        .hint = fmt::format("set comm.ranks = {}", copy * *layout.dp)});
  } else if (ranks && *ranks % copy != 0) {
    problems.push_back({.key = "layout",
                        .reason = fmt::format("a replica of the model takes tp {} x pp {} x cp {} = {} ranks, which "
                                              "does not divide comm.ranks = {}",
                                              layout.tp, layout.pp, layout.cp, copy, *ranks),
                        .hint = fmt::format("set comm.ranks = {}", copy * std::max<std::int64_t>(1, *ranks / copy))});
  }
  if (layout.zero_group && layout.dp && *layout.dp % *layout.zero_group != 0)
    problems.push_back({.key = "layout.zero_group",
                        .reason = fmt::format("{} does not divide layout.dp = {}", *layout.zero_group, *layout.dp),
                        .hint = fmt::format("set layout.zero_group = {}", *layout.dp)});
  std::vector<std::string> axes = split(layout.order, ' ');
  std::ranges::sort(axes);
  if (axes != std::vector<std::string>{"cp", "dp", "pp", "tp"})
    problems.push_back({.key = "layout.order",
                        .reason = fmt::format("\"{}\" does not name each mesh axis once", layout.order),
                        .hint = "set layout.order = \"pp dp cp tp\", in any order"});
  if (std::ranges::any_of(layout.dp_batch_weights, [](double share) { return !(share > 0); }))
    problems.push_back({.key = "layout.dp_batch_weights",
                        .reason = "holds a weight that is not above 0",
                        .hint = "give each data-parallel rank its relative speed, for instance [2.0, 1.0]"});
  if (!layout.delayed_update && layout.offload_warmup != LayoutConfig{}.offload_warmup)
    problems.push_back({.key = "layout.offload_warmup",
                        .reason = "is given, but layout.delayed_update is false",
                        .hint = "set layout.delayed_update = true"});
  return problems;
}

}  // namespace trireme::spec
