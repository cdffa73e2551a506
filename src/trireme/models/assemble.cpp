#include "trireme/models/assemble.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "trireme/models/model.h"

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

Assembly::Assembly(nn::Params& params, nn::moe::Balance& balance, const spec::ModelShape& shape,
                   const nn::ParallelContext& parallel, const BuildOptions& options)
    : params_(params),
      balance_(balance),
      shape_(shape),
      parallel_(parallel),
      recompute_core_(options.recompute.kind == nn::RecomputeKind::kSelective),
      recompute_norms_(options.recompute_norms),
      save_mlp_activations_(options.save_mlp_activations),
      deterministic_(options.deterministic_attention),
      slices_experts_(options.slice_experts && parallel.tensor_ranks() > 1) {
  if (shape.experts.used()) balance_.follow(rebalance_policy(shape.experts, parallel));
  if (shape.position_kind == spec::PositionKind::kRotary) {
    rotary_ = std::make_shared<nn::RotaryEmbedding>(
        shape.rotary, shape.mla.used() ? shape.mla.qk_rope_head_dim : shape.head_dim, shape.max_seq_len);
  }
}

Init Assembly::matrix_init(std::int64_t in, std::int64_t out, bool residual) const {
  if (shape_.family == spec::Family::kTransformer) {  // Glorot's bound, as the original code starts
    return {Init::Kind::kUniform, std::sqrt(6.0 / static_cast<double>(in + out))};
  }
  // GPT-2: each layer adds two branches to the residual stream, whose variance stays when they start smaller.
  const double shrink =
      residual && shape_.scaled_residual_init ? std::sqrt(2.0 * static_cast<double>(shape_.num_layers)) : 1;
  return {Init::Kind::kNormal, shape_.init_std * spec::mup_of(shape_).matrix_init / shrink};
}

nn::Param& Assembly::vector(const std::string& name, std::int64_t size, Init init) {
  nn::Param& param = params_.add(parallel_.placing(name, {size}).placement(), init, /*decay=*/false);
  param.equal_axes = parallel_.equal_grad_axes();
  return param;
}

nn::Norm Assembly::norm(const std::string& name) {
  const bool layer = shape_.norm == spec::NormKind::kLayer;
  nn::Param& weight = vector(name + ".weight", shape_.hidden_size, kOnes);
  nn::Param* bias = layer ? &vector(name + ".bias", shape_.hidden_size, kZeros) : nullptr;
  return {
      {.kind = layer ? kernels::NormKind::kLayer : kernels::NormKind::kRms, .epsilon = shape_.epsilon}, &weight, bias};
}

nn::Linear Assembly::linear(const std::string& name, std::int64_t in, std::int64_t out, bool bias) {
  nn::Param& weight =
      params_.add(parallel_.placing(name + ".weight", {out, in}).placement(), matrix_init(in, out, false),
                  /*decay=*/true);
  weight.equal_axes = parallel_.equal_grad_axes();
  weight.rate = spec::mup_of(shape_).matrix_rate;
  return {weight, bias ? &vector(name + ".bias", out, kZeros) : nullptr};
}

nn::Linear Assembly::column(const std::string& name, std::int64_t in, const std::vector<layout::Block>& blocks,
                            bool bias) {
  std::int64_t out = 0;
  for (const layout::Block& block : blocks) out += block.size;
  layout::Placing weight = parallel_.placing(name + ".weight", {out, in}),
                  vector = parallel_.placing(name + ".bias", {out});
  if (parallel_.tensor_ranks() > 1) {
    weight.split_blocks(0, nn::kTensorAxis, blocks);
    vector.split_blocks(0, nn::kTensorAxis, blocks);
  }
  nn::Param& matrix = params_.add(weight.placement(), matrix_init(in, out, false), /*decay=*/true);
  matrix.rate = spec::mup_of(shape_).matrix_rate;
  return {matrix, bias ? &params_.add(vector.placement(), kZeros, /*decay=*/false) : nullptr, nn::LinearSplit::kColumn,
          parallel_};
}

