#include "trireme/models/assemble.h"

#include <cmath>

namespace trireme::models {
namespace {

using nn::Init;

constexpr Init kZeros{Init::Kind::kZeros, 0};
constexpr Init kOnes{Init::Kind::kOnes, 0};

}  // namespace

kernels::Activation to_kernel(spec::Activation activation) {
  switch (activation) {
    case spec::Activation::kRelu:
      return kernels::Activation::kRelu;
    case spec::Activation::kGelu:
      return kernels::Activation::kGelu;
    case spec::Activation::kGeluTanh:
      return kernels::Activation::kGeluTanh;
    case spec::Activation::kSilu:
      return kernels::Activation::kSilu;
  }
  return kernels::Activation::kRelu;
}

Assembly::Assembly(nn::Params& params, const spec::ModelShape& shape, bool recompute_core)
    : params_(params), shape_(shape), recompute_core_(recompute_core) {
  if (shape.position_kind == spec::PositionKind::kRotary) {
    rotary_ = std::make_shared<nn::RotaryTable>(shape.rotary, shape.head_size);
  }
}

Init Assembly::matrix_init(std::int64_t in, std::int64_t out, bool residual) const {
  if (shape_.family == spec::Family::kTransformer) {  // Glorot's bound, as the original code starts
    return {Init::Kind::kUniform, std::sqrt(6.0 / static_cast<double>(in + out))};
  }
  // GPT-2: each layer adds two branches to the residual stream, whose variance stays when they start smaller.
  const double shrink =
      residual && shape_.scaled_residual_init ? std::sqrt(2.0 * static_cast<double>(shape_.layers)) : 1;
  return {Init::Kind::kNormal, shape_.init_std / shrink};
}

nn::Norm Assembly::norm(const std::string& name) {
  const bool layer = shape_.norm == spec::NormKind::kLayer;
  nn::Param& weight = params_.add(name + ".weight", {shape_.width}, kOnes, /*decay=*/false);
  nn::Param* bias = layer ? &params_.add(name + ".bias", {shape_.width}, kZeros, /*decay=*/false) : nullptr;
  return {
      {.kind = layer ? kernels::NormKind::kLayer : kernels::NormKind::kRms, .epsilon = shape_.epsilon}, &weight, bias};
}

nn::Linear Assembly::linear(const std::string& name, std::int64_t in, std::int64_t out, bool bias, bool residual) {
  nn::Param& weight = params_.add(name + ".weight", {out, in}, matrix_init(in, out, residual), /*decay=*/true);
  return {weight, bias ? &params_.add(name + ".bias", {out}, kZeros, /*decay=*/false) : nullptr};
}

std::unique_ptr<nn::Layer> Assembly::linear_layer(const std::string& name, std::int64_t in, std::int64_t out,
                                                  bool bias) {
  return std::make_unique<nn::Linear>(linear(name, in, out, bias));
}

Init Assembly::embedding_init() const {
  return {Init::Kind::kNormal,
          shape_.embedding_scale ? 1 / std::sqrt(static_cast<double>(shape_.width)) : shape_.init_std};
}

nn::Param& Assembly::token_table() {
  const std::string name = "embedding.tokens.weight";
  if (params_.find(name) != nullptr) return params_.at(name);
  return params_.add(name, {shape_.vocabulary, shape_.width}, embedding_init(), true);
}

std::unique_ptr<nn::UnaryLayer> Assembly::embedding(nn::Stream stream) {
  const std::int64_t width = shape_.width;
  const Init init = embedding_init();
  // Encoder and decoder read one vocabulary with one table, as the original shares them.
  nn::EmbeddingParts parts{.tokens = &token_table(), .stream = stream};
  if (shape_.embedding_scale) parts.scale = std::sqrt(static_cast<double>(width));
  if (shape_.position_kind == spec::PositionKind::kLearned) {
    parts.positions = &params_.add("embedding.positions.weight", {shape_.positions, width}, init, true);
  } else if (shape_.position_kind == spec::PositionKind::kSinusoidal) {
    parts.fixed_positions = nn::sinusoidal_positions(shape_.positions, width);
  }
  if (shape_.segments > 0) {
    parts.segments = &params_.add("embedding.segments.weight", {shape_.segments, width}, init, true);
  }
  std::optional<nn::Norm> normed;
  if (shape_.family == spec::Family::kBert) normed = norm("embedding.norm");
  const std::string name = stream == nn::Stream::kSource ? "encoder.embedding" : "embedding";
  return std::make_unique<nn::Embedding>(std::move(parts), std::move(normed), nn::Dropout(name, shape_.dropout));
}

nn::AttentionShape Assembly::attention_shape(const std::string& name) const {
  return {.name = name + ".probabilities",
          .heads = shape_.heads,
          .kv_heads = shape_.kv_heads,
          .head_size = shape_.head_size,
          .dropout = shape_.attention_dropout,
          .recompute_core = recompute_core_};
}

nn::Branch Assembly::attention(const std::string& name, std::int64_t layer, BlockKind kind) {
  nn::AttentionShape shape = attention_shape(name);
  shape.causal = kind != BlockKind::kEncoder && shape_.causal;
  shape.window = kind == BlockKind::kEncoder ? 0 : spec::window_of(shape_, layer);
  shape.cache_layer = static_cast<int>(layer);
  shape.stream = kind == BlockKind::kEncoder ? nn::Stream::kSource : nn::Stream::kSequence;
  const std::int64_t queries = shape.heads * shape.head_size, keys = shape.kv_heads * shape.head_size;
  nn::Norm normed = norm(name + ".norm");
  const nn::Linear qkv = linear(name + ".qkv", shape_.width, queries + 2 * keys, shape_.attention_bias);
  std::optional<nn::QueryKeyNorm> head_norms;
  if (shape_.query_key_norm) {
    const kernels::Norm rms{.kind = kernels::NormKind::kRms, .epsilon = shape_.epsilon};
    nn::Param& q = params_.add(name + ".q_norm.weight", {shape.head_size}, kOnes, false);
    nn::Param& k = params_.add(name + ".k_norm.weight", {shape.head_size}, kOnes, false);
    head_norms.emplace(nn::QueryKeyNorm{nn::Norm(rms, &q, nullptr), nn::Norm(rms, &k, nullptr)});
  }
  const nn::Linear out = linear(name + ".out", queries, shape_.width, shape_.output_bias, /*residual=*/true);
  return {.norm = normed,
          .body = std::make_unique<nn::SelfAttention>(std::move(shape), qkv, out, std::move(head_norms), rotary_),
          .dropout = nn::Dropout(name, shape_.dropout)};
}

nn::Branch Assembly::cross(const std::string& name) {
  nn::AttentionShape shape = attention_shape(name);
  shape.causal = false;
  const std::int64_t queries = shape.heads * shape.head_size, keys = shape.kv_heads * shape.head_size;
  nn::Norm normed = norm(name + ".norm");
  const nn::Linear q = linear(name + ".q", shape_.width, queries, shape_.attention_bias);
  const nn::Linear kv = linear(name + ".kv", shape_.width, 2 * keys, shape_.attention_bias);
  const nn::Linear out = linear(name + ".out", queries, shape_.width, shape_.output_bias, /*residual=*/true);
  return {.norm = normed,
          .body = std::make_unique<nn::CrossAttention>(std::move(shape), q, kv, out),
          .dropout = nn::Dropout(name, shape_.dropout),
          .takes_memory = true};
}

nn::Branch Assembly::mlp(const std::string& name) {
  nn::Norm normed = norm(name + ".norm");
  const std::int64_t into = shape_.gated ? 2 * shape_.inner : shape_.inner;
  const nn::Linear in = linear(name + ".in", shape_.width, into, shape_.mlp_bias);
  const nn::Linear out = linear(name + ".out", shape_.inner, shape_.width, shape_.mlp_bias, /*residual=*/true);
  return {.norm = normed,
          .body = std::make_unique<nn::Mlp>(in, out, to_kernel(shape_.activation), shape_.gated),
          .dropout = nn::Dropout(name, shape_.dropout)};
}

std::unique_ptr<nn::Layer> Assembly::block(const std::string& name, std::int64_t layer, BlockKind kind) {
  std::vector<nn::Branch> branches;
  branches.push_back(attention(name + ".attention", layer, kind));
  if (kind == BlockKind::kDecoderBesideEncoder) branches.push_back(cross(name + ".cross"));
  branches.push_back(mlp(name + ".mlp"));
  const auto stream = kind == BlockKind::kEncoder ? nn::Stream::kSource : nn::Stream::kSequence;
  return std::make_unique<nn::Block>(std::move(branches), shape_.norm_first, stream);
}

std::unique_ptr<nn::Layer> Assembly::head(std::int64_t chunk_bytes) {
  if (!shape_.tied) {
    params_.add("head.weight", {shape_.vocabulary, shape_.width}, matrix_init(shape_.width, shape_.vocabulary, false),
                true);
  }
  nn::Param& weight = shape_.tied ? token_table() : params_.at("head.weight");
  nn::Param* bias =
      shape_.family == spec::Family::kBert ? &params_.add("head.bias", {shape_.vocabulary}, kZeros, false) : nullptr;
  const nn::HeadOptions options{
      .label_smoothing = shape_.label_smoothing, .z_loss = shape_.z_loss, .chunk_bytes = chunk_bytes};
  return std::make_unique<nn::Head>(weight, bias, options);
}

}  // namespace trireme::models
