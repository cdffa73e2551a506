// What becomes of the keys of a DeepSpeed configuration (ds_config.json). DeepSpeed's file knows neither model nor data
// nor the length of the run: those come by --set, or are added to the recipe.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "trireme/base/units.h"
#include "trireme/spec/import/import.h"

namespace trireme::spec {
namespace {

using config::Node;

void ds_optimizer(RecipeImport& in, const ForeignKey& given) {
  if (!in.has("optimizer.params.lr")) in.set("optim.learning_rate", 1e-3, "optimizer.params.lr, its default");
  std::string kind = given.value.text;
  std::ranges::transform(kind, kind.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  if (kind == "adam" || kind == "adamw" || kind == "cpuadam" || kind == "deepspeedcpuadam" || kind == "fusedadam") {
    // DeepSpeed's Adam has decoupled weight decay unless adam_w_mode is false.
    const bool coupled =
        kind != "adamw" && in.has("optimizer.params.adam_w_mode") && in.text("optimizer.params.adam_w_mode") == "false";
    in.set_text("optim.kind", coupled ? "adam" : "adamw", given.name);
  } else if (kind == "lamb" || kind == "fusedlamb") {
    in.set_text("optim.kind", "lamb", given.name);
  } else if (kind == "sgd") {
    in.set_text("optim.kind", "sgd", given.name);
  } else if (kind == "adagrad" || kind == "deepspeedcpuadagrad") {
    in.set_text("optim.kind", "adagrad", given.name);
  } else if (kind == "onebitadam" || kind == "zerooneadam") {
    in.refuse(given, "DeepSpeed's does not correct moments; here it is AdamW, which does, with compressed momentum",
              fmt::format("set it to AdamW, and compress.kind = \"{}\" in the recipe",
                          kind == "onebitadam" ? "onebit-adam" : "zero-one-adam"));
  } else if (kind == "onebitlamb") {
    in.refuse(given, "1-bit LAMB is not built here", "set it to Lamb");
  } else {
    in.refuse(given, "no optimizer that is here", "take Adam, AdamW, Lamb, SGD or Adagrad");
  }
}

void ds_betas(RecipeImport& in, const ForeignKey& given) {
  if (given.value.kind != Node::Kind::kList || given.value.items.size() != 2) {
    in.refuse(given, "should be a list of two numbers", "write [0.9, 0.999]");
    return;
  }
  in.set("optim.beta1", foreign_text(given.value.items[0]), given.name);
  in.set("optim.beta2", foreign_text(given.value.items[1]), given.name);
}

/// DeepSpeed's own default is another one than the recipe's, which follows the length of the run.
void ds_layer_keep(RecipeImport& in, const ForeignKey& given) {
  in.set("train.layer_keep", foreign_text(given.value), given.name);
  if (!in.has("progressive_layer_drop.gamma")) in.set("train.layer_keep_gamma", "0.001", given.name);
}

void ds_momentum(RecipeImport& in, const ForeignKey& given) {
  in.set("optim.momentum", foreign_text(given.value), given.name);
}

void ds_scheduler(RecipeImport& in, const ForeignKey& given) {
  const std::string kind = given.value.text;
  const std::string schedule = kind == "WarmupLR"         ? "constant"
                               : kind == "WarmupDecayLR"  ? "linear"
                               : kind == "WarmupCosineLR" ? "cosine"
                                                          : "";
  if (schedule.empty()) {
    in.refuse(given, "no schedule that is here", "take WarmupLR, WarmupDecayLR or WarmupCosineLR");
    return;
  }
  in.set_text("lr_schedule.kind", schedule, given.name);
  if (!in.has("scheduler.params.warmup_type") && kind != "WarmupCosineLR") {
    in.note("scheduler.params.warmup_type is absent: DeepSpeed's warm-up is then logarithmic, here it is linear");
  }
}

void ds_warmup_max(RecipeImport& in, const ForeignKey& given) {
  // The schedule's own peak beats the optimizer's rate, as in DeepSpeed.
  in.set("optim.learning_rate", foreign_text(given.value), given.name);
}

void ds_cosine_minimum(RecipeImport& in, const ForeignKey& given) {
  in.set("lr_schedule.minimum", foreign_text(given.value), given.name);
}

void ds_enabled_type(RecipeImport& in, const ForeignKey& given) {
  const bool half = given.name.starts_with("fp16");
  if (!in.flag(given.name)) {
    in.without_effect(given, "not asked for");
    return;
  }
  if (in.flag("fp16.enabled") && (in.flag("bf16.enabled") || in.flag("bfloat16.enabled"))) {
    in.refuse(given, "fp16 and bf16 are both enabled", "disable one of them");
    return;
  }
  in.set_text("precision.compute", half ? "fp16" : "bf16", given.name);
}

void ds_loss_scale(RecipeImport& in, const ForeignKey& given) {
  if (in.number(given.name) == 0) {
    in.without_effect(given, "0 is dynamic loss scaling, which is the only kind here");
  } else {
    in.refuse(given, "a loss scale that stays the same is not built here", "set it to 0: dynamic loss scaling");
  }
}

void ds_scale_power(RecipeImport& in, const ForeignKey& given) {
  in.set("precision.loss_scale.initial", std::exp2(in.number(given.name)), given.name + ", a power of two");
}

void ds_min_scale(RecipeImport& in, const ForeignKey& given) {
  in.set("precision.loss_scale.minimum", in.number(given.name), given.name);
}

void ds_bucket(RecipeImport& in, const ForeignKey& given) {
  constexpr double kBytes = 4;  // gradients are fp32 here
  in.set("layout.bucket_mb", in.number(given.name) * kBytes / 1e6, given.name + ", elements of fp32");
}

void ds_offload_optimizer(RecipeImport& in, const ForeignKey& given) {
  const std::string device =
      given.value.kind == Node::Kind::kBool ? (given.value.boolean ? "cpu" : "none") : given.value.text;
  if (device == "cpu") {
    in.set_text("layout.offload", "optimizer", given.name);
  } else if (device == "none") {
    in.without_effect(given, "not asked for");
  } else {
    in.refuse(given, "optimizer state on disks (ZeRO-Infinity) is not built here", "set it to \"cpu\" or \"none\"");
  }
}

void ds_mics(RecipeImport& in, const ForeignKey& given) {
  if (in.number(given.name) <= 0) {
    in.without_effect(given, "not asked for");
    return;
  }
  in.set("layout.zero_group", static_cast<std::int64_t>(in.number(given.name)), given.name);
}

void ds_communication_type(RecipeImport& in, const ForeignKey& given) {
  const std::string type = given.value.text;
  if (type == "fp32" || type == "bfp16" || type == "bf16") {
    in.set_text("layout.reduce", type == "fp32" ? "fp32" : "bf16", given.name);
  } else {
    in.refuse(given, "gradients are reduced in fp32 or bf16 here", "set it to \"fp32\" or \"bfp16\"");
  }
}

void ds_accumulation_type(RecipeImport& in, const ForeignKey& given) {
  const std::string type = given.value.text;
  if (type != "fp32" && type != "bf16" && type != "fp16") {
    in.refuse(given, "gradients are accumulated in fp32, bf16 or fp16", "set it to \"fp32\"");
    return;
  }
  in.set_text("precision.gradients", type, given.name);
}

void ds_saved_inputs(RecipeImport& in, const ForeignKey& given) {
  if (!in.flag(given.name)) {
    in.without_effect(given, "not asked for");
    return;
  }
  const bool contiguous = given.name.ends_with("contiguous_memory_optimization");
  if (contiguous && in.flag("activation_checkpointing.cpu_checkpointing")) {
    in.without_effect(given, "saved inputs wait on the host");
    return;
  }
  const char* key = given.name.ends_with("partition_activations") ? "train.partition_activations"
                    : given.name.ends_with("cpu_checkpointing")   ? "train.offload_activations"
                                                                  : "train.contiguous_activations";
  in.set(key, "true", given.name);
  in.set_text("train.recompute", "full", given.name + " is about recomputed blocks; DeepSpeed's model says which");
}

void ds_pipeline_stages(RecipeImport& in, const ForeignKey& given) {
  in.set("layout.pp", static_cast<std::int64_t>(in.number(given.name, 1)), given.name);
}

constexpr std::string_view kLogs = "what a run logs is in its folder: metrics.jsonl, TensorBoard files, report";
constexpr std::string_view kGathers =
    "when shards of weights are gathered follows from the order of layers; there is nothing to set";
constexpr std::string_view kHostBuffers = "pinned host buffers are sized by what is offloaded";
constexpr std::string_view kDataPath = "how data is loaded is [data]'s";

const ImportRow kDeepSpeedRows[] = {
    {.name = "train_batch_size", .take = [](RecipeImport&, const ForeignKey&) {}},  // finish: needs the others
    {.name = "train_micro_batch_size_per_gpu", .key = "train.micro_batch_size"},
    {.name = "gradient_accumulation_steps", .key = "train.gradient_accumulation_steps"},
    {.name = "optimizer.type", .take = ds_optimizer},
    {.name = "optimizer.params.lr", .key = "optim.learning_rate"},
    {.name = "optimizer.params.betas", .take = ds_betas},
    {.name = "optimizer.params.eps", .key = "optim.epsilon"},
    {.name = "optimizer.params.weight_decay", .key = "optim.weight_decay"},
    {.name = "optimizer.params.momentum", .take = ds_momentum},
    {.name = "optimizer.params.nesterov", .key = "optim.nesterov"},
    {.name = "optimizer.params.adam_w_mode", .without = "decides between adam and adamw, see optim.kind"},
    {.name = "optimizer.params.torch_adam", .without = "the update is one kernel here, whichever is asked for"},
    {.name = "optimizer.params.fused", .without = "the update is fused here"},
    {.name = "optimizer.params.bias_correction", .refuse = "moments are always corrected here", .neutral = "true"},
    {.name = "optimizer.params.amsgrad", .refuse = "AMSGrad is not built here", .neutral = "false"},
    {.name = "optimizer.params.max_coeff", .refuse = "the bound of LAMB's trust ratio is not built here"},
    {.name = "optimizer.params.min_coeff", .refuse = "the bound of LAMB's trust ratio is not built here"},
    {.name = "optimizer.params.freeze_step", .refuse = "of 1-bit optimizers: compress.freeze_after in the recipe"},
    {.name = "optimizer.params.cuda_aware", .without = "of 1-bit optimizers: comm.transport says what carries them"},
    {.name = "optimizer.params.comm_backend_name",
     .without = "of 1-bit optimizers: comm.transport says what carries them"},
    {.name = "optimizer.legacy_fusion", .without = "how the update is fused is not a choice here"},
    {.name = "scheduler.type", .take = ds_scheduler},
    {.name = "scheduler.params.warmup_min_lr", .key = "lr_schedule.warmup_from"},
    {.name = "scheduler.params.warmup_max_lr", .take = ds_warmup_max},
    {.name = "scheduler.params.warmup_num_steps", .key = "lr_schedule.warmup"},
    {.name = "scheduler.params.total_num_steps", .key = "lr_schedule.total"},
    {.name = "scheduler.params.warmup_type", .refuse = "warm-up is linear here", .neutral = "linear"},
    {.name = "scheduler.params.cos_min_ratio", .take = ds_cosine_minimum},
    {.name = "scheduler.params.warmup_min_ratio",
     .refuse = "warm-up begins at a rate, not at a share of it",
     .neutral = "0|0.0"},
    {.name = "scheduler.params.last_batch_iteration", .refuse = "a schedule begins with its run", .neutral = "-1"},
    {.name = "gradient_clipping", .key = "optim.grad_clip_norm"},
    {.name = "communication_data_type", .take = ds_communication_type},
    {.name = "data_types.grad_accum_dtype", .take = ds_accumulation_type},
    {.name = "gradient_accumulation_dtype", .take = ds_accumulation_type},
    {.name = "prescale_gradients",
     .refuse = "gradients are divided by tokens after the sum, exactly",
     .neutral = "false"},
    {.name = "gradient_predivide_factor",
     .refuse = "gradients are divided by tokens after the sum, exactly",
     .neutral = "1|1.0"},
    {.name = "sparse_gradients", .refuse = "sparse gradients of embeddings are not built here", .neutral = "false"},
    {.name = "disable_allgather", .without = "which collective shards are gathered by is chosen by cost"},
    {.name = "fp16.enabled", .take = ds_enabled_type},
    {.name = "fp16.auto_cast", .without = "layers take the compute type by themselves"},
    {.name = "fp16.loss_scale", .take = ds_loss_scale, .enabled_by = "fp16.enabled"},
    {.name = "fp16.initial_scale_power", .take = ds_scale_power, .enabled_by = "fp16.enabled"},
    {.name = "fp16.loss_scale_window", .key = "precision.loss_scale.interval", .enabled_by = "fp16.enabled"},
    {.name = "fp16.hysteresis",
     .refuse = "an overflow lowers the scale at once here",
     .neutral = "1",
     .enabled_by = "fp16.enabled"},
    {.name = "fp16.consecutive_hysteresis", .without = "there is no hysteresis to renew", .enabled_by = "fp16.enabled"},
    {.name = "fp16.min_loss_scale", .take = ds_min_scale, .enabled_by = "fp16.enabled"},
    {.name = "fp16.fp16_master_weights_and_grads",
     .refuse = "fp16 has fp32 master weights here",
     .neutral = "false",
     .enabled_by = "fp16.enabled"},
    {.name = "fp16.opt_level", .without = "a key of NVIDIA's Apex, which is not used", .enabled_by = "fp16.enabled"},
    {.name = "bf16.enabled", .take = ds_enabled_type},
    {.name = "bfloat16.enabled", .take = ds_enabled_type},
    {.name = "bf16.immediate_grad_update", .without = "gradients are added where they are computed"},
    {.name = "bf16.loss_scale", .without = "bf16 needs no loss scale"},
    {.name = "bf16.initial_scale_power", .without = "bf16 needs no loss scale"},
    {.name = "amp.*", .refuse = "NVIDIA's Apex is not used; take bf16 or fp16", .enabled_by = "amp.enabled"},
    {.name = "amp.enabled", .refuse = "NVIDIA's Apex is not used; take bf16 or fp16", .neutral = "false"},
    {.name = "zero_optimization.stage", .key = "layout.zero"},
    {.name = "zero_optimization.reduce_bucket_size", .take = ds_bucket},
    {.name = "zero_optimization.allgather_bucket_size",
     .without = "gathers have the buckets of reductions: layout.bucket_mb"},
    {.name = "zero_optimization.allgather_partitions",
     .without = "which collective shards are gathered by is chosen by cost"},
    {.name = "zero_optimization.overlap_comm", .without = "reductions always overlap with backward"},
    {.name = "zero_optimization.reduce_scatter", .without = "gradients that are sharded are always reduce-scattered"},
    {.name = "zero_optimization.contiguous_gradients", .without = "gradients always lie in buckets"},
    {.name = "zero_optimization.round_robin_gradients", .without = "shards of a bucket are even"},
    {.name = "zero_optimization.load_from_fp32_weights", .without = "checkpoints hold master weights"},
    {.name = "zero_optimization.grad_hooks", .without = "gradients are reduced when they are there"},
    {.name = "zero_optimization.legacy_stage1", .without = "there is one implementation"},
    {.name = "zero_optimization.elastic_checkpoint", .without = "every checkpoint loads under every layout"},
    {.name = "zero_optimization.ignore_unused_parameters",
     .without = "all parameters of a model are used; layout.find_unused finds others"},
    {.name = "zero_optimization.memory_efficient_linear", .without = "layers are written out"},
    {.name = "zero_optimization.sub_group_size", .without = "the update goes bucket by bucket"},
    {.name = "zero_optimization.stage3_max_live_parameters", .without = kGathers},
    {.name = "zero_optimization.stage3_max_reuse_distance", .without = kGathers},
    {.name = "zero_optimization.stage3_prefetch_bucket_size", .without = kGathers},
    {.name = "zero_optimization.stage3_param_persistence_threshold", .without = kGathers},
    {.name = "zero_optimization.stage3_module_granularity_threshold", .without = kGathers},
    {.name = "zero_optimization.stage3_gather_16bit_weights_on_model_save",
     .without = "`trireme convert` writes whole weights from any checkpoint"},
    {.name = "zero_optimization.stage3_gather_fp16_weights_on_model_save",
     .without = "`trireme convert` writes whole weights from any checkpoint"},
    {.name = "zero_optimization.offload_optimizer.device", .take = ds_offload_optimizer},
    {.name = "zero_optimization.offload_optimizer.pin_memory",
     .without = "host memory of what is offloaded is always pinned"},
    {.name = "zero_optimization.offload_optimizer.*", .without = kHostBuffers},
    {.name = "zero_optimization.offload_optimizer.nvme_path", .without = "nothing is offloaded to disks"},
    {.name = "zero_optimization.cpu_offload", .take = ds_offload_optimizer},
    {.name = "zero_optimization.cpu_offload_use_pin_memory",
     .without = "host memory of what is offloaded is always pinned"},
    {.name = "zero_optimization.cpu_offload_params",
     .refuse = "weights in host memory are not built here",
     .neutral = "false"},
    {.name = "zero_optimization.offload_param.device",
     .refuse = "weights in host memory or on disks are not built here",
     .neutral = "none"},
    {.name = "zero_optimization.offload_param.*", .without = kHostBuffers},
    {.name = "zero_optimization.zero_hpz_partition_size",
     .refuse = "secondary shards of weights (ZeRO++) are not built here; layout.zero_group shards within groups",
     .neutral = "1"},
    {.name = "zero_optimization.zero_quantized_weights",
     .refuse = "quantized gathers (ZeRO++) are not built here",
     .neutral = "false"},
    {.name = "zero_optimization.zero_quantized_gradients",
     .refuse = "quantized reductions (ZeRO++) are not built here",
     .neutral = "false"},
    {.name = "zero_optimization.zero_quantized_nontrainable_weights",
     .refuse = "quantized gathers (ZeRO++) are not built here",
     .neutral = "false"},
    {.name = "zero_optimization.mics_shard_size", .take = ds_mics},
    {.name = "zero_optimization.mics_hierarchical_params_gather",
     .without = "which collective shards are gathered by is chosen by cost"},
    {.name = "zero_optimization", .refuse = "should be a table", .neutral = "false|{}"},
    {.name = "zero_allow_untested_optimizer", .without = "ZeRO goes with every optimizer here"},
    {.name = "zero_force_ds_cpu_optimizer", .without = "which update runs follows from layout.offload"},
    {.name = "activation_checkpointing.partition_activations", .take = ds_saved_inputs},
    {.name = "activation_checkpointing.cpu_checkpointing", .take = ds_saved_inputs},
    {.name = "activation_checkpointing.contiguous_memory_optimization", .take = ds_saved_inputs},
    {.name = "activation_checkpointing.number_checkpoints", .without = "train.recompute says what is saved"},
    {.name = "activation_checkpointing.synchronize_checkpoint_boundary", .without = "streams are ordered by events"},
    {.name = "activation_checkpointing.profile", .without = kLogs},
    {.name = "pipeline.stages", .take = ds_pipeline_stages},
    {.name = "pipeline.partition",
     .refuse = "which layers a stage has is pipeline.split's",
     .neutral = "best|uniform|parameters|type:transformer"},
    {.name = "pipeline.seed_layers", .without = "initial values never depend on the layout"},
    {.name = "pipeline.activation_checkpoint_interval", .without = "train.recompute says what is saved"},
    {.name = "pipeline.pipe_partitioned", .without = "pipeline.scatter_gather is that"},
    {.name = "pipeline.grad_partitioned", .without = "pipeline.scatter_gather is that"},
    {.name = "tensor_parallel.autotp_size", .key = "layout.tp"},
    {.name = "sequence_parallel_size",
     .take =
         [](RecipeImport& in, const ForeignKey& given) {
           in.set("layout.cp", foreign_text(given.value), given.name);
           in.set_text("layout.cp_kind", "ulysses", given.name + " is DeepSpeed-Ulysses");
         }},
    {.name = "steps_per_print", .without = kLogs},
    {.name = "wall_clock_breakdown", .without = "`trireme train --trace` has the times of a step"},
    {.name = "memory_breakdown", .without = "`trireme train --memory` has the table"},
    {.name = "dump_state", .without = "the recipe as it runs is in the run's folder"},
    {.name = "flops_profiler.*", .without = "FLOPs are counted from the model's shape; MFU is in the metrics"},
    {.name = "comms_logger.*", .without = "the flight recorder has every call"},
    {.name = "tensorboard.*", .without = kLogs},
    {.name = "csv_monitor.*", .without = kLogs},
    {.name = "wandb.*",
     .refuse = "runs are not sent to other machines; TensorBoard files can be",
     .enabled_by = "wandb.enabled"},
    {.name = "wandb.enabled",
     .refuse = "runs are not sent to other machines; TensorBoard files can be",
     .neutral = "false"},
    {.name = "comet.*",
     .refuse = "runs are not sent to other machines; TensorBoard files can be",
     .enabled_by = "comet.enabled"},
    {.name = "comet.enabled",
     .refuse = "runs are not sent to other machines; TensorBoard files can be",
     .neutral = "false"},
    {.name = "sparse_attention.*", .refuse = "block layouts are part of the model here: model.sparse_attention"},
    {.name = "progressive_layer_drop.theta", .take = ds_layer_keep, .enabled_by = "progressive_layer_drop.enabled"},
    {.name = "progressive_layer_drop.gamma",
     .key = "train.layer_keep_gamma",
     .enabled_by = "progressive_layer_drop.enabled"},
    {.name = "progressive_layer_drop.enabled", .without = "decides whether its other keys count"},
    {.name = "curriculum_learning.*",
     .refuse = "sequence lengths that grow are not built here",
     .enabled_by = "curriculum_learning.enabled"},
    {.name = "curriculum_learning.enabled",
     .refuse = "sequence lengths that grow are not built here",
     .neutral = "false"},
    {.name = "data_efficiency.*",
     .refuse = "curricula and token dropping are not built here",
     .enabled_by = "data_efficiency.enabled"},
    {.name = "data_efficiency.enabled",
     .refuse = "curricula and token dropping are not built here",
     .neutral = "false"},
    {.name = "compression_training.*", .refuse = "pruning and quantization while training are not built here"},
    {.name = "quantize_training.*",
     .refuse = "quantization while training is not built here",
     .enabled_by = "quantize_training.enabled"},
    {.name = "quantize_training.enabled",
     .refuse = "quantization while training is not built here",
     .neutral = "false"},
    {.name = "eigenvalue.*", .refuse = "eigenvalues are not measured here", .enabled_by = "eigenvalue.enabled"},
    {.name = "eigenvalue.enabled", .refuse = "eigenvalues are not measured here", .neutral = "false"},
    {.name = "elasticity.*",
     .refuse = "`trireme supervise` restarts with other ranks; the batch stays the recipe's",
     .enabled_by = "elasticity.enabled"},
    {.name = "elasticity.enabled",
     .refuse = "`trireme supervise` restarts with other ranks; the batch stays the recipe's",
     .neutral = "false"},
    {.name = "autotuning.*", .without = "`trireme plan` searches layouts", .enabled_by = "autotuning.enabled"},
    {.name = "autotuning.enabled", .refuse = "`trireme plan` searches layouts, before a run", .neutral = "false"},
    {.name = "hybrid_engine.*",
     .refuse = "training and generation in one engine are not built here",
     .enabled_by = "hybrid_engine.enabled"},
    {.name = "hybrid_engine.enabled",
     .refuse = "training and generation in one engine are not built here",
     .neutral = "false"},
    {.name = "nebula.*", .without = "checkpoints are written behind the run anyway: checkpoint.background"},
    {.name = "aio.*", .without = "nothing is offloaded to disks"},
    {.name = "checkpoint.tag_validation", .without = "ranks always agree on a checkpoint before they write it"},
    {.name = "checkpoint.load_universal", .without = "every checkpoint loads under every layout"},
    {.name = "checkpoint.use_node_local_storage",
     .refuse = "a run has one folder that all ranks see",
     .neutral = "false"},
    {.name = "checkpoint.parallel_write.pipeline_stage", .without = "every rank writes its own shards"},
    {.name = "checkpoint.async_io", .without = "checkpoint.background is the default"},
    {.name = "dataloader_drop_last", .without = kDataPath},
    {.name = "use_data_before_expert_parallelism", .without = "models with experts have their own axes"},
    {.name = "use_node_local_rng", .without = "draws never depend on a rank"},
    {.name = "seed", .key = "run.seed"},
};

/// Its batch is in sequences; ours in tokens.
void ds_finish(RecipeImport& in) {
  in.set_text("run.device", "cuda", "DeepSpeed trains on GPUs");
  if (!in.has("train_batch_size") || in.text("train_batch_size") == "auto") return;
  const double batch = in.number("train_batch_size");
  const bool micro = in.is_set("train.micro_batch_size"), accumulation = in.is_set("train.gradient_accumulation_steps");
  if (micro && accumulation) {
    const double replicas =
        batch / *in.value_of("train.micro_batch_size") / *in.value_of("train.gradient_accumulation_steps");
    if (replicas != std::floor(replicas) || replicas < 1) {
      in.refuse({.name = "train_batch_size", .value = config::parse_toml_value(fmt::format("{}", batch))},
                "is not train_micro_batch_size_per_gpu * gradient_accumulation_steps * data-parallel ranks",
                "make the three agree");
      return;
    }
    in.set("layout.dp", static_cast<std::int64_t>(replicas),
           "train_batch_size / (train_micro_batch_size_per_gpu * gradient_accumulation_steps)");
    return;
  }
  const auto given = in.override_of("data.seq_len");
  const double length = given ? static_cast<double>(parse_count(*given)) : 1024;
  in.set("batch.global_batch_tokens", static_cast<std::int64_t>(batch * length),
         fmt::format("train_batch_size = {} sequences of data.seq_len tokens", batch));
  if (given) return;
  in.set("data.seq_len", static_cast<std::int64_t>(length), "assumed: DeepSpeed's file does not say");
  in.note("data.seq_len is assumed: give --set data.seq_len=TOKENS, by which batch.global_batch_tokens is computed");
}

}  // namespace

const ImportSource& deepspeed_source() {
  static const ImportSource source{.name = "DeepSpeed", .rows = kDeepSpeedRows, .defaults = {}, .finish = ds_finish};
  return source;
}

}  // namespace trireme::spec