nn::Linear Assembly::row(const std::string& name, layout::Block in, std::int64_t out, bool bias) {
  layout::Placing weight = parallel_.placing(name + ".weight", {out, in.size});
  if (parallel_.tensor_ranks() > 1) weight.split_blocks(1, nn::kTensorAxis, std::array{in});
  nn::Param& matrix = params_.add(weight.placement(), matrix_init(in.size, out, true), /*decay=*/true);
  matrix.rate = spec::mup_of(shape_).matrix_rate;
  return {matrix, bias ? &vector(name + ".bias", out, kZeros) : nullptr, nn::LinearSplit::kRow, parallel_};
}

nn::Dropout Assembly::dropout(const std::string& name) const {
  return {name, shape_.dropout,
          parallel_.splits_sequence() ? nn::SequencePart{parallel_.tensor_rank(), parallel_.tensor_ranks()}
                                      : nn::SequencePart{}};
}

std::unique_ptr<nn::Layer> Assembly::linear_layer(const std::string& name, std::int64_t in, std::int64_t out,
                                                  bool bias) {
  return std::make_unique<nn::Linear>(linear(name, in, out, bias));
}

Init Assembly::embedding_init() const {
  if (shape_.family == spec::Family::kT5 && shape_.tied) return {Init::Kind::kNormal, 1};  // its head scales logits
  return {Init::Kind::kNormal,
          shape_.embedding_scale ? 1 / std::sqrt(static_cast<double>(shape_.hidden_size)) : shape_.init_std};
}

nn::Param& Assembly::token_table() {
  const std::string name = "embedding.tokens.weight";
  if (params_.find(name) != nullptr) return params_.at(name);
  return params_.add(vocabulary_placement(name, {shape_.vocab_size, shape_.hidden_size}), embedding_init(), true);
}

layout::Placement Assembly::vocabulary_placement(const std::string& name, layout::Shape shape) const {
  const std::int64_t ranks = parallel_.tensor_ranks(), rows = (shape[0] + ranks - 1) / ranks * ranks;
  layout::Placing placing = parallel_.placing(name, std::move(shape));
  if (ranks > 1) placing.split_padded(nn::kTensorAxis, rows);
  return placing.placement();
}

nn::Param& Assembly::table(const std::string& name, std::int64_t rows, nn::Init init) {
  nn::Param& param = params_.add(parallel_.placing(name, {rows, shape_.hidden_size}).placement(), init, /*decay=*/true);
  param.equal_axes = parallel_.equal_grad_axes();
  return param;
}

std::unique_ptr<nn::UnaryLayer> Assembly::embedding(nn::Stream stream) {
  const std::int64_t hidden = shape_.hidden_size;
  const Init init = embedding_init();
  // Encoder and decoder read one vocabulary with one table, as the original shares them.
  nn::EmbeddingParts parts{.tokens = &token_table(), .stream = stream};
  if (shape_.embedding_scale) parts.scale = std::sqrt(static_cast<double>(hidden));
  if (shape_.position_kind == spec::PositionKind::kLearned) {
    parts.positions = &table("embedding.positions.weight", shape_.max_seq_len, init);
  } else if (shape_.position_kind == spec::PositionKind::kSinusoidal) {
    parts.fixed_positions = nn::sinusoidal_positions(shape_.max_seq_len, hidden);
  }
  if (shape_.segments > 0) {
    parts.segments = &table("embedding.segments.weight", shape_.segments, init);
  }
  std::optional<nn::Norm> normed;
  if (shape_.family == spec::Family::kBert) normed = norm("embedding.norm");
  const std::string name = stream == nn::Stream::kSource ? "encoder.embedding" : "embedding";
  return std::make_unique<nn::Embedding>(std::move(parts), std::move(normed), dropout(name), parallel_);
}

layout::Block Assembly::query_block() const { return {shape_.num_heads * shape_.head_dim, shape_.num_heads}; }
layout::Block Assembly::key_block() const { return {shape_.num_kv_heads * shape_.head_dim, shape_.num_kv_heads}; }

