// What is trained on and how: data, batch, learning rate, optimizer, precision.
#include <fmt/format.h>

#include "trireme/base/text.h"
#include "trireme/spec/import/megatron/rows.h"

namespace trireme::spec::megatron {
namespace {

using config::Node;

void take_lr_decay(RecipeImport& in, const ForeignKey& given) {
  const std::string style = in.text(given.name);
  const std::string kind = style == "constant" || style == "linear" || style == "cosine" ? style
                           : style == "inverse-square-root"                              ? "inverse-sqrt"
                           : style == "WSD"                                              ? "wsd"
                                                                                         : "";
  if (kind.empty()) {
    in.refuse(given, "no decay that is here", "take constant, linear, cosine, inverse-square-root or WSD");
    return;
  }
  in.set_text("lr_schedule.kind", kind, in.origin(given));
}

void take_optimizer(RecipeImport& in, const ForeignKey& given) {
  const std::string kind = in.text(given.name);
  if (kind == "adam") {
    in.set_text("optim.kind", "adamw", in.origin(given) + " has decoupled weight decay there");
  } else if (kind == "sgd") {
    in.set_text("optim.kind", "sgd", in.origin(given));
  } else {
    in.refuse(given, "no optimizer that is here", "take adam or sgd");
  }
}

void take_compute_type(RecipeImport& in, const ForeignKey& given) {
  in.set_text("precision.compute", given.name, in.origin(given));
}

void take_fp8(RecipeImport& in, const ForeignKey& given) {
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
              in.origin(given));
}

void take_rampup(RecipeImport& in, const ForeignKey& given) {
  const auto& items = given.value.items;
  if (given.value.kind != Node::Kind::kList || items.size() != 3) {
    in.refuse(given, "should be three numbers: start, increment, samples", "write --rampup-batch-size 32 32 1000000");
    return;
  }
  const double length = in.number("seq-length", 1024);
  const auto at = [&](std::size_t i) { return static_cast<double>(items[i].whole); };
  in.set_text("batch.kind", "ramp", in.origin(given));
  in.set("batch.start", static_cast<std::int64_t>(at(0) * length), in.origin(given));
  in.set("batch.multiple", static_cast<std::int64_t>(at(1) * length), in.origin(given));
  in.set("batch.over", static_cast<std::int64_t>(at(2) * length), in.origin(given));
}

void take_data_path(RecipeImport& in, const ForeignKey& given) {
  const bool validation = given.name == "valid-data-path";
  std::vector<std::string> words;
  if (given.value.kind == Node::Kind::kList) {
    for (const Node& item : given.value.items)
      words.push_back(item.kind == Node::Kind::kText ? item.text : foreign_text(item));
  } else {
    words.push_back(in.text(given.name));
  }
  if (words.size() == 1) {
    in.add_source(words[0] + ".bin", std::nullopt, validation, in.origin(given));
    return;
  }
  const bool weighted = words.size() % 2 == 0 && argument_value(words[0]).kind != Node::Kind::kText;
  for (std::size_t i = 0; i < words.size(); i += weighted ? 2 : 1) {
    if (!weighted) {
      in.add_source(words[i] + ".bin", std::nullopt, validation, in.origin(given));
      continue;
    }
    const Node weight = argument_value(words[i]);
    in.add_source(words[i + 1] + ".bin",
                  weight.kind == Node::Kind::kWhole ? static_cast<double>(weight.whole) : weight.real, validation,
                  in.origin(given));
  }
}

void take_split(RecipeImport& in, const ForeignKey& given) {
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
  in.set("data.validation_fraction", validation / all, in.origin(given));
  if (test > 0) in.note("--split: the test part is trained on; there is no third set here");
}

void take_tokenizer(RecipeImport& in, const ForeignKey& given) {
  const std::string file = in.text(given.name);
  in.set_text("data.tokenizer", file, in.origin(given));
  if (!file.ends_with("tokenizer.json")) {
    in.note(fmt::format("data.tokenizer: {} must be given as a tokenizer.json, or as a folder that has one", file));
  }
}

void take_loss_scale(RecipeImport& in, const ForeignKey& given) {
  in.refuse(given, "a loss scale that stays the same is not built here", "leave it away: dynamic loss scaling");
}

const ImportRow kTraining[] = {
    // data
    {.name = "seq-length", .key = "data.seq_len"},
    {.name = "data-path", .take = take_data_path},
    {.name = "train-data-path", .take = take_data_path},
    {.name = "valid-data-path", .take = take_data_path},
    {.name = "test-data-path", .without = "there is no third set here"},
    {.name = "split", .take = take_split},
    {.name = "tokenizer-type", .without = "the tokenizer's file says what it is"},
    {.name = "tokenizer-model", .take = take_tokenizer},
    {.name = "vocab-file", .take = take_tokenizer},
    {.name = "merge-file", .without = "a tokenizer.json holds the merges"},
    {.name = "data-cache-path", .without = "samples are computed from their number; there is no index to keep"},
    {.name = "data-impl", .without = "the files say what they are"},
    {.name = "dataloader-type", .refuse = "samples are shuffled or in order: data.shuffle", .neutral = "single|cyclic"},
    {.name = "num-workers", .without = "batches are loaded ahead by one thread: data.prefetch"},
    {.name = "no-create-attention-mask-in-dataloader", .without = "masks are never stored"},
    {.name = "no-mmap-bin-files", .without = "token files are mapped"},
    {.name = "mock-data", .refuse = "give a synthetic task by --set data.synthetic.kind=markov"},
    {.name = "eod-mask-loss", .key = "data.packing", .value = "\"documents\""},
    {.name = "reset-position-ids", .key = "data.packing", .value = "\"documents\""},
    {.name = "reset-attention-mask", .key = "data.packing", .value = "\"documents\""},
    // batch and length
    {.name = "micro-batch-size", .key = "train.micro_batch_size"},
    {.name = "global-batch-size", .take = take_with_others},
    {.name = "rampup-batch-size", .take = take_rampup},
    {.name = "train-iters", .key = "train.steps"},
    {.name = "train-samples", .take = take_with_others},
    // rate
    {.name = "lr", .key = "optim.learning_rate"},
    {.name = "min-lr", .take = take_with_others},
    {.name = "lr-decay-style", .take = take_lr_decay},
    {.name = "lr-decay-iters", .key = "lr_schedule.total"},
    {.name = "lr-decay-samples", .take = take_with_others},
    {.name = "lr-warmup-iters", .key = "lr_schedule.warmup"},
    {.name = "lr-warmup-samples", .take = take_with_others},
    {.name = "lr-warmup-fraction", .take = take_with_others},
    {.name = "lr-warmup-init", .key = "lr_schedule.warmup_from"},
    {.name = "lr-wsd-decay-style", .refuse = "the decay of WSD is linear here", .neutral = "linear"},
    {.name = "lr-wsd-decay-iters", .key = "lr_schedule.decay"},
    {.name = "override-opt_param-scheduler", .without = "the recipe always counts"},
    {.name = "use-checkpoint-opt_param-scheduler", .without = "the recipe always counts"},
    // optimizer
    {.name = "optimizer", .take = take_optimizer},
    {.name = "weight-decay", .key = "optim.weight_decay"},
    {.name = "start-weight-decay", .refuse = "weight decay stays the same here"},
    {.name = "end-weight-decay", .refuse = "weight decay stays the same here"},
    {.name = "weight-decay-incr-style", .refuse = "weight decay stays the same here", .neutral = "constant"},
    {.name = "adam-beta1", .key = "optim.beta1"},
    {.name = "adam-beta2", .key = "optim.beta2"},
    {.name = "adam-eps", .key = "optim.epsilon"},
    {.name = "sgd-momentum", .key = "optim.momentum"},
    {.name = "clip-grad", .key = "optim.grad_clip_norm"},
    {.name = "decoupled-lr", .refuse = "give the embedding's rate by [[optim.groups]]"},
    {.name = "optimizer-cpu-offload", .key = "layout.offload", .value = "\"optimizer\""},
    {.name = "optimizer-offload-fraction",
     .refuse = "the whole optimizer state is offloaded, or none of it",
     .neutral = "1|1.0"},
    {.name = "use-precision-aware-optimizer",
     .without = "optim.state_dtype and precision.master_weights say what is stored"},
    // precision
    {.name = "bf16", .take = take_compute_type},
    {.name = "fp16", .take = take_compute_type},
    {.name = "loss-scale", .take = take_loss_scale},
    {.name = "initial-loss-scale", .key = "precision.loss_scale.initial"},
    {.name = "min-loss-scale", .key = "precision.loss_scale.minimum"},
    {.name = "loss-scale-window", .key = "precision.loss_scale.interval"},
    {.name = "hysteresis", .refuse = "an overflow lowers the scale at once here", .neutral = "1"},
    {.name = "attention-softmax-in-fp32", .without = "softmax is always computed in fp32"},
    {.name = "no-query-key-layer-scaling", .without = "there is no such scaling here"},
    {.name = "apply-query-key-layer-scaling", .without = "softmax is computed in fp32, which needs no such scaling"},
    {.name = "accumulate-allreduce-grads-in-fp32",
     .without = "gradients are accumulated and reduced in fp32 unless precision.gradients says otherwise"},
    {.name = "grad-reduce-in-bf16", .key = "layout.reduce", .value = "\"bf16\""},
    {.name = "fp32-residual-connection", .refuse = "residuals are in the compute type"},
    {.name = "fp8-format", .take = take_fp8},
    {.name = "fp8-hybrid", .take = take_fp8},
    {.name = "fp8-recipe", .take = take_with_others},
    {.name = "fp8-margin", .key = "precision.fp8_margin"},
    {.name = "fp8-interval", .refuse = "scales are renewed every step", .neutral = "1"},
    {.name = "fp8-amax-history-len", .key = "precision.fp8_history"},
    {.name = "fp8-amax-compute-algo", .refuse = "the largest amax of the history counts here", .neutral = "max"},
    {.name = "fp8-param-gather", .refuse = "weights are gathered in the compute type"},
};

}  // namespace

std::span<const ImportRow> training_rows() { return kTraining; }

}  // namespace trireme::spec::megatron
