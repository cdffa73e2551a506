// models/assemble.h -- layers from a shape: names, sizes and starting rules of every parameter, in one place.
//
// Our names: embedding.tokens, embedding.positions, layers.N.attention.{norm,qkv,out}, layers.N.cross.{norm,q,kv,out},
// layers.N.mlp.{norm,in,out}, norm, head, each with .weight and .bias; layers.N.mlp.{router,experts.in,experts.out,
// shared.in,shared.out,shared.gate} in place of in and out for experts; encoder.layers.N for an encoder beside a
// decoder; layers.N.attention.{q_down,q_norm,q_up,kv_down,kv_norm,kv_up} in place of qkv for latent attention;
// mtp.N.{embedding_norm,hidden_norm,projection,attention,mlp,norm} for multi-token prediction; encoder.relative_bias,
// relative_bias and encoder.norm for T5.
// Depends on: base, spec, kernels, nn.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "trireme/kernels/activation.h"
#include "trireme/nn/attention.h"
#include "trireme/nn/block.h"
#include "trireme/nn/embedding.h"
#include "trireme/nn/head.h"
#include "trireme/nn/latent_attention.h"
#include "trireme/nn/mlp.h"
#include "trireme/nn/moe/moe_layer.h"
#include "trireme/nn/multi_token.h"
#include "trireme/nn/relative_bias.h"
#include "trireme/spec/model_shape.h"

namespace trireme::models {

struct BuildOptions;

kernels::Activation to_kernel(spec::Activation activation);

enum class BlockKind : std::uint8_t {
  kPlain,                 ///< a decoder's, or BERT's: attention and MLP, masked as the shape says
  kEncoder,               ///< sees all of its tokens
  kDecoderBesideEncoder,  ///< attention, attention to the encoder's output, MLP
};

nn::moe::RebalancePolicy rebalance_policy(const spec::Experts& config, const nn::ParallelContext& parallel);

class Assembly {
 public:
  /// All are borrowed, also by the layers; `balance` gets the loads of each layer with experts.
  Assembly(nn::Params& params, nn::moe::Balance& balance, const spec::ModelShape& shape,
           const nn::ParallelContext& parallel, const BuildOptions& options);

  std::unique_ptr<nn::UnaryLayer> embedding(nn::Stream stream);
  std::unique_ptr<nn::Layer> block(const std::string& name, std::int64_t layer, BlockKind kind);
  std::unique_ptr<nn::Layer> head(std::int64_t chunk_bytes);
  std::unique_ptr<nn::Layer> multi_token_prediction(const BuildOptions& options);
  nn::Norm norm(const std::string& name);
  std::unique_ptr<nn::Layer> linear_layer(const std::string& name, std::int64_t in, std::int64_t out, bool bias);

 private:
  /// What a matrix starts as. `residual`: it ends a residual branch.
  nn::Init matrix_init(std::int64_t in, std::int64_t out, bool residual) const;
  nn::Init embedding_init() const;
  /// The one table of token vectors, made by whichever layer asks first: of a pipeline stage that may be the head.
  nn::Param& token_table();
  /// The head's matrix, likewise.
  nn::Param& head_weight();
  /// A vector that every rank of the parallel context holds, of a layer whose input is what lies between pairs of
  /// matrices.
  nn::Param& vector(const std::string& name, std::int64_t size, nn::Init init);
  nn::Linear linear(const std::string& name, std::int64_t in, std::int64_t out, bool bias);
  /// RMSNorm of latents.
  nn::Norm latent_norm(const std::string& name, std::int64_t rank);
  /// The first of a pair of matrices: its outputs are these blocks, each split over the parallel context.
  nn::Linear column(const std::string& name, std::int64_t in, const std::vector<layout::Block>& blocks, bool bias);
  /// The second: its inputs are split; it ends a residual branch.
  nn::Linear row(const std::string& name, layout::Block in, std::int64_t out, bool bias);
  nn::Dropout dropout(const std::string& name) const;
  nn::Branch attention(const std::string& name, std::int64_t layer, BlockKind kind);
  std::unique_ptr<nn::Layer> plain_attention(const std::string& name, nn::AttentionShape shape);
  std::unique_ptr<nn::Layer> latent_attention(const std::string& name, nn::AttentionShape shape);
  nn::Branch cross(const std::string& name);
  nn::Branch mlp(const std::string& name);
  // assemble_experts.cpp
  nn::Branch experts(const std::string& name, nn::Stream stream);
  /// `inner`: blocks of the activations along `inner_dimension`, sliced where experts are.
  nn::Param& expert_weight(const std::string& name, layout::Shape shape, std::size_t inner_dimension,
                           const std::vector<layout::Block>& inner, nn::Init init);
  nn::moe::SharedExperts shared_experts(const std::string& name);
  nn::moe::ExpertLoads& expert_loads(const std::string& name, nn::moe::Router::BiasKind bias);
  nn::AttentionShape attention_shape(const std::string& name) const;
  /// Of the encoder's layers, or the decoder's: made by the first that asks.
  std::shared_ptr<nn::RelativeBias> relative_bias(BlockKind kind);
  layout::Placement vocabulary_placement(const std::string& name, layout::Shape shape) const;
  nn::Param& table(const std::string& name, std::int64_t rows, nn::Init init);
  /// Rows of fused projections, in whole heads.
  layout::Block query_block() const;
  layout::Block key_block() const;

  nn::Params& params_;
  nn::moe::Balance& balance_;
  const spec::ModelShape& shape_;
  const nn::ParallelContext& parallel_;
  bool recompute_core_, recompute_norms_, save_mlp_activations_, deterministic_, slices_experts_;
  std::shared_ptr<nn::RotaryEmbedding> rotary_;  // of all layers
  std::shared_ptr<nn::SparseLayouts> sparse_;
  std::shared_ptr<nn::RelativeBias> encoder_bias_, decoder_bias_;
};

}  // namespace trireme::models
