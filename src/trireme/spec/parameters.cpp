#include "trireme/spec/parameters.h"

#include <fmt/format.h>

#include <algorithm>

namespace trireme::spec {
namespace {

using Split = ParameterShape::Split;

/// Appends what each part of a model has.
class ParameterLister {
 public:
  explicit ParameterLister(const ModelShape& shape) : shape_(shape) {}

  std::vector<ParameterShape> list() {
    const bool encoder = shape_.num_encoder_layers > 0;
    embedding();
    for (std::int64_t i = 0; i < shape_.num_encoder_layers; ++i) block(fmt::format("encoder.layers.{}", i), i, false);
    if (shape_.family == Family::kT5) norm("encoder.norm");
    for (std::int64_t i = 0; i < shape_.num_layers; ++i) block(fmt::format("layers.{}", i), i, encoder);
    if (shape_.norm_first) norm("norm");
    for (std::int64_t i = 0; i < shape_.mtp_depth; ++i) mtp(fmt::format("mtp.{}", i), shape_.num_layers + i);
    if (shape_.family == Family::kBert) {
      matrix("head.dense", hidden_, hidden_, Split::kNone, true);
      norm("head.norm");
    }
    if (!shape_.tied) add("head.weight", shape_.vocab_size, hidden_, Split::kRows);
    if (shape_.family == Family::kBert) add("head.bias", shape_.vocab_size, 0, Split::kRows);
    return std::move(list_);
  }

