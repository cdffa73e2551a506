// What becomes of the arguments of Megatron-LM's pretrain_gpt.py.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "trireme/base/text.h"
#include "trireme/spec/import/import.h"

namespace trireme::spec {
namespace {

using config::Node;

std::string from_of(const ForeignKey& given) {
  return given.is_default ? fmt::format("--{}, its default", given.name) : "--" + given.name;
}

void mg_copy(RecipeImport& in, const ForeignKey& given, const char* key) {
  in.set(key, foreign_text(given.value), from_of(given));
}

/// Read when several arguments are looked at together.
void mg_later(RecipeImport&, const ForeignKey&) {}

void mg_lr_decay(RecipeImport& in, const ForeignKey& given) {
  const std::string style = in.text(given.name);
  const std::string kind = style == "constant" || style == "linear" || style == "cosine" ? style
                           : style == "inverse-square-root"                              ? "inverse-sqrt"
                           : style == "WSD"                                              ? "wsd"
                                                                                         : "";
  if (kind.empty()) {
    in.refuse(given, "no decay that is here", "take constant, linear, cosine, inverse-square-root or WSD");
    return;
  }
  in.set_text("lr_schedule.kind", kind, from_of(given));
}

void mg_optimizer(RecipeImport& in, const ForeignKey& given) {
  const std::string kind = in.text(given.name);
  if (kind == "adam") {
    in.set_text("optim.kind", "adamw", from_of(given) + " has decoupled weight decay there");
  } else if (kind == "sgd") {
    in.set_text("optim.kind", "sgd", from_of(given));
  } else {
    in.refuse(given, "no optimizer that is here", "take adam or sgd");
  }
}

void mg_type(RecipeImport& in, const ForeignKey& given) {
  in.set_text("precision.compute", given.name, from_of(given));
}

void mg_normalization(RecipeImport& in, const ForeignKey& given) {
  const std::string norm = in.text(given.name);
  if (norm == "LayerNorm" || norm == "RMSNorm") {
    in.set_text("model.norm", norm == "RMSNorm" ? "rms" : "layer", from_of(given));
  } else {
    in.refuse(given, "no norm that is here", "take LayerNorm or RMSNorm");
  }
}

void mg_positions(RecipeImport& in, const ForeignKey& given) {
  const std::string kind = given.name == "use-rotary-position-embeddings" ? "rope" : in.text(given.name);
  if (kind == "rope" || kind == "learned_absolute") {
    in.set_text("model.position_kind", kind == "rope" ? "rotary" : "learned", from_of(given));
  } else {
    in.refuse(given, "no position embedding that is here", "take rope or learned_absolute");
  }
}

void mg_rotary_percent(RecipeImport& in, const ForeignKey& given) {
  if (in.number(given.name) == 1) {
    in.without_effect(given, "every dimension is rotated");
  } else {
    in.refuse(given, "rotary embeddings of a part of a head are not built here", "set it to 1.0");
  }
}

void mg_rope_scaling(RecipeImport& in, const ForeignKey& given) {
  in.set_text("model.rotary.scaling", "llama3", from_of(given));
  in.set("model.rotary.factor", in.number("rope-scaling-factor", 8.0), "--rope-scaling-factor");
  in.set("model.rotary.low_frequency", 1.0, "Llama 3.1's");
  in.set("model.rotary.high_frequency", 4.0, "Llama 3.1's");
  in.set("model.rotary.original_positions", std::int64_t{8192}, "Llama 3.1's");
}

void mg_heads(RecipeImport& in, const ForeignKey& given) {
  mg_copy(in, given, "model.num_heads");
  const bool grouped = in.flag("group-query-attention");
  in.set("model.num_kv_heads",
         static_cast<std::int64_t>(in.number(grouped ? "num-query-groups" : "num-attention-heads", 1)),
         grouped ? "--group-query-attention --num-query-groups" : "no --group-query-attention");
}

void mg_swiglu(RecipeImport& in, const ForeignKey& given) {
  in.set("model.gated", "true", from_of(given));
  in.set_text("model.activation", "silu", from_of(given));
}

void mg_no_bias(RecipeImport& in, const ForeignKey& given) {
  for (const char* key : {"model.mlp_bias", "model.output_bias"}) in.set(key, "false", from_of(given));
  in.set("model.attention_bias", in.flag("add-qkv-bias") ? "true" : "false", from_of(given));
}

void mg_virtual(RecipeImport& in, const ForeignKey& given) {
  const double stages = in.number("pipeline-model-parallel-size", 1), layers = in.number("num-layers", 0);
  const double chunks = given.name == "num-virtual-stages-per-pipeline-rank" ? in.number(given.name)
                                                                             : layers / stages / in.number(given.name);
  if (chunks < 1 || chunks != std::floor(chunks)) {
    in.refuse(given, fmt::format("{} layers on {} stages are not whole chunks of that", layers, stages),
              "choose one that divides num-layers / pipeline-model-parallel-size");
    return;
  }
  in.set("pipeline.virtual_stages", static_cast<std::int64_t>(chunks), from_of(given));
  if (chunks > 1) in.set_text("pipeline.schedule", "interleaved", from_of(given));
}

void mg_recompute(RecipeImport& in, const ForeignKey& given) {
  const std::string what = given.name == "recompute-activations" ? "selective" : in.text(given.name);
  if (what == "selective") {
    in.set_text("train.recompute", "selective", from_of(given));
  } else if (what == "full") {
    const std::string method = in.text("recompute-method");
    const double layers = in.number("recompute-num-layers", 1);
    if (method == "block" || (method == "uniform" && layers != 1)) {
      in.refuse(
          given, fmt::format("--recompute-method {} with {} layers is not built here", method, layers),
          "take uniform with --recompute-num-layers 1, and set train.recompute to every, sqrt or budget afterwards");
      return;
    }
    in.set_text("train.recompute", "full", from_of(given));
  } else {
    in.refuse(given, "no granularity that is here", "take full or selective");
  }
}

void mg_distributed_optimizer(RecipeImport& in, const ForeignKey& given) {
  if (!in.is_set("layout.zero")) in.set("layout.zero", std::int64_t{1}, from_of(given));
}

void mg_fsdp(RecipeImport& in, const ForeignKey& given) {
  const std::string strategy = in.text("data-parallel-sharding-strategy");
  const std::int64_t stage = strategy == "optim" ? 1 : strategy == "optim_grads" ? 2 : 3;
  in.set("layout.zero", strategy == "no_shard" ? std::int64_t{0} : stage, from_of(given));
}

void mg_cp_kind(RecipeImport& in, const ForeignKey& given) {
  const std::string kind = in.text(given.name);
  const std::string ours = kind == "p2p" ? "ring" : kind == "all_gather" ? "gather" : kind == "a2a" ? "ulysses" : "";
  if (ours.empty()) {
    in.refuse(given, "no context parallelism that is here by that name", "take p2p, all_gather or a2a");
    return;
  }
  in.set_text("layout.cp_kind", ours, from_of(given));
}

void mg_fp8(RecipeImport& in, const ForeignKey& given) {
  const std::string recipe = in.text("fp8-recipe");
  if (recipe == "mxfp8") {
    in.refuse(given, "MXFP8 needs Blackwell GPUs and is not built here",
              "take --fp8-recipe delayed, tensorwise or blockwise");
    return;
  }
  in.set_text("precision.gemm",
              recipe == "tensorwise"  ? "fp8"
              : recipe == "blockwise" ? "fp8-blocks"
                                      : "fp8-delayed",
              from_of(given));
}

void mg_rampup(RecipeImport& in, const ForeignKey& given) {
  const auto& items = given.value.items;
  if (given.value.kind != Node::Kind::kList || items.size() != 3) {
    in.refuse(given, "should be three numbers: start, increment, samples", "write --rampup-batch-size 32 32 1000000");
    return;
  }
  const double length = in.number("seq-length", 1024);
  const auto at = [&](std::size_t i) { return static_cast<double>(items[i].whole); };
  in.set_text("batch.kind", "ramp", from_of(given));
  in.set("batch.start", static_cast<std::int64_t>(at(0) * length), from_of(given));
  in.set("batch.multiple", static_cast<std::int64_t>(at(1) * length), from_of(given));
  in.set("batch.over", static_cast<std::int64_t>(at(2) * length), from_of(given));
}

void mg_data(RecipeImport& in, const ForeignKey& given) {
  const bool validation = given.name == "valid-data-path";
  std::vector<std::string> words;
  if (given.value.kind == Node::Kind::kList) {
    for (const Node& item : given.value.items)
      words.push_back(item.kind == Node::Kind::kText ? item.text : foreign_text(item));
  } else {
    words.push_back(in.text(given.name));
  }
  if (words.size() == 1) {
    in.add_source(words[0] + ".bin", std::nullopt, validation, from_of(given));
    return;
  }
  const bool weighted = words.size() % 2 == 0 && argument_value(words[0]).kind != Node::Kind::kText;
  for (std::size_t i = 0; i < words.size(); i += weighted ? 2 : 1) {
    if (!weighted) {
      in.add_source(words[i] + ".bin", std::nullopt, validation, from_of(given));
      continue;
    }
    const Node weight = argument_value(words[i]);
    in.add_source(words[i + 1] + ".bin",
                  weight.kind == Node::Kind::kWhole ? static_cast<double>(weight.whole) : weight.real, validation,
                  from_of(given));
  }
}

void mg_split(RecipeImport& in, const ForeignKey& given) {
  if (given.is_default && (in.has("train-data-path") || in.has("valid-data-path"))) return;
  const std::vector<std::string> parts = trireme::split(in.text(given.name), ',');
  double all = 0, validation = 0, test = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Node part = argument_value(std::string(trimmed(parts[i])));
    const double value = part.kind == Node::Kind::kWhole ? static_cast<double>(part.whole) : part.real;
    all += value;
    if (i == 1) validation = value;
    if (i == 2) test = value;
  }
  if (all <= 0) {
    in.refuse(given, "should be three numbers", "write --split 949,50,1");
    return;
  }
  in.set("data.validation_fraction", validation / all, from_of(given));
  if (test > 0) in.note("--split: the test part is trained on; there is no third set here");
}

void mg_tokenizer(RecipeImport& in, const ForeignKey& given) {
  const std::string file = in.text(given.name);
  in.set_text("data.tokenizer", file, from_of(given));
  if (!file.ends_with("tokenizer.json")) {
    in.note(fmt::format("data.tokenizer: {} must be given as a tokenizer.json, or as a folder that has one", file));
  }
}

void mg_eval_samples(RecipeImport& in, const ForeignKey& given) {
  in.set("eval.samples",
         static_cast<std::int64_t>(std::max(1.0, in.number(given.name) * in.number("global-batch-size", 1))),
         from_of(given) + " batches of --global-batch-size");
}

void mg_timeout(RecipeImport& in, const ForeignKey& given) {
  in.set_text("comm.deadline", fmt::format("{}m", in.number(given.name)), from_of(given));
}

void mg_loss_scale(RecipeImport& in, const ForeignKey& given) {
  in.refuse(given, "a loss scale that stays the same is not built here", "leave it away: dynamic loss scaling");
}

void mg_momentum(RecipeImport& in, const ForeignKey& given) { mg_copy(in, given, "optim.momentum"); }

constexpr std::string_view kFusions = "which operators are fused is not a choice here";
constexpr std::string_view kMoe = "models with experts are not imported: their routers have too many forms to guess";
constexpr std::string_view kMegatronLogs = "what a run logs is in its folder: metrics.jsonl, TensorBoard files, report";
constexpr std::string_view kCode = "selects code of Megatron-LM's; there is one implementation here";
constexpr std::string_view kOverlaps = "communication always overlaps where the schedule lets it";
constexpr std::string_view kResume = "`trireme train --resume` goes on with everything";

const ImportRow kMegatronRows[] = {
    // model
    {.name = "num-layers", .key = "model.num_layers"},
    {.name = "hidden-size", .key = "model.hidden_size"},
    {.name = "ffn-hidden-size", .key = "model.ffn_size"},
    {.name = "num-attention-heads", .take = mg_heads},
    {.name = "kv-channels", .key = "model.head_dim"},
    {.name = "group-query-attention", .take = mg_later},
    {.name = "num-query-groups", .take = mg_later},
    {.name = "max-position-embeddings", .key = "model.max_seq_len"},
    {.name = "position-embedding-type", .take = mg_positions},
    {.name = "use-rotary-position-embeddings", .take = mg_positions},
    {.name = "no-position-embedding", .without = "positions are those of --position-embedding-type"},
    {.name = "rotary-base", .key = "model.rotary.base"},
    {.name = "rotary-percent", .take = mg_rotary_percent},
    {.name = "rotary-interleaved", .refuse = "rotary pairs are halves of a head here"},
    {.name = "rotary-seq-len-interpolation-factor",
     .take =
         [](RecipeImport& in, const ForeignKey& given) {
           in.set_text("model.rotary.scaling", "linear", from_of(given));
           mg_copy(in, given, "model.rotary.factor");
         }},
    {.name = "use-rope-scaling", .take = mg_rope_scaling},
    {.name = "rope-scaling-factor", .take = mg_later},
    {.name = "normalization", .take = mg_normalization},
    {.name = "norm-epsilon", .key = "model.epsilon"},
    {.name = "layernorm-epsilon", .key = "model.epsilon"},
    {.name = "apply-layernorm-1p", .refuse = "norms with 1 + weight are not built here"},
    {.name = "swiglu", .take = mg_swiglu},
    {.name = "squared-relu", .refuse = "squared ReLU is not built here"},
    {.name = "openai-gelu",
     .take = [](RecipeImport& in,
                const ForeignKey& given) { in.set_text("model.activation", "gelu-tanh", from_of(given)); }},
    {.name = "disable-bias-linear", .take = mg_no_bias},
    {.name = "add-qkv-bias",
     .take = [](RecipeImport& in, const ForeignKey& given) { in.set("model.attention_bias", "true", from_of(given)); }},
    {.name = "qk-layernorm",
     .take = [](RecipeImport& in, const ForeignKey& given) { in.set("model.query_key_norm", "true", from_of(given)); }},
    {.name = "untie-embeddings-and-output-weights",
     .take = [](RecipeImport& in, const ForeignKey& given) { in.set("model.tied", "false", from_of(given)); }},
    {.name = "attention-dropout", .key = "model.attention_dropout"},
    {.name = "hidden-dropout", .key = "model.dropout"},
    {.name = "init-method-std", .key = "model.init_std"},
    {.name = "make-vocab-size-divisible-by", .without = "vocabularies are padded to a multiple of 64"},
    {.name = "vocab-size", .key = "model.vocab_size"},
    {.name = "padded-vocab-size", .key = "model.vocab_size"},
    {.name = "window-size", .refuse = "give the window as model.window by --set"},
    {.name = "multi-latent-attention", .refuse = "multi-head latent attention is not imported"},
    {.name = "num-experts", .refuse = kMoe},
    {.name = "moe-*", .refuse = kMoe},
    {.name = "mtp-*", .refuse = "multi-token prediction is not imported"},
    // data
    {.name = "seq-length", .key = "data.seq_len"},
    {.name = "data-path", .take = mg_data},
    {.name = "train-data-path", .take = mg_data},
    {.name = "valid-data-path", .take = mg_data},
    {.name = "test-data-path", .without = "there is no third set here"},
    {.name = "split", .take = mg_split},
    {.name = "tokenizer-type", .without = "the tokenizer's file says what it is"},
    {.name = "tokenizer-model", .take = mg_tokenizer},
    {.name = "vocab-file", .take = mg_tokenizer},
    {.name = "merge-file", .without = "a tokenizer.json holds the merges"},
    {.name = "data-cache-path", .without = "samples are computed from their number; there is no index to keep"},
    {.name = "data-impl", .without = "the files say what they are"},
    {.name = "dataloader-type", .refuse = "samples are shuffled or in order: data.shuffle", .neutral = "single|cyclic"},
    {.name = "num-workers", .without = "batches are loaded ahead by one thread: data.prefetch"},
    {.name = "no-create-attention-mask-in-dataloader", .without = "masks are never stored"},
    {.name = "no-mmap-bin-files", .without = "token files are mapped"},
    {.name = "mock-data", .refuse = "give a synthetic task by --set data.synthetic.kind=markov"},
    {.name = "eod-mask-loss",
     .take = [](RecipeImport& in,
                const ForeignKey& given) { in.set_text("data.packing", "documents", from_of(given)); }},
    {.name = "reset-position-ids",
     .take = [](RecipeImport& in,
                const ForeignKey& given) { in.set_text("data.packing", "documents", from_of(given)); }},
    {.name = "reset-attention-mask",
     .take = [](RecipeImport& in,
                const ForeignKey& given) { in.set_text("data.packing", "documents", from_of(given)); }},
    // batch and length
    {.name = "micro-batch-size", .key = "train.micro_batch_size"},
    {.name = "global-batch-size", .take = mg_later},
    {.name = "rampup-batch-size", .take = mg_rampup},
    {.name = "train-iters", .key = "train.steps"},
    {.name = "train-samples", .take = mg_later},
    // rate
    {.name = "lr", .key = "optim.learning_rate"},
    {.name = "min-lr", .take = mg_later},
    {.name = "lr-decay-style", .take = mg_lr_decay},
    {.name = "lr-decay-iters", .key = "lr_schedule.total"},
    {.name = "lr-decay-samples", .take = mg_later},
    {.name = "lr-warmup-iters", .key = "lr_schedule.warmup"},
    {.name = "lr-warmup-samples", .take = mg_later},
    {.name = "lr-warmup-fraction", .take = mg_later},
    {.name = "lr-warmup-init", .key = "lr_schedule.warmup_from"},
    {.name = "lr-wsd-decay-style", .refuse = "the decay of WSD is linear here", .neutral = "linear"},
    {.name = "lr-wsd-decay-iters", .key = "lr_schedule.decay"},
    {.name = "override-opt_param-scheduler", .without = "the recipe always counts"},
    {.name = "use-checkpoint-opt_param-scheduler", .without = "the recipe always counts"},
    // optimizer
    {.name = "optimizer", .take = mg_optimizer},
    {.name = "weight-decay", .key = "optim.weight_decay"},
    {.name = "start-weight-decay", .refuse = "weight decay stays the same here"},
    {.name = "end-weight-decay", .refuse = "weight decay stays the same here"},
    {.name = "weight-decay-incr-style", .refuse = "weight decay stays the same here", .neutral = "constant"},
    {.name = "adam-beta1", .key = "optim.beta1"},
    {.name = "adam-beta2", .key = "optim.beta2"},
    {.name = "adam-eps", .key = "optim.epsilon"},
    {.name = "sgd-momentum", .take = mg_momentum},
    {.name = "clip-grad", .key = "optim.grad_clip_norm"},
    {.name = "decoupled-lr", .refuse = "give the embedding's rate by [[optim.groups]]"},
    {.name = "optimizer-cpu-offload",
     .take = [](RecipeImport& in,
                const ForeignKey& given) { in.set_text("layout.offload", "optimizer", from_of(given)); }},
    {.name = "optimizer-offload-fraction",
     .refuse = "the whole optimizer state is offloaded, or none of it",
     .neutral = "1|1.0"},
    {.name = "use-precision-aware-optimizer",
     .without = "optim.state_dtype and precision.master_weights say what is stored"},
    // precision
    {.name = "bf16", .take = mg_type},
    {.name = "fp16", .take = mg_type},
    {.name = "loss-scale", .take = mg_loss_scale},
    {.name = "initial-loss-scale", .key = "precision.loss_scale.initial"},
    {.name = "min-loss-scale", .key = "precision.loss_scale.minimum"},
    {.name = "loss-scale-window", .key = "precision.loss_scale.interval"},
    {.name = "hysteresis", .refuse = "an overflow lowers the scale at once here", .neutral = "1"},
    {.name = "attention-softmax-in-fp32", .without = "softmax is always computed in fp32"},
    {.name = "no-query-key-layer-scaling", .without = "there is no such scaling here"},
    {.name = "apply-query-key-layer-scaling", .without = "softmax is computed in fp32, which needs no such scaling"},
    {.name = "accumulate-allreduce-grads-in-fp32",
     .without = "gradients are accumulated and reduced in fp32 unless precision.gradients says otherwise"},
    {.name = "grad-reduce-in-bf16",
     .take = [](RecipeImport& in, const ForeignKey& given) { in.set_text("layout.reduce", "bf16", from_of(given)); }},
    {.name = "fp32-residual-connection", .refuse = "residuals are in the compute type"},
    {.name = "fp8-format", .take = mg_fp8},
    {.name = "fp8-hybrid", .take = mg_fp8},
    {.name = "fp8-recipe", .take = mg_later},
    {.name = "fp8-margin", .key = "precision.fp8_margin"},
    {.name = "fp8-interval", .refuse = "scales are renewed every step", .neutral = "1"},
    {.name = "fp8-amax-history-len", .key = "precision.fp8_history"},
    {.name = "fp8-amax-compute-algo", .refuse = "the largest amax of the history counts here", .neutral = "max"},
    {.name = "fp8-param-gather", .refuse = "weights are gathered in the compute type"},
    // layout
    {.name = "tensor-model-parallel-size", .key = "layout.tp"},
    {.name = "pipeline-model-parallel-size", .key = "layout.pp"},
    {.name = "num-layers-per-virtual-pipeline-stage", .take = mg_virtual},
    {.name = "num-virtual-stages-per-pipeline-rank", .take = mg_virtual},
    {.name = "context-parallel-size", .key = "layout.cp"},
    {.name = "cp-comm-type", .take = mg_cp_kind},
    {.name = "expert-model-parallel-size", .refuse = kMoe, .neutral = "1"},
    {.name = "expert-tensor-parallel-size", .refuse = kMoe, .neutral = "1"},
    {.name = "sequence-parallel",
     .take = [](RecipeImport& in,
                const ForeignKey& given) { in.set("layout.sequence_parallel", "true", from_of(given)); }},
    {.name = "use-distributed-optimizer", .take = mg_distributed_optimizer},
    {.name = "use-torch-fsdp2", .take = mg_fsdp},
    {.name = "use-custom-fsdp", .take = mg_fsdp},
    {.name = "use-megatron-fsdp", .take = mg_fsdp},
    {.name = "data-parallel-sharding-strategy", .take = mg_later},
    {.name = "num-distributed-optimizer-instances",
     .refuse = "give layout.zero_group by --set: the ranks of one instance",
     .neutral = "1"},
    {.name = "overlap-grad-reduce", .without = kOverlaps},
    {.name = "overlap-param-gather", .without = kOverlaps},
    {.name = "overlap-param-gather-with-optimizer-step", .without = kOverlaps},
    {.name = "delay-grad-reduce", .without = kOverlaps},
    {.name = "no-overlap-p2p-communication", .without = "what overlaps follows from the schedule"},
    {.name = "overlap-p2p-communication-warmup-flush", .without = "what overlaps follows from the schedule"},
    {.name = "tp-comm-overlap",
     .take = [](RecipeImport& in, const ForeignKey& given) { in.set("layout.tp_overlap", "true", from_of(given)); }},
    {.name = "ddp-bucket-size",
     .take =
         [](RecipeImport& in, const ForeignKey& given) {
           in.set("layout.bucket_mb", in.number(given.name) * 4 / 1e6, from_of(given) + ", elements of fp32");
         }},
    {.name = "no-scatter-gather-tensors-in-pipeline", .without = "pipeline.scatter_gather is off unless it is set"},
    {.name = "decoder-first-pipeline-num-layers", .refuse = "give pipeline.split by --set"},
    {.name = "decoder-last-pipeline-num-layers", .refuse = "give pipeline.split by --set"},
    {.name = "account-for-embedding-in-pipeline-split", .without = "pipeline.split = \"time\" measures it"},
    {.name = "account-for-loss-in-pipeline-split", .without = "pipeline.split = \"time\" measures it"},
    {.name = "use-tp-pp-dp-mapping",
     .take = [](RecipeImport& in,
                const ForeignKey& given) { in.set_text("layout.order", "dp pp cp tp", from_of(given)); }},
    {.name = "distributed-backend", .without = "comm.transport is found out: NCCL between GPUs of processes"},
    {.name = "distributed-timeout-minutes", .take = mg_timeout},
    {.name = "nccl-communicator-config-path", .refuse = "NCCL is set up by its own environment variables"},
    {.name = "use-ring-exchange-p2p", .without = kCode},
    // activations
    {.name = "recompute-granularity", .take = mg_recompute},
    {.name = "recompute-activations", .take = mg_recompute},
    {.name = "recompute-method", .take = mg_later},
    {.name = "recompute-num-layers", .take = mg_later},
    {.name = "distribute-saved-activations",
     .take = [](RecipeImport& in,
                const ForeignKey& given) { in.set("train.partition_activations", "true", from_of(given)); }},
    {.name = "cpu-offloading-num-layers",
     .refuse = "give train.offload_activations by --set: all of them",
     .neutral = "0"},
    // checkpoints, evaluation, logs
    {.name = "save", .key = "run.out"},
    {.name = "save-interval", .key = "checkpoint.every"},
    {.name = "load", .without = kResume},
    {.name = "pretrained-checkpoint", .refuse = "give a Hugging Face folder by --set model.init_from=FOLDER"},
    {.name = "finetune", .without = "a run begins anew unless it is resumed"},
    {.name = "no-load-optim", .refuse = kResume},
    {.name = "no-load-rng", .refuse = kResume},
    {.name = "no-save-optim", .refuse = "checkpoints are whole; `trireme convert` writes weights alone"},
    {.name = "no-save-rng", .refuse = "checkpoints are whole; `trireme convert` writes weights alone"},
    {.name = "ckpt-format", .without = "there is one format, which loads under every layout"},
    {.name = "use-dist-ckpt", .without = "there is one format, which loads under every layout"},
    {.name = "dist-ckpt-format", .without = "there is one format, which loads under every layout"},
    {.name = "auto-detect-ckpt-format", .without = "there is one format, which loads under every layout"},
    {.name = "ckpt-fully-parallel-save", .without = "every rank writes its own shards"},
    {.name = "ckpt-fully-parallel-load", .without = "every rank reads its own shards"},
    {.name = "async-save",
     .take = [](RecipeImport& in,
                const ForeignKey& given) { in.set("checkpoint.background", "true", from_of(given)); }},
    {.name = "use-checkpoint-args", .without = "the recipe always counts"},
    {.name = "exit-on-missing-checkpoint", .without = "--resume without a checkpoint is an error"},
    {.name = "eval-interval", .key = "eval.every"},
    {.name = "eval-iters", .take = mg_eval_samples},
    {.name = "log-interval", .without = kMegatronLogs},
    {.name = "log-*", .without = kMegatronLogs},
    {.name = "tensorboard-*", .without = kMegatronLogs},
    {.name = "timing-log-level", .without = kMegatronLogs},
    {.name = "timing-log-option", .without = kMegatronLogs},
    {.name = "no-log-*", .without = kMegatronLogs},
    {.name = "one-logger-*", .without = kMegatronLogs},
    {.name = "enable-one-logger", .without = kMegatronLogs},
    {.name = "no-one-logger", .without = kMegatronLogs},
    {.name = "wandb-*", .refuse = "runs are not sent to other machines; TensorBoard files can be"},
    {.name = "profile", .without = "`trireme train --trace` has the times of a step"},
    {.name = "profile-*", .without = "`trireme train --trace` has the times of a step"},
    {.name = "use-pytorch-profiler", .without = "`trireme train --trace` has the times of a step"},
    {.name = "exit-duration-in-mins",
     .without = "`trireme train` ends on SIGTERM with a checkpoint; the launcher's limit is enough"},
    {.name = "exit-signal-handler", .without = "a run always ends on SIGTERM with a checkpoint"},
    {.name = "exit-interval", .refuse = "a run ends at train.steps"},
    {.name = "check-for-nan-in-loss-and-grad", .without = "health.non_finite is \"stop\" by default"},
    {.name = "no-check-for-nan-in-loss-and-grad",
     .take = [](RecipeImport& in,
                const ForeignKey& given) { in.set_text("health.non_finite", "ignore", from_of(given)); }},
    {.name = "rerun-mode", .without = "[health] says what happens at NaN and spikes"},
    {.name = "manual-gc", .without = "there is no garbage collector"},
    {.name = "manual-gc-interval", .without = "there is no garbage collector"},
    {.name = "seed", .key = "run.seed"},
    {.name = "data-parallel-random-init", .without = "initial values never depend on the layout"},
    // code
    {.name = "use-mcore-models", .without = kCode},
    {.name = "use-legacy-models", .without = kCode},
    {.name = "transformer-impl", .without = kCode},
    {.name = "use-flash-attn", .without = "attention is always fused"},
    {.name = "attention-backend", .without = "attention is always fused"},
    {.name = "deterministic-mode",
     .take = [](RecipeImport& in,
                const ForeignKey& given) { in.set("precision.deterministic_attention", "true", from_of(given)); }},
    {.name = "no-masked-softmax-fusion", .without = kFusions},
    {.name = "no-bias-gelu-fusion", .without = kFusions},
    {.name = "no-bias-swiglu-fusion", .without = kFusions},
    {.name = "no-bias-dropout-fusion", .without = kFusions},
    {.name = "no-rope-fusion", .without = kFusions},
    {.name = "apply-rope-fusion", .without = kFusions},
    {.name = "no-persist-layer-norm", .without = kFusions},
    {.name = "no-gradient-accumulation-fusion", .without = kFusions},
    {.name = "gradient-accumulation-fusion", .without = kFusions},
    {.name = "cross-entropy-loss-fusion", .without = "cross-entropy is fused with the output head"},
    {.name = "cross-entropy-fusion-impl", .without = "cross-entropy is fused with the output head"},
    {.name = "no-async-tensor-model-parallel-allreduce", .without = kOverlaps},
    {.name = "enable-cuda-graph",
     .take = [](RecipeImport& in, const ForeignKey& given) { in.set("train.cuda_graphs", "true", from_of(given)); }},
    {.name = "te-rng-tracker", .without = "draws are functions of their index"},
    {.name = "use-cpu-initialization", .without = "initial values are the same on every device"},
    {.name = "empty-unused-memory-level", .without = "memory comes from a pool"},
    {.name = "no-initialization", .refuse = "weights are always initialised"},
};

/// Where Megatron-LM and we take different values for what is absent.
constexpr std::pair<std::string_view, std::string_view> kMegatronDefaults[] = {
    {"attention-dropout", "0.1"},
    {"hidden-dropout", "0.1"},
    {"weight-decay", "0.01"},
    {"clip-grad", "1.0"},
    {"lr-decay-style", "\"linear\""},
    {"seed", "1234"},
    {"optimizer", "\"adam\""},
    {"normalization", "\"LayerNorm\""},
    {"position-embedding-type", "\"learned_absolute\""},
    {"split", "\"969, 30, 1\""},
};

/// Shares of the peak, samples in tokens, and the family whose other keys are nearest.
void mg_finish(RecipeImport& in) {
  in.set_text("run.device", "cuda", "Megatron-LM trains on GPUs");
  const double length = in.number("seq-length", 1024), batch = in.number("global-batch-size");
  if (batch > 0) {
    in.set("batch.global_batch_tokens", static_cast<std::int64_t>(batch * length),
           fmt::format("--global-batch-size {} x --seq-length {}", batch, length));
  }
  if (in.has("train-samples")) {
    in.set("train.tokens", static_cast<std::int64_t>(in.number("train-samples") * length),
           "--train-samples x --seq-length");
  }
  const double peak = in.number("lr");
  if (in.has("min-lr") && peak > 0) in.set("lr_schedule.minimum", in.number("min-lr") / peak, "--min-lr / --lr");
  if (in.has("lr-decay-samples")) {
    in.set_text("lr_schedule.unit", "tokens", "--lr-decay-samples");
    in.set("lr_schedule.total", static_cast<std::int64_t>(in.number("lr-decay-samples") * length),
           "--lr-decay-samples x --seq-length");
  }
  if (in.has("lr-warmup-samples")) {
    in.set_text("lr_schedule.unit", "tokens", "--lr-warmup-samples");
    in.set("lr_schedule.warmup", static_cast<std::int64_t>(in.number("lr-warmup-samples") * length),
           "--lr-warmup-samples x --seq-length");
  }
  if (in.has("lr-warmup-fraction")) {
    const double of = in.number("lr-decay-iters", in.number("train-iters"));
    in.set("lr_schedule.warmup", static_cast<std::int64_t>(in.number("lr-warmup-fraction") * of),
           "--lr-warmup-fraction of the decay");
  }
  if (in.number("context-parallel-size", 1) > 1 && !in.has("cp-comm-type")) {
    in.set_text("layout.cp_kind", "ring", "--cp-comm-type, its default: p2p");
  }
  const bool rotary = in.has("use-rotary-position-embeddings") || in.text("position-embedding-type") == "rope";
  if (in.flag("use-rotary-position-embeddings"))
    in.set_text("model.position_kind", "rotary", "--use-rotary-position-embeddings");
  const bool llama = rotary && in.text("normalization") == "RMSNorm" && in.flag("swiglu");
  in.set_text("model.family",
              llama ? in.flag("qk-layernorm")   ? "qwen3"
                      : in.flag("add-qkv-bias") ? "qwen2"
                                                : "llama"
                    : "gpt2",
              "the nearest to these arguments; what differs is below");
  if (!in.flag("untie-embeddings-and-output-weights"))
    in.set("model.tied", "true", "no --untie-embeddings-and-output-weights");
  if (!in.is_set("data.packing")) in.set_text("data.packing", "stream", "no --reset-attention-mask");
}

}  // namespace

const ImportSource& megatron_source() {
  static const ImportSource source{
      .name = "Megatron-LM", .rows = kMegatronRows, .defaults = kMegatronDefaults, .finish = mg_finish};
  return source;
}

}  // namespace trireme::spec
