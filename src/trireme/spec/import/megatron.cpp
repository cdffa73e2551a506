// What becomes of the arguments of Megatron-LM's pretrain_gpt.py. Their rows are in the folder megatron/, by subject.
#include <fmt/format.h>

#include "trireme/spec/import/megatron/rows.h"

namespace trireme::spec {
namespace {

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
void megatron_finish(RecipeImport& in) {
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

std::vector<ImportRow> megatron_rows() {
  std::vector<ImportRow> rows;
  for (const auto part :
       {megatron::model_rows(), megatron::training_rows(), megatron::layout_rows(), megatron::run_rows()}) {
    rows.insert(rows.end(), part.begin(), part.end());
  }
  return rows;
}

}  // namespace

const ImportSource& megatron_source() {
  static const std::vector<ImportRow> rows = megatron_rows();
  static const ImportSource source{
      .name = "Megatron-LM", .prefix = "--", .rows = rows, .defaults = kMegatronDefaults, .finish = megatron_finish};
  return source;
}

}  // namespace trireme::spec