 private:
  void add(std::string name, std::int64_t rows, std::int64_t columns, Split split) {
    list_.push_back({std::move(name), rows, columns, split});
  }
  void norm(const std::string& name) {
    add(name + ".weight", hidden_, 0, Split::kNone);
    if (shape_.norm == NormKind::kLayer) add(name + ".bias", hidden_, 0, Split::kNone);
  }
  void matrix(const std::string& name, std::int64_t out, std::int64_t in, Split split, bool bias) {
    add(name + ".weight", out, in, split);
    // What a row-parallel matrix adds up over ranks has its bias once.
    if (bias) add(name + ".bias", out, 0, split == Split::kRows ? split : Split::kNone);
  }
  void embedding() {
    add("embedding.tokens.weight", shape_.vocab_size, hidden_, Split::kRows);
    if (shape_.position_kind == PositionKind::kLearned)
      add("embedding.positions.weight", shape_.max_seq_len, hidden_, Split::kNone);
    if (shape_.position_kind == PositionKind::kRelative) {
      add("encoder.relative_bias.weight", shape_.relative_attention_num_buckets, shape_.num_heads, Split::kColumns);
      add("relative_bias.weight", shape_.relative_attention_num_buckets, shape_.num_heads, Split::kColumns);
    }
    if (shape_.segments > 0) add("embedding.segments.weight", shape_.segments, hidden_, Split::kNone);
    if (shape_.family == Family::kBert) norm("embedding.norm");
  }
  void mtp(const std::string& name, std::int64_t layer) {
    norm(name + ".embedding_norm");
    norm(name + ".hidden_norm");
    matrix(name + ".projection", hidden_, 2 * hidden_, Split::kNone, false);
    block(name, layer, false);
    norm(name + ".norm");
  }
  void latent_attention(const std::string& name) {
    const Mla& mla = shape_.mla;
    const AttentionWidths widths = attention_widths(shape_);
    if (mla.q_lora_rank > 0) {
      matrix(name + ".q_down", mla.q_lora_rank, hidden_, Split::kNone, false);
      add(name + ".q_norm.weight", mla.q_lora_rank, 0, Split::kNone);
    }
    matrix(name + ".q_up", widths.queries, mla.q_lora_rank > 0 ? mla.q_lora_rank : hidden_, Split::kRows, false);
    matrix(name + ".kv_down", mla.kv_lora_rank + mla.qk_rope_head_dim, hidden_, Split::kNone, false);
    add(name + ".kv_norm.weight", mla.kv_lora_rank, 0, Split::kNone);
    matrix(name + ".kv_up", shape_.num_heads * shape_.head_dim + widths.values, mla.kv_lora_rank, Split::kRows, false);
    matrix(name + ".out", hidden_, widths.attended, Split::kColumns, shape_.output_bias);
  }
  void attention(const std::string& name) {
    const AttentionWidths widths = attention_widths(shape_);
    matrix(name + ".qkv", widths.queries + widths.keys + widths.values, hidden_, Split::kRows, shape_.attention_bias);
    if (shape_.query_key_norm) {
      add(name + ".q_norm.weight", shape_.head_dim, 0, Split::kNone);
      add(name + ".k_norm.weight", shape_.head_dim, 0, Split::kNone);
    }
    matrix(name + ".out", hidden_, widths.attended, Split::kColumns, shape_.output_bias);
  }
  void cross(const std::string& name) {
    const AttentionWidths widths = attention_widths(shape_);
    norm(name + ".norm");
    matrix(name + ".q", widths.queries, hidden_, Split::kRows, shape_.attention_bias);
    matrix(name + ".kv", widths.keys + widths.values, hidden_, Split::kRows, shape_.attention_bias);
    matrix(name + ".out", hidden_, widths.attended, Split::kColumns, shape_.output_bias);
  }
  void experts(const std::string& name) {
    const Experts& experts = shape_.experts;
    const std::int64_t into = shape_.gated ? 2 : 1, ffn = expert_ffn_size(shape_), shared = shared_ffn_size(shape_);
    matrix(name + ".router", router_outputs(experts), hidden_, Split::kNone, false);
    if (experts.router == RouterKind::kStrictBalance)
      add(name + ".router.thresholds", experts.num_experts, 0, Split::kNone);
    matrix(name + ".experts.in", experts.num_experts * into * ffn, hidden_, Split::kNone, false);
    matrix(name + ".experts.out", experts.num_experts * hidden_, ffn, Split::kNone, false);
    if (shared == 0) return;
    matrix(name + ".shared.in", into * shared, hidden_, Split::kRows, false);
    matrix(name + ".shared.out", hidden_, shared, Split::kColumns, false);
    if (experts.shared_expert_gate) matrix(name + ".shared.gate", 1, hidden_, Split::kNone, false);
  }
  void block(const std::string& name, std::int64_t layer, bool beside_encoder) {
    norm(name + ".attention.norm");
    if (shape_.mla.used()) {
      latent_attention(name + ".attention");
    } else {
      attention(name + ".attention");
    }
    if (beside_encoder) cross(name + ".cross");
    norm(name + ".mlp.norm");
    if (has_experts(shape_, layer)) return experts(name + ".mlp");
    matrix(name + ".mlp.in", shape_.ffn_size * (shape_.gated ? 2 : 1), hidden_, Split::kRows, shape_.mlp_bias);
    matrix(name + ".mlp.out", hidden_, shape_.ffn_size, Split::kColumns, shape_.mlp_bias);
  }

  const ModelShape& shape_;
  std::int64_t hidden_ = shape_.hidden_size;
  std::vector<ParameterShape> list_;
};

}  // namespace

std::vector<ParameterShape> list_parameters(const ModelShape& shape) { return ParameterLister(shape).list(); }

bool takes_gemm_precision(std::string_view name) {
  return (name.starts_with("layers.") || name.starts_with("encoder.")) && !name.ends_with(".router.weight") &&
         !name.ends_with(".shared.gate.weight");
}

ParameterShape on_tensor_rank(const ParameterShape& parameter, const ModelShape& shape, int tp) {
  ParameterShape local = parameter;
  const auto shared = [tp](std::int64_t count) { return (count + tp - 1) / tp; };
  if (parameter.split == Split::kColumns) local.columns = shared(parameter.columns);
  if (parameter.split != Split::kRows) return local;
  const std::int64_t queries = shared(shape.num_heads) * shape.head_dim,
                     keys = std::max<std::int64_t>(1, shape.num_kv_heads / tp) * shape.head_dim;
  if (parameter.name.find(".qkv.") != std::string::npos) {
    local.rows = queries + 2 * keys;
  } else if (parameter.name.find(".kv.") != std::string::npos) {
    local.rows = 2 * keys;
  } else {
    local.rows = shared(parameter.rows);
  }
  return local;
}

}  // namespace trireme::spec