nn::AttentionShape Assembly::attention_shape(const std::string& name) const {
  const std::int64_t ranks = parallel_.tensor_ranks(), heads = shape_.num_heads / ranks;
  const std::int64_t head_dim = shape_.head_dim + (shape_.mla.used() ? shape_.mla.qk_rope_head_dim : 0);
  return {.name = name + ".probabilities",
          .num_heads = heads,
          .num_kv_heads = std::max<std::int64_t>(1, shape_.num_kv_heads / ranks),
          .head_dim = head_dim,
          .first_head = parallel_.tensor_rank() * heads,
          .scale = spec::attention_scale(shape_),
          .dropout = shape_.attention_dropout,
          .recompute_core = recompute_core_,
          .deterministic = deterministic_};
}

nn::Branch Assembly::attention(const std::string& name, std::int64_t layer, BlockKind kind) {
  nn::AttentionShape shape = attention_shape(name);
  shape.causal = kind != BlockKind::kEncoder && shape_.causal;
  shape.window = kind == BlockKind::kEncoder ? 0 : spec::window_of(shape_, layer);
  shape.cache_layer = static_cast<int>(layer);
  shape.stream = kind == BlockKind::kEncoder ? nn::Stream::kSource : nn::Stream::kSequence;
  if (shape_.sparse_attention.used()) {
    if (sparse_ == nullptr)
      sparse_ = std::make_shared<nn::SparseLayouts>(shape_.sparse_attention, shape_.num_heads, shape.causal,
                                                    shape_.max_seq_len);
    shape.sparse = sparse_;
  }
  if (shape_.position_kind == spec::PositionKind::kRelative) shape.relative = relative_bias(kind);
  nn::Norm normed = norm(name + ".norm");
  auto body = shape_.mla.used() ? latent_attention(name, std::move(shape)) : plain_attention(name, std::move(shape));
  return {.norm = normed, .body = std::move(body), .dropout = dropout(name)};
}

std::shared_ptr<nn::RelativeBias> Assembly::relative_bias(BlockKind kind) {
  const bool encoder = kind == BlockKind::kEncoder;
  std::shared_ptr<nn::RelativeBias>& found = encoder ? encoder_bias_ : decoder_bias_;
  if (found) return found;
  const std::string name = encoder ? "encoder.relative_bias.weight" : "relative_bias.weight";
  const nn::RelativeBuckets buckets{.buckets = shape_.relative_attention_num_buckets,
                                    .max_distance = shape_.relative_attention_max_distance,
                                    .both_sides = encoder};
  layout::Placing placing = parallel_.placing(name, {buckets.buckets, shape_.num_heads});
  if (parallel_.tensor_ranks() > 1)  // each rank has its heads
    placing.split_blocks(1, nn::kTensorAxis, std::array{layout::Block{shape_.num_heads, shape_.num_heads}});
  nn::Param& table = params_.add(placing.placement(), {Init::Kind::kNormal, shape_.init_std}, /*decay=*/false);
  found = std::make_shared<nn::RelativeBias>(buckets, table,
                                             parallel_.tensor_rank() * (shape_.num_heads / parallel_.tensor_ranks()));
  return found;
}

std::unique_ptr<nn::Layer> Assembly::plain_attention(const std::string& name, nn::AttentionShape shape) {
  const layout::Block queries = query_block(), keys = key_block();
  const nn::Linear qkv = column(name + ".qkv", shape_.hidden_size, {queries, keys, keys}, shape_.attention_bias);
  std::optional<nn::QueryKeyNorm> head_norms;
  if (shape_.query_key_norm) {
    const kernels::Norm rms{.kind = kernels::NormKind::kRms, .epsilon = shape_.epsilon};
    nn::Param& q = vector(name + ".q_norm.weight", shape.head_dim, kOnes);
    nn::Param& k = vector(name + ".k_norm.weight", shape.head_dim, kOnes);
    q.equal_axes = k.equal_axes = {};  // each rank sees its own heads only
    head_norms.emplace(nn::QueryKeyNorm{nn::Norm(rms, &q, nullptr), nn::Norm(rms, &k, nullptr)});
  }
  const nn::Linear out = row(name + ".out", queries, shape_.hidden_size, shape_.output_bias);
  return std::make_unique<nn::SelfAttention>(std::move(shape), qkv, out, std::move(head_norms), rotary_,
                                             nn::make_context_core(parallel_));
}

