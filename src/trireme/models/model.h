// models/model.h -- a model: its parameters and its layers in a chain, built from a shape.
//
//   auto model = build(spec::family_shape(spec::Family::kGpt2));
//   nn::initialise(model->params, nn::Precision::kBf16, /*seed=*/1);
//   nn::Context context = ...;                       // positions, targets, gradient_scale
//   nn::Tape tape;
//   model->forward({ids}, context, &tape);           // leaves the loss in context.losses
//   model->backward(context, tape);                  // adds up Param::gradient
//
// The chain is what pipelines cut: each entry is one unit, by name.
// Depends on: base, spec, kernels, nn.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/nn/layer.h"
#include "trireme/nn/moe/balance.h"
#include "trireme/nn/parallel_context.h"
#include "trireme/nn/recompute.h"
#include "trireme/spec/model_shape.h"

namespace trireme::models {

struct NamedLayer {
  std::string name;  ///< "embedding", "layers.3", "head"
  std::unique_ptr<nn::Layer> layer;
  std::vector<nn::Param*> params = {};  ///< that it computes with; a tied one stands in several entries
};

struct Model {
  spec::ModelShape shape;
  nn::Params params;
  nn::moe::Balance balance;  ///< loads of experts and biases of routers, by layer
  std::vector<NamedLayer> layers;

  Model() = default;
  Model(const Model&) = delete;  // layers point into params
  Model& operator=(const Model&) = delete;

  /// {ids}, or {source ids, ids} where there is an encoder. The mean loss with targets in the context, logits without.
  at::Tensor forward(nn::Tensors ids, nn::Context& context, nn::Tape* tape);
  void backward(nn::Context& context, nn::Tape& tape);
  /// Logits of each row's last token, or of each sequence's in context.kv_batch: [batch, vocabulary]. The others are
  /// not computed. For a single stream of tokens.
  at::Tensor next_logits(at::Tensor ids, nn::Context& context);
};

struct BuildOptions {
  nn::Recompute recompute;
  bool partition_activations = false;  ///< saved inputs of recomputed blocks are shared out over the tensor ranks
  std::int64_t logits_chunk_bytes = std::int64_t{128} << 20;
  bool deterministic_attention = false;  ///< GPU: backward adds up in a fixed order
  bool recompute_norms = false;          ///< what norms give is recomputed in backward, not kept
  bool save_mlp_activations = false;     ///< what MLPs' activations gave is saved for backward, not recomputed
  /// Inference: tensor-parallel ranks have a slice of each expert's matrices, as of an MLP's, and not copies (DeepSpeed
  /// Inference's expert slicing). There is no backward.
  bool slice_experts = false;
  /// Where given, only these entries of the chain and their parameters: a pipeline stage's. The names are those of the
  /// whole chain; a ConfigError for any other.
  std::optional<std::vector<std::string>> only = std::nullopt;
  /// Where given, each entry of the chain as it is built is replaced by what this makes of it: a layer around it, with
  /// a loss or a measurement of its own. What crosses to the next entry must stay as it is.
  using Adapt = std::function<std::unique_ptr<nn::Layer>(const std::string& name, std::unique_ptr<nn::Layer> layer)>;
  Adapt adapt = nullptr;
  /// Likewise each transformer block, inside of a segment that is recomputed as one; `params` are those that it uses.
  using AdaptBlock = std::function<std::unique_ptr<nn::Layer>(const std::string& name, std::unique_ptr<nn::Layer> block,
                                                              const std::vector<nn::Param*>& params)>;
  AdaptBlock adapt_block = nullptr;
  /// The entries at which chunks of a pipeline begin, but for the first. Where blocks are recomputed by a plan of a
  /// whole chain (nn::plans_chains), each chunk has its own.
  std::vector<std::string> chunk_begins = {};
  /// The ranks that hold the model together; borrowed by its layers.
  const nn::ParallelContext* parallel = &nn::single_rank();
};

/// What the layers of a model with experts are called in its balance, on whichever rank they are.
std::vector<std::string> expert_layer_names(const spec::ModelShape& shape);

/// A ConfigError with every problem of the shape where it has some. Parameters have no memory yet: nn::initialise or
/// nn::allocate gives it.
std::unique_ptr<Model> build(const spec::ModelShape& shape, const BuildOptions& options = {});

}  // namespace trireme::models
