// Where it is computed: parallelism, communication that overlaps, saved activations.
#include <fmt/format.h>

#include <cmath>

#include "trireme/spec/import/megatron/rows.h"

namespace trireme::spec::megatron {
namespace {

void take_virtual_stages(RecipeImport& in, const ForeignKey& given) {
  const double stages = in.number("pipeline-model-parallel-size", 1), layers = in.number("num-layers", 0);
  const double chunks = given.name == "num-virtual-stages-per-pipeline-rank" ? in.number(given.name)
                                                                             : layers / stages / in.number(given.name);
  if (chunks < 1 || chunks != std::floor(chunks)) {
    in.refuse(given, fmt::format("{} layers on {} stages are not whole chunks of that", layers, stages),
              "choose one that divides num-layers / pipeline-model-parallel-size");
    return;
  }
  in.set("pipeline.virtual_stages", static_cast<std::int64_t>(chunks), in.origin(given));
  if (chunks > 1) in.set_text("pipeline.schedule", "interleaved", in.origin(given));
}

void take_recompute(RecipeImport& in, const ForeignKey& given) {
  const std::string what = given.name == "recompute-activations" ? "selective" : in.text(given.name);
  if (what == "selective") {
    in.set_text("train.recompute", "selective", in.origin(given));
  } else if (what == "full") {
    const std::string method = in.text("recompute-method");
    const double layers = in.number("recompute-num-layers", 1);
    if (method == "block" || (method == "uniform" && layers != 1)) {
      in.refuse(
          given, fmt::format("--recompute-method {} with {} layers is not built here", method, layers),
          "take uniform with --recompute-num-layers 1, and set train.recompute to every, sqrt or budget afterwards");
      return;
    }
    in.set_text("train.recompute", "full", in.origin(given));
  } else {
    in.refuse(given, "no granularity that is here", "take full or selective");
  }
}

void take_distributed_optimizer(RecipeImport& in, const ForeignKey& given) {
  if (!in.is_set("layout.zero")) in.set("layout.zero", std::int64_t{1}, in.origin(given));
}

void take_fsdp(RecipeImport& in, const ForeignKey& given) {
  const std::string strategy = in.text("data-parallel-sharding-strategy");
  const std::int64_t stage = strategy == "optim" ? 1 : strategy == "optim_grads" ? 2 : 3;
  in.set("layout.zero", strategy == "no_shard" ? std::int64_t{0} : stage, in.origin(given));
}

void take_cp_comm_type(RecipeImport& in, const ForeignKey& given) {
  const std::string kind = in.text(given.name);
  const std::string ours = kind == "p2p" ? "ring" : kind == "all_gather" ? "gather" : kind == "a2a" ? "ulysses" : "";
  if (ours.empty()) {
    in.refuse(given, "no context parallelism that is here by that name", "take p2p, all_gather or a2a");
    return;
  }
  in.set_text("layout.cp_kind", ours, in.origin(given));
}

void take_timeout(RecipeImport& in, const ForeignKey& given) {
  in.set_text("comm.deadline", fmt::format("{}m", in.number(given.name)), in.origin(given));
}

constexpr std::string_view kOverlaps = "communication always overlaps where the schedule lets it";

const ImportRow kLayout[] = {
    // layout
    {.name = "tensor-model-parallel-size", .key = "layout.tp"},
    {.name = "pipeline-model-parallel-size", .key = "layout.pp"},
    {.name = "num-layers-per-virtual-pipeline-stage", .take = take_virtual_stages},
    {.name = "num-virtual-stages-per-pipeline-rank", .take = take_virtual_stages},
    {.name = "context-parallel-size", .key = "layout.cp"},
    {.name = "cp-comm-type", .take = take_cp_comm_type},
    {.name = "expert-model-parallel-size", .refuse = kMoe, .neutral = "1"},
    {.name = "expert-tensor-parallel-size", .refuse = kMoe, .neutral = "1"},
    {.name = "sequence-parallel", .key = "layout.sequence_parallel", .value = "true"},
    {.name = "use-distributed-optimizer", .take = take_distributed_optimizer},
    {.name = "use-torch-fsdp2", .take = take_fsdp},
    {.name = "use-custom-fsdp", .take = take_fsdp},
    {.name = "use-megatron-fsdp", .take = take_fsdp},
    {.name = "data-parallel-sharding-strategy", .take = take_with_others},
    {.name = "num-distributed-optimizer-instances",
     .refuse = "give layout.zero_group by --set: the ranks of one instance",
     .neutral = "1"},
    {.name = "overlap-grad-reduce", .without = kOverlaps},
    {.name = "overlap-param-gather", .without = kOverlaps},
    {.name = "overlap-param-gather-with-optimizer-step", .without = kOverlaps},
    {.name = "delay-grad-reduce", .without = kOverlaps},
    {.name = "no-async-tensor-model-parallel-allreduce", .without = kOverlaps},
    {.name = "no-overlap-p2p-communication", .without = "what overlaps follows from the schedule"},
    {.name = "overlap-p2p-communication-warmup-flush", .without = "what overlaps follows from the schedule"},
    {.name = "tp-comm-overlap", .key = "layout.tp_overlap", .value = "true"},
    {.name = "ddp-bucket-size",
     .take =
         [](RecipeImport& in, const ForeignKey& given) {
           in.set("layout.bucket_mb", in.number(given.name) * 4 / 1e6, in.origin(given) + ", elements of fp32");
         }},
    {.name = "no-scatter-gather-tensors-in-pipeline", .without = "pipeline.scatter_gather is off unless it is set"},
    {.name = "decoder-first-pipeline-num-layers", .refuse = "give pipeline.split by --set"},
    {.name = "decoder-last-pipeline-num-layers", .refuse = "give pipeline.split by --set"},
    {.name = "account-for-embedding-in-pipeline-split", .without = "pipeline.split = \"time\" measures it"},
    {.name = "account-for-loss-in-pipeline-split", .without = "pipeline.split = \"time\" measures it"},
    {.name = "use-tp-pp-dp-mapping", .key = "layout.order", .value = "\"dp pp cp tp\""},
    {.name = "distributed-backend", .without = "comm.transport is found out: NCCL between GPUs of processes"},
    {.name = "distributed-timeout-minutes", .take = take_timeout},
    {.name = "nccl-communicator-config-path", .refuse = "NCCL is set up by its own environment variables"},
    // activations
    {.name = "recompute-granularity", .take = take_recompute},
    {.name = "recompute-activations", .take = take_recompute},
    {.name = "recompute-method", .take = take_with_others},
    {.name = "recompute-num-layers", .take = take_with_others},
    {.name = "distribute-saved-activations", .key = "train.partition_activations", .value = "true"},
    {.name = "cpu-offloading-num-layers",
     .refuse = "give train.offload_activations by --set: all of them",
     .neutral = "0"},
};

}  // namespace

std::span<const ImportRow> layout_rows() { return kLayout; }

}  // namespace trireme::spec::megatron
