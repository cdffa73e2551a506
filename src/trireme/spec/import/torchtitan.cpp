// What becomes of the keys of a torchtitan configuration (TOML), of its sections [job] to [validation].
#include <fmt/format.h>

#include <cmath>

#include "trireme/spec/import/import.h"

namespace trireme::spec {
namespace {

using config::Node;

/// The sizes of a flavor, by model and name.
struct Flavor {
  std::string_view model, name, family;
  int hidden, layers, heads, kv_heads, head_dim, ffn, vocabulary;
  double rope_base;
  bool tied = false;
};
constexpr Flavor kFlavors[] = {
    {"llama3", "debugmodel", "llama", 256, 6, 16, 16, 16, 768, 2048, 500000},
    {"llama3", "8B", "llama", 4096, 32, 32, 8, 128, 14336, 128256, 500000},
    {"llama3", "70B", "llama", 8192, 80, 64, 8, 128, 28672, 128256, 500000},
    {"llama3", "405B", "llama", 16384, 126, 128, 8, 128, 53248, 128256, 500000},
    {"qwen3", "0.6B", "qwen3", 1024, 28, 16, 8, 128, 3072, 151936, 1000000, true},
    {"qwen3", "1.7B", "qwen3", 2048, 28, 16, 8, 128, 6144, 151936, 1000000, true},
    {"qwen3", "4B", "qwen3", 2560, 36, 32, 8, 128, 9728, 151936, 1000000, true},
    {"qwen3", "8B", "qwen3", 4096, 36, 32, 8, 128, 12288, 151936, 1000000},
    {"qwen3", "14B", "qwen3", 5120, 40, 40, 8, 128, 17408, 151936, 1000000},
    {"qwen3", "32B", "qwen3", 5120, 64, 64, 8, 128, 25600, 151936, 1000000},
};

void tt_flavor(RecipeImport& in, const ForeignKey& given) {
  const std::string model = in.text("model.name"), name = in.text(given.name);
  for (const Flavor& flavor : kFlavors) {
    if (flavor.model != model || flavor.name != name) continue;
    const std::string from = fmt::format("{} {}", model, name);
    in.set_text("model.family", flavor.family, "model.name, model.flavor");
    in.set("model.hidden_size", std::int64_t{flavor.hidden}, from);
    in.set("model.num_layers", std::int64_t{flavor.layers}, from);
    in.set("model.num_heads", std::int64_t{flavor.heads}, from);
    in.set("model.num_kv_heads", std::int64_t{flavor.kv_heads}, from);
    in.set("model.head_dim", std::int64_t{flavor.head_dim}, from);
    in.set("model.ffn_size", std::int64_t{flavor.ffn}, from);
    in.set("model.vocab_size", std::int64_t{flavor.vocabulary}, from);
    in.set("model.rotary.base", flavor.rope_base, from);
    in.set("model.tied", flavor.tied ? "true" : "false", from);
    return;
  }
  in.refuse(given, fmt::format("the sizes of {} {} are not known here", model, name),
            "give the model by --set model.family=..., and --leave-out model.name --leave-out model.flavor");
}

void tt_model(RecipeImport& in, const ForeignKey& given) {
  if (!in.has("model.flavor")) in.refuse(given, "there is no model.flavor beside it", "say which size of it");
}

void tt_optimizer(RecipeImport& in, const ForeignKey& given) {
  const std::string name = in.text(given.name);
  if (name == "AdamW" || name == "Adam") {
    in.set_text("optim.kind", name == "AdamW" ? "adamw" : "adam", in.origin(given));
  } else {
    in.refuse(given, "no optimizer that is here by that name", "take AdamW or Adam");
  }
}

void tt_type(RecipeImport& in, const ForeignKey& given) {
  const std::string type = in.text(given.name);
  const std::string ours = type == "bfloat16" ? "bf16" : type == "float32" ? "fp32" : "";
  const char* key = given.name == "training.mixed_precision_reduce" ? "layout.reduce" : "precision.compute";
  if (ours.empty()) {
    in.refuse(given, "no type that is here", "take bfloat16 or float32");
    return;
  }
  in.set_text(key, ours, in.origin(given));
}

void tt_schedule(RecipeImport& in, const ForeignKey& given) {
  const std::string schedule = in.text(given.name);
  struct Row {
    std::string_view theirs, ours;
  };
  constexpr Row kScheduleNames[] = {{"1F1B", "1f1b"},
                                    {"GPipe", "gpipe"},
                                    {"Interleaved1F1B", "interleaved"},
                                    {"ZBVZeroBubble", "zb-v"},
                                    {"DualPipeV", "dualpipe-v"}};
  for (const Row& row : kScheduleNames) {
    if (row.theirs == schedule) {
      in.set_text("pipeline.schedule", row.ours, in.origin(given));
      if (row.ours == "interleaved")
        in.set("pipeline.virtual_stages", std::int64_t{2}, "two a rank, torchtitan's default");
      return;
    }
  }
  in.refuse(given, "no schedule that is here by that name",
            "take 1F1B, GPipe, Interleaved1F1B, ZBVZeroBubble or DualPipeV");
}

void tt_rotate(RecipeImport& in, const ForeignKey& given) {
  const std::string kind = in.text(given.name);
  in.set_text("layout.cp_kind", kind == "alltoall" ? "ring" : "gather", in.origin(given));
}

void tt_recompute(RecipeImport& in, const ForeignKey& given) {
  const std::string mode = in.text(given.name);
  if (mode == "none") {
    in.set_text("train.recompute", "none", in.origin(given));
  } else if (mode == "full") {
    in.set_text("train.recompute", "full", in.origin(given));
  } else if (mode == "selective") {
    const std::string option = in.text("activation_checkpoint.selective_ac_option");
    if (option.empty() || option == "op") {
      in.set_text("train.recompute", "selective",
                  in.origin(given) + "; torchtitan saves GEMMs by operator, here attention's core is recomputed");
      return;
    }
    const double every = in.number("activation_checkpoint.selective_ac_option", 0);
    if (every == 1) {
      in.set_text("train.recompute", "full", "activation_checkpoint.selective_ac_option");
      return;
    }
    in.refuse(given, fmt::format("every {}th block recomputed is not built here", option),
              "take full, or selective_ac_option = \"op\"; train.recompute = \"every\" recomputes all but every n-th");
  } else {
    in.refuse(given, "no mode that is here", "take none, selective or full");
  }
}

void tt_timeout(RecipeImport& in, const ForeignKey& given) {
  in.set_text("comm.deadline", fmt::format("{}s", in.number(given.name)), in.origin(given));
}

void tt_float8(RecipeImport& in, const ForeignKey& given) {
  const std::string recipe = in.text("float8.recipe_name");
  if (given.name == "float8.enable_float8_linear" && !in.flag(given.name)) {
    in.without_effect(given, "not asked for");
  } else if (recipe.empty() || recipe == "tensorwise") {
    in.set_text("precision.gemm", "fp8", in.origin(given));
  } else {
    in.refuse(given, "scales of rows are not built here", "take recipe_name = \"tensorwise\"");
  }
}

void tt_converters(RecipeImport& in, const ForeignKey& given) {
  for (const Node& item : given.value.items) {
    if (item.text == "float8") {
      tt_float8(in, given);
    } else {
      in.refuse(given, fmt::format("\"{}\" is not built here", item.text), "take \"float8\" or none");
    }
  }
  if (given.value.items.empty()) in.without_effect(given, "none are asked for");
}

void tt_checkpoint(RecipeImport& in, const ForeignKey& given) {
  if (!in.flag(given.name)) in.set("checkpoint.every", std::int64_t{0}, in.origin(given) + ": only at the end");
}

void tt_interval(RecipeImport& in, const ForeignKey& given) {
  if (in.flag("checkpoint.enable_checkpoint") || in.flag("checkpoint.enable")) {
    in.set("checkpoint.every", foreign_text(given.value), in.origin(given));
  } else {
    in.without_effect(given, "checkpoints are not enabled");
  }
}

void tt_keep(RecipeImport& in, const ForeignKey& given) {
  in.set("checkpoint.keep", foreign_text(given.value), in.origin(given));
}

void tt_async(RecipeImport& in, const ForeignKey& given) {
  in.set("checkpoint.background", in.text(given.name) == "disabled" ? "false" : "true", in.origin(given));
}

void tt_dataset(RecipeImport& in, const ForeignKey& given) {
  if (in.has("training.dataset_path")) {
    in.without_effect(given, "training.dataset_path says where it is");
    return;
  }
  in.note(
      fmt::format("training.dataset = \"{}\" is downloaded by torchtitan; here tokens are read from files: "
                  "`trireme tokenize` makes them, [[data.sources]] names them",
                  in.text(given.name)));
}

void tt_dataset_path(RecipeImport& in, const ForeignKey& given) {
  in.add_source(in.text(given.name), std::nullopt, false, given.name);
  in.note("training.dataset_path is text there; `trireme tokenize` makes token shards of it");
}

void tt_deterministic(RecipeImport& in, const ForeignKey& given) {
  in.set("precision.deterministic_attention", foreign_text(given.value), in.origin(given));
}

constexpr std::string_view kTitanLogs = "what a run logs is in its folder: metrics.jsonl, TensorBoard files, report";
constexpr std::string_view kCompile = "kernels are fused by hand; there is no compiler";
constexpr std::string_view kProfiles = "`trireme train --trace` has the times of a step, --memory its memory";

const ImportRow kTitanRows[] = {
    {.name = "job.dump_folder", .key = "run.out"},
    {.name = "job.description",
     .take = [](RecipeImport& in,
                const ForeignKey& given) { in.note(fmt::format("job.description: {}", in.text(given.name))); }},
    {.name = "job.print_args", .without = "the recipe as it runs is in the run's folder"},
    {.name = "job.print_config", .without = "the recipe as it runs is in the run's folder"},
    {.name = "job.use_for_integration_test", .without = "a mark of torchtitan's own tests"},
    {.name = "job.config_file", .without = "the file itself"},
    {.name = "profiling.*", .without = kProfiles},
    {.name = "memory_estimation.*", .without = "`trireme check` has the memory of every rank"},
    {.name = "metrics.*", .without = kTitanLogs},
    {.name = "metrics.enable_wandb",
     .refuse = "runs are not sent to other machines; TensorBoard files can be",
     .neutral = "false"},
    {.name = "model.name", .take = tt_model},
    {.name = "model.flavor", .take = tt_flavor},
    {.name = "model.norm_type",
     .refuse = "the flavors have RMSNorm",
     .neutral = "rmsnorm|fused_rmsnorm|compiled_rmsnorm"},
    {.name = "model.tokenizer_path", .key = "data.tokenizer"},
    {.name = "model.hf_assets_path", .key = "data.tokenizer"},
    {.name = "model.converters", .take = tt_converters},
    {.name = "model.print_after_conversion", .without = "`trireme inspect` prints models"},
    {.name = "optimizer.name", .take = tt_optimizer},
    {.name = "optimizer.lr", .key = "optim.learning_rate"},
    {.name = "optimizer.beta1", .key = "optim.beta1"},
    {.name = "optimizer.beta2", .key = "optim.beta2"},
    {.name = "optimizer.eps", .key = "optim.epsilon"},
    {.name = "optimizer.weight_decay", .key = "optim.weight_decay"},
    {.name = "optimizer.implementation", .without = "the update is one kernel"},
    {.name = "optimizer.fused", .without = "the update is one kernel"},
    {.name = "optimizer.early_step_in_backward", .refuse = "updates wait for the gradient norm", .neutral = "false"},
    {.name = "lr_scheduler.warmup_steps", .key = "lr_schedule.warmup"},
    {.name = "lr_scheduler.total_steps", .key = "lr_schedule.total"},
    {.name = "lr_scheduler.decay_ratio", .take = take_with_others},
    {.name = "lr_scheduler.decay_type", .take = take_with_others},
    {.name = "lr_scheduler.min_lr_factor", .key = "lr_schedule.minimum"},
    {.name = "lr_scheduler.lr_min", .key = "lr_schedule.minimum"},
    {.name = "training.batch_size", .key = "train.micro_batch_size"},
    {.name = "training.local_batch_size", .key = "train.micro_batch_size"},
    {.name = "training.global_batch_size", .take = take_with_others},
    {.name = "training.seq_len", .key = "data.seq_len"},
    {.name = "training.max_norm", .key = "optim.grad_clip_norm"},
    {.name = "training.steps", .key = "train.steps"},
    {.name = "training.warmup_steps", .key = "lr_schedule.warmup"},
    {.name = "training.compile", .without = kCompile},
    {.name = "compile.*", .without = kCompile},
    {.name = "training.dataset", .take = tt_dataset},
    {.name = "training.dataset_path", .take = tt_dataset_path},
    {.name = "training.mixed_precision_param", .take = tt_type},
    {.name = "training.mixed_precision_reduce", .take = tt_type},
    {.name = "training.dtype",
     .refuse = "weights without fp32 masters are precision.master_weights = \"none\"",
     .neutral = "float32"},
    {.name = "training.seed", .key = "run.seed"},
    {.name = "training.deterministic", .take = tt_deterministic},
    {.name = "training.gc_freq", .without = "there is no garbage collector"},
    {.name = "training.gc_debug", .without = "there is no garbage collector"},
    {.name = "training.enable_cpu_offload",
     .take =
         [](RecipeImport& in, const ForeignKey& given) {
           if (in.flag(given.name)) {
             in.set_text("layout.offload", "optimizer", given.name + "; weights stay on the GPU");
           } else {
             in.without_effect(given, "not asked for");
           }
         }},
    {.name = "parallelism.data_parallel_replicate_degree", .take = take_with_others},
    {.name = "parallelism.data_parallel_shard_degree", .take = take_with_others},
    {.name = "parallelism.fsdp_reshard_after_forward", .without = "weights are resharded after forward"},
    {.name = "parallelism.tensor_parallel_degree", .key = "layout.tp"},
    {.name = "parallelism.disable_loss_parallel",
     .refuse = "the loss of sharded logits is always computed in shards",
     .neutral = "false"},
    {.name = "parallelism.enable_async_tensor_parallel",
     .take = [](RecipeImport& in,
                const ForeignKey& given) { in.set("layout.tp_overlap", foreign_text(given.value), in.origin(given)); }},
    {.name = "parallelism.pipeline_parallel_degree", .key = "layout.pp"},
    {.name = "parallelism.pipeline_parallel_schedule", .take = tt_schedule},
    {.name = "parallelism.pipeline_parallel_split_points",
     .refuse = "give pipeline.split by --set: layers.N,...",
     .neutral = "[]"},
    {.name = "parallelism.module_fqns_per_model_part",
     .refuse = "give pipeline.split by --set: layers.N,...",
     .neutral = "[]"},
    {.name = "parallelism.pipeline_parallel_layers_per_stage", .refuse = "give pipeline.virtual_stages by --set"},
    {.name = "parallelism.pipeline_parallel_schedule_csv",
     .refuse = "schedules come from builders: `trireme schedule list`",
     .neutral = ""},
    {.name = "parallelism.pipeline_parallel_microbatch_size", .take = take_with_others},
    {.name = "parallelism.context_parallel_degree", .key = "layout.cp"},
    {.name = "parallelism.context_parallel_rotate_method", .take = tt_rotate},
    {.name = "parallelism.expert_parallel_degree", .refuse = "models with experts are not imported", .neutral = "1"},
    {.name = "parallelism.expert_tensor_parallel_degree",
     .refuse = "models with experts are not imported",
     .neutral = "1"},
    {.name = "parallelism.enable_compiled_autograd", .without = kCompile},
    {.name = "experimental.enable_compiled_autograd", .without = kCompile},
    {.name = "experimental.enable_async_tensor_parallel",
     .take = [](RecipeImport& in,
                const ForeignKey& given) { in.set("layout.tp_overlap", foreign_text(given.value), in.origin(given)); }},
    {.name = "experimental.pipeline_parallel_degree", .key = "layout.pp"},
    {.name = "experimental.context_parallel_degree", .key = "layout.cp"},
    {.name = "experimental.custom_import", .refuse = "code of your own cannot be imported", .neutral = ""},
    {.name = "checkpoint.enable_checkpoint", .take = tt_checkpoint},
    {.name = "checkpoint.enable", .take = tt_checkpoint},
    {.name = "checkpoint.folder", .without = "checkpoints lie in the run's folder"},
    {.name = "checkpoint.interval", .take = tt_interval},
    {.name = "checkpoint.interval_type",
     .refuse = "the interval is in steps; checkpoint.interval is by time",
     .neutral = "steps"},
    {.name = "checkpoint.model_weights_only", .without = "`trireme convert` writes weights alone"},
    {.name = "checkpoint.last_save_model_only", .without = "`trireme convert` writes weights alone"},
    {.name = "checkpoint.last_save_model_weights_only", .without = "`trireme convert` writes weights alone"},
    {.name = "checkpoint.last_save_in_hf", .without = "`trireme convert` writes Hugging Face folders"},
    {.name = "checkpoint.export_dtype", .without = "`trireme convert` says in which type"},
    {.name = "checkpoint.async_mode", .take = tt_async},
    {.name = "checkpoint.keep_latest_k", .take = tt_keep},
    {.name = "checkpoint.load_step", .refuse = "--resume takes the newest checkpoint", .neutral = "-1"},
    {.name = "checkpoint.initial_load_path", .refuse = "give a Hugging Face folder by --set model.init_from=FOLDER"},
    {
        .name = "checkpoint.initial_load_in_hf",
        .without = "model.init_from is a Hugging Face folder",
    },
    {.name = "checkpoint.exclude_from_loading", .refuse = "a checkpoint is loaded whole", .neutral = "[]"},
    {.name = "checkpoint.create_seed_checkpoint", .without = "initial values never depend on the layout"},
    {.name = "activation_checkpoint.mode", .take = tt_recompute},
    {.name = "activation_checkpoint.selective_ac_option", .take = take_with_others},
    {.name = "activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns",
     .without = "attention's core is what selective recomputes"},
    {.name = "float8.enable_float8_linear", .take = tt_float8},
    {.name = "float8.recipe_name", .take = take_with_others},
    {.name = "float8.filter_fqns",
     .take =
         [](RecipeImport& in, const ForeignKey& given) {
           bool head_only = true;
           for (const Node& item : given.value.items) head_only = head_only && item.text == "output";
           if (head_only) {
             in.without_effect(given, "the output head's GEMMs stay in the compute type");
           } else {
             in.refuse(given, "names of layers differ here", "give precision.gemm_exclude by --set");
           }
         }},
    {.name = "float8.enable_fsdp_float8_all_gather", .without = "weights are gathered in the compute type"},
    {.name = "float8.precompute_float8_dynamic_scale_for_fsdp", .without = "scales are computed with the weights"},
    {.name = "float8.force_recompute_fp8_weight_in_bwd", .without = "weights are quantized where they are used"},
    {.name = "float8.emulate", .without = "on CPUs FP8 is emulated anyway"},
    {.name = "float8.*", .refuse = "no such choice here"},
    {.name = "validation.enable", .take = take_with_others},
    {.name = "validation.freq", .key = "eval.every", .enabled_by = "validation.enable"},
    {.name = "validation.steps", .take = take_with_others, .enabled_by = "validation.enable"},
    {.name = "validation.*", .without = "validation samples are held out of the data: data.validation_fraction"},
    {.name = "comm.init_timeout_seconds", .without = "one deadline counts for all calls: comm.deadline"},
    {.name = "comm.train_timeout_seconds", .take = tt_timeout},
    {.name = "comm.trace_buf_size", .key = "comm.flight_recorder_calls"},
    {.name = "fault_tolerance.*",
     .refuse = "`trireme supervise` restarts runs; there are no replica groups",
     .enabled_by = "fault_tolerance.enable"},
    {.name = "fault_tolerance.enable",
     .refuse = "`trireme supervise` restarts runs; there are no replica groups",
     .neutral = "false"},
};

/// Where torchtitan and we take different values for what is absent.
constexpr std::pair<std::string_view, std::string_view> kTitanDefaults[] = {
    {"optimizer.name", "\"AdamW\""},      {"optimizer.lr", "8e-4"},
    {"optimizer.beta2", "0.95"},          {"optimizer.weight_decay", "0.1"},
    {"lr_scheduler.warmup_steps", "200"}, {"training.local_batch_size", "8"},
    {"training.seq_len", "2048"},         {"training.max_norm", "1.0"},
    {"training.steps", "10000"},          {"training.mixed_precision_param", "\"bfloat16\""},
};

/// Data parallelism in two numbers, and what follows from several keys.
void tt_finish(RecipeImport& in) {
  in.set_text("run.device", "cuda", "torchtitan trains on GPUs");
  const double replicate = in.number("parallelism.data_parallel_replicate_degree", 1);
  const double shard = in.number("parallelism.data_parallel_shard_degree", -1);
  if (shard == 1) {
    in.set("layout.zero", std::int64_t{0}, "parallelism.data_parallel_shard_degree = 1");
    if (replicate > 1)
      in.set("layout.dp", static_cast<std::int64_t>(replicate), "parallelism.data_parallel_replicate_degree");
  } else {
    in.set("layout.zero", std::int64_t{3}, "parallelism.data_parallel_shard_degree: FSDP2");
    if (shard > 1) {
      in.set("layout.dp", static_cast<std::int64_t>(replicate * shard),
             "parallelism.data_parallel_replicate_degree * parallelism.data_parallel_shard_degree");
      if (replicate > 1)
        in.set("layout.zero_group", static_cast<std::int64_t>(shard), "parallelism.data_parallel_shard_degree: HSDP");
    } else if (replicate > 1) {
      in.note(fmt::format("{:.0f} replicas over all that is left: set layout.zero_group to the ranks of a replica",
                          replicate));
    }
  }
  if (in.value_of("layout.tp").value_or(1) > 1)
    in.set("layout.sequence_parallel", "true", "torchtitan's tensor parallelism has it");
  const double length = in.value_of("data.seq_len").value_or(2048), batch = in.number("training.global_batch_size", -1);
  if (batch > 0) {
    in.set("batch.global_batch_tokens", static_cast<std::int64_t>(batch * length),
           "training.global_batch_size x training.seq_len");
  } else {
    in.set("train.gradient_accumulation_steps", std::int64_t{1},
           "no training.global_batch_size: one micro-batch a rank");
  }
  if (in.has("parallelism.pipeline_parallel_microbatch_size")) {
    const double micro = in.number("parallelism.pipeline_parallel_microbatch_size", 1),
                 local = in.value_of("train.micro_batch_size").value_or(1);
    in.set("train.micro_batch_size", static_cast<std::int64_t>(micro), "parallelism.pipeline_parallel_microbatch_size");
    if (batch <= 0 && local / micro == std::floor(local / micro)) {
      in.set("train.gradient_accumulation_steps", static_cast<std::int64_t>(local / micro),
             "local batch / pipeline micro-batch");
    }
  }
  const double ratio = in.number("lr_scheduler.decay_ratio", -1), steps = in.value_of("train.steps").value_or(10000);
  const std::string type = in.text("lr_scheduler.decay_type");
  if (ratio > 0 && ratio < 1) {
    in.set_text("lr_schedule.kind", "wsd", "lr_scheduler.decay_ratio");
    in.set("lr_schedule.decay", static_cast<std::int64_t>(std::lround(ratio * steps)),
           "lr_scheduler.decay_ratio of training.steps");
    if (!type.empty() && type != "linear") {
      in.refuse({.name = "lr_scheduler.decay_type",
                 .value = {.kind = Node::Kind::kText, .text = type, .items = {}, .members = {}}},
                "the decay of WSD is linear here", "take linear, or leave decay_ratio away");
    }
  } else if (type.empty() || type == "linear" || type == "cosine") {
    in.set_text("lr_schedule.kind", type.empty() ? "linear" : type,
                type.empty() ? "lr_scheduler.decay_type, its default" : "lr_scheduler.decay_type");
  } else {
    in.refuse({.name = "lr_scheduler.decay_type",
               .value = {.kind = Node::Kind::kText, .text = type, .items = {}, .members = {}}},
              "no decay that is here", "take linear or cosine");
  }
  if (in.flag("validation.enable")) {
    in.set("eval.samples",
           static_cast<std::int64_t>(
               std::max(1.0, in.number("validation.steps", 8) * in.number("validation.local_batch_size", 8))),
           "validation.steps x validation.local_batch_size");
  }
}

}  // namespace

const ImportSource& torchtitan_source() {
  static const ImportSource source{
      .name = "torchtitan", .rows = kTitanRows, .defaults = kTitanDefaults, .finish = tt_finish};
  return source;
}

}  // namespace trireme::spec