nn::Norm Assembly::latent_norm(const std::string& name, std::int64_t rank) {
  return {
      {.kind = kernels::NormKind::kRms, .epsilon = shape_.epsilon}, &vector(name + ".weight", rank, kOnes), nullptr};
}

std::unique_ptr<nn::Layer> Assembly::latent_attention(const std::string& name, nn::AttentionShape shape) {
  const spec::Mla& mla = shape_.mla;
  const std::int64_t hidden = shape_.hidden_size, heads = shape_.num_heads;
  const nn::LatentSizes sizes{.kv_lora_rank = mla.kv_lora_rank,
                              .qk_nope_head_dim = shape_.head_dim,
                              .qk_rope_head_dim = mla.qk_rope_head_dim,
                              .v_head_dim = mla.v_head_dim};
  std::optional<nn::LatentProjections::Down> q_down;
  if (mla.q_lora_rank > 0) {
    const nn::Linear down = linear(name + ".q_down", hidden, mla.q_lora_rank, /*bias=*/false);
    q_down.emplace(nn::LatentProjections::Down{down, latent_norm(name + ".q_norm", mla.q_lora_rank)});
  }
  const nn::Linear q_up = column(name + ".q_up", mla.q_lora_rank > 0 ? mla.q_lora_rank : hidden,
                                 {{heads * sizes.qk_head_dim(), heads}}, /*bias=*/false);
  const nn::Linear kv_down = linear(name + ".kv_down", hidden, mla.kv_lora_rank + mla.qk_rope_head_dim, /*bias=*/false);
  const nn::Norm kv_norm = latent_norm(name + ".kv_norm", mla.kv_lora_rank);
  const nn::Linear kv_up = column(name + ".kv_up", mla.kv_lora_rank,
                                  {{heads * (sizes.qk_nope_head_dim + sizes.v_head_dim), heads}}, /*bias=*/false);
  const nn::Linear out = row(name + ".out", {heads * sizes.v_head_dim, heads}, hidden, shape_.output_bias);
  return std::make_unique<nn::LatentAttention>(
      std::move(shape), sizes, nn::LatentProjections{std::move(q_down), q_up, kv_down, kv_norm, kv_up, out}, rotary_,
      nn::make_context_core(parallel_), parallel_);
}

nn::Branch Assembly::cross(const std::string& name) {
  nn::AttentionShape shape = attention_shape(name);
  shape.causal = false;
  const layout::Block queries = query_block(), keys = key_block();
  nn::Norm normed = norm(name + ".norm");
  const nn::Linear q = column(name + ".q", shape_.hidden_size, {queries}, shape_.attention_bias);
  const nn::Linear kv = column(name + ".kv", shape_.hidden_size, {keys, keys}, shape_.attention_bias);
  const nn::Linear out = row(name + ".out", queries, shape_.hidden_size, shape_.output_bias);
  return {.norm = normed,
          .body = std::make_unique<nn::CrossAttention>(std::move(shape), q, kv, out, parallel_),
          .dropout = dropout(name),
          .takes_memory = true};
}

nn::Branch Assembly::mlp(const std::string& name) {
  nn::Norm normed = norm(name + ".norm");
  const layout::Block ffn{.size = shape_.ffn_size};
  const std::vector<layout::Block> into(shape_.gated ? 2 : 1, ffn);
  const nn::Linear in = column(name + ".in", shape_.hidden_size, into, shape_.mlp_bias);
  const nn::Linear out = row(name + ".out", ffn, shape_.hidden_size, shape_.mlp_bias);
  return {.norm = normed,
          .body = std::make_unique<nn::Mlp>(in, out, to_kernel(shape_.activation), shape_.gated, save_mlp_activations_),
          .dropout = dropout(name)};
}

