// The model: shapes, norms, positions, biases, initial values.
#include "trireme/spec/import/megatron/rows.h"

namespace trireme::spec::megatron {
namespace {

void take_normalization(RecipeImport& in, const ForeignKey& given) {
  const std::string norm = in.text(given.name);
  if (norm == "LayerNorm" || norm == "RMSNorm") {
    in.set_text("model.norm", norm == "RMSNorm" ? "rms" : "layer", in.origin(given));
  } else {
    in.refuse(given, "no norm that is here", "take LayerNorm or RMSNorm");
  }
}

void take_positions(RecipeImport& in, const ForeignKey& given) {
  const std::string kind = given.name == "use-rotary-position-embeddings" ? "rope" : in.text(given.name);
  if (kind == "rope" || kind == "learned_absolute") {
    in.set_text("model.position_kind", kind == "rope" ? "rotary" : "learned", in.origin(given));
  } else {
    in.refuse(given, "no position embedding that is here", "take rope or learned_absolute");
  }
}

void take_rotary_percent(RecipeImport& in, const ForeignKey& given) {
  if (in.number(given.name) == 1) {
    in.without_effect(given, "every dimension is rotated");
  } else {
    in.refuse(given, "rotary embeddings of a part of a head are not built here", "set it to 1.0");
  }
}

void take_rope_scaling(RecipeImport& in, const ForeignKey& given) {
  in.set_text("model.rotary.scaling", "llama3", in.origin(given));
  in.set("model.rotary.factor", in.number("rope-scaling-factor", 8.0), "--rope-scaling-factor");
  in.set("model.rotary.low_freq_factor", 1.0, "Llama 3.1's");
  in.set("model.rotary.high_freq_factor", 4.0, "Llama 3.1's");
  in.set("model.rotary.original_max_position_embeddings", std::int64_t{8192}, "Llama 3.1's");
}

void take_num_heads(RecipeImport& in, const ForeignKey& given) {
  in.set("model.num_heads", foreign_text(given.value), in.origin(given));
  const bool grouped = in.flag("group-query-attention");
  in.set("model.num_kv_heads",
         static_cast<std::int64_t>(in.number(grouped ? "num-query-groups" : "num-attention-heads", 1)),
         grouped ? "--group-query-attention --num-query-groups" : "no --group-query-attention");
}

void take_swiglu(RecipeImport& in, const ForeignKey& given) {
  in.set("model.gated", "true", in.origin(given));
  in.set_text("model.activation", "silu", in.origin(given));
}

void take_disable_bias(RecipeImport& in, const ForeignKey& given) {
  for (const char* key : {"model.mlp_bias", "model.output_bias"}) in.set(key, "false", in.origin(given));
  in.set("model.attention_bias", in.flag("add-qkv-bias") ? "true" : "false", in.origin(given));
}

const ImportRow kModel[] = {
    {.name = "num-layers", .key = "model.num_layers"},
    {.name = "hidden-size", .key = "model.hidden_size"},
    {.name = "ffn-hidden-size", .key = "model.ffn_size"},
    {.name = "num-attention-heads", .take = take_num_heads},
    {.name = "kv-channels", .key = "model.head_dim"},
    {.name = "group-query-attention", .take = take_with_others},
    {.name = "num-query-groups", .take = take_with_others},
    {.name = "max-position-embeddings", .key = "model.max_seq_len"},
    {.name = "position-embedding-type", .take = take_positions},
    {.name = "use-rotary-position-embeddings", .take = take_positions},
    {.name = "no-position-embedding", .without = "positions are those of --position-embedding-type"},
    {.name = "rotary-base", .key = "model.rotary.base"},
    {.name = "rotary-percent", .take = take_rotary_percent},
    {.name = "rotary-interleaved", .refuse = "rotary pairs are halves of a head here"},
    {.name = "rotary-seq-len-interpolation-factor",
     .take =
         [](RecipeImport& in, const ForeignKey& given) {
           in.set_text("model.rotary.scaling", "linear", in.origin(given));
           in.set("model.rotary.factor", foreign_text(given.value), in.origin(given));
         }},
    {.name = "use-rope-scaling", .take = take_rope_scaling},
    {.name = "rope-scaling-factor", .take = take_with_others},
    {.name = "normalization", .take = take_normalization},
    {.name = "norm-epsilon", .key = "model.epsilon"},
    {.name = "layernorm-epsilon", .key = "model.epsilon"},
    {.name = "apply-layernorm-1p", .refuse = "norms with 1 + weight are not built here"},
    {.name = "swiglu", .take = take_swiglu},
    {.name = "squared-relu", .refuse = "squared ReLU is not built here"},
    {.name = "openai-gelu", .key = "model.activation", .value = "\"gelu-tanh\""},
    {.name = "disable-bias-linear", .take = take_disable_bias},
    {.name = "add-qkv-bias", .key = "model.attention_bias", .value = "true"},
    {.name = "qk-layernorm", .key = "model.query_key_norm", .value = "true"},
    {.name = "untie-embeddings-and-output-weights", .key = "model.tied", .value = "false"},
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
};

}  // namespace

std::span<const ImportRow> model_rows() { return kModel; }

}  // namespace trireme::spec::megatron