std::unique_ptr<nn::Layer> Assembly::block(const std::string& name, std::int64_t layer, BlockKind kind) {
  std::vector<nn::Branch> branches;
  branches.push_back(attention(name + ".attention", layer, kind));
  if (kind == BlockKind::kDecoderBesideEncoder) branches.push_back(cross(name + ".cross"));
  const auto stream = kind == BlockKind::kEncoder ? nn::Stream::kSource : nn::Stream::kSequence;
  const bool mixture = spec::has_experts(shape_, layer);
  branches.push_back(mixture ? experts(name + ".mlp", stream) : mlp(name + ".mlp"));
  return std::make_unique<nn::Block>(std::move(branches), shape_.norm_first, stream, recompute_norms_);
}

nn::Param& Assembly::head_weight() {
  if (shape_.tied) return token_table();
  const std::string name = "head.weight";
  if (params_.find(name) != nullptr) return params_.at(name);
  Init init = matrix_init(shape_.hidden_size, shape_.vocab_size, false);
  init.scale /= spec::mup_of(shape_).matrix_init;  // muP scales logits instead
  return params_.add(vocabulary_placement(name, {shape_.vocab_size, shape_.hidden_size}), init, /*decay=*/true);
}

std::unique_ptr<nn::Layer> Assembly::head(std::int64_t chunk_bytes) {
  nn::Param& weight = head_weight();
  nn::Param* bias = shape_.family == spec::Family::kBert
                        ? &params_.add(vocabulary_placement("head.bias", {shape_.vocab_size}), kZeros, /*decay=*/false)
                        : nullptr;
  const nn::HeadOptions options{.label_smoothing = shape_.label_smoothing,
                                .z_loss = shape_.z_loss,
                                .chunk_bytes = chunk_bytes,
                                .input_scale = spec::head_scale(shape_)};
  return std::make_unique<nn::Head>(weight, bias, options, parallel_);
}

std::unique_ptr<nn::Layer> Assembly::multi_token_prediction(const BuildOptions& options) {
  /// What a module has beside the tables that it shares.
  struct Own {
    nn::Norm embedding_norm, hidden_norm;
    nn::Linear projection;
    std::unique_ptr<nn::Layer> block;
    nn::Norm norm;
  };
  const std::int64_t hidden = shape_.hidden_size;
  std::vector<Own> own;
  for (std::int64_t depth = 0; depth < shape_.mtp_depth; ++depth) {
    const std::string name = fmt::format("mtp.{}", depth);
    const nn::Norm embedding_norm = norm(name + ".embedding_norm"), hidden_norm = norm(name + ".hidden_norm");
    const nn::Linear projection = linear(name + ".projection", 2 * hidden, hidden, /*bias=*/false);
    auto layer = block(name, shape_.num_layers + depth, BlockKind::kPlain);
    if (options.recompute.kind == nn::RecomputeKind::kFull) layer = std::make_unique<nn::Recomputed>(std::move(layer));
    own.push_back({embedding_norm, hidden_norm, projection, std::move(layer), norm(name + ".norm")});
  }
  std::vector<nn::MtpModule> modules;
  for (Own& one : own) {
    const std::int64_t depth = static_cast<std::int64_t>(modules.size());
    const nn::HeadOptions of_head{.label_smoothing = shape_.label_smoothing,
                                  .chunk_bytes = options.logits_chunk_bytes,
                                  .term = fmt::format("mtp_{}", depth + 1),
                                  .weight = shape_.mtp_loss_weight / static_cast<double>(shape_.mtp_depth),
                                  .input_scale = spec::head_scale(shape_)};
    modules.push_back({.embedding = embedding(nn::Stream::kSequence),
                       .embedding_norm = one.embedding_norm,
                       .hidden_norm = one.hidden_norm,
                       .projection = one.projection,
                       .block = std::move(one.block),
                       .norm = one.norm,
                       .head = nn::Head(head_weight(), nullptr, of_head, parallel_)});
  }
  return std::make_unique<nn::MultiTokenPrediction>(std::move(modules));
}

}  // namespace trireme::models
