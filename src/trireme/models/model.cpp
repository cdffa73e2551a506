#include "trireme/models/model.h"

#include <fmt/format.h>

#include <span>

#include "trireme/base/error.h"
#include "trireme/models/assemble.h"
#include "trireme/nn/activation.h"
#include "trireme/nn/embedding.h"
#include "trireme/nn/glue.h"
#include "trireme/nn/head.h"

namespace trireme::models {
namespace {

using nn::Layer;

void append_blocks(Model& model, Assembly& assembly, std::int64_t count, const std::string& prefix, BlockKind kind,
                   const nn::Recompute& recompute) {
  std::vector<std::unique_ptr<Layer>> blocks;
  for (std::int64_t layer = 0; layer < count; ++layer) {
    blocks.push_back(assembly.block(fmt::format("{}.{}", prefix, layer), layer, kind));
  }
  // Several blocks may become one segment; it is named after its first.
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(count), 1);
  if (recompute.kind == nn::RecomputeKind::kSqrt) lengths = nn::sqrt_segments(count);
  std::int64_t first = 0;
  auto wrapped = nn::recomputed(std::move(blocks), recompute);
  for (std::size_t i = 0; i < wrapped.size(); ++i) {
    model.layers.push_back({fmt::format("{}.{}", prefix, first), std::move(wrapped[i])});
    first += lengths[i];
  }
}

/// Encoder and decoder as one chain: the decoder's tokens travel beside the encoder, its output beside the decoder.
void append_encoder(Model& model, Assembly& assembly, const BuildOptions& options) {
  model.layers.push_back({"encoder.embedding", std::make_unique<nn::OnFirst>(assembly.embedding(nn::Stream::kSource))});
  append_blocks(model, assembly, model.shape.encoder_layers, "encoder.layers", BlockKind::kEncoder, options.recompute);
  model.layers.push_back({"encoder.end", std::make_unique<nn::Swap>()});
}

/// Dense, activation and norm before BERT's masked-LM logits.
void append_masked_lm(Model& model, Assembly& assembly) {
  const std::int64_t width = model.shape.width;
  model.layers.push_back({"head.dense", assembly.linear_layer("head.dense", width, width, true)});
  model.layers.push_back({"head.activation", std::make_unique<nn::Activate>(to_kernel(model.shape.activation))});
  model.layers.push_back({"head.norm", std::make_unique<nn::Norm>(assembly.norm("head.norm"))});
}

}  // namespace

at::Tensor Model::forward(nn::Tensors ids, nn::Context& context, nn::Tape* tape) {
  for (NamedLayer& entry : layers) ids = entry.layer->forward(std::move(ids), context, tape);
  return std::move(ids.at(0));
}

void Model::backward(nn::Context& context, nn::Tape& tape) {
  nn::Tensors gradients(1);
  for (auto entry = layers.rbegin(); entry != layers.rend(); ++entry) {
    gradients = entry->layer->backward(std::move(gradients), context, tape);
  }
}

at::Tensor Model::next_logits(at::Tensor ids, nn::Context& context) {
  nn::Tensors x{std::move(ids)};
  for (NamedLayer& entry : std::span(layers).first(layers.size() - 1)) {
    x = entry.layer->forward(std::move(x), context, nullptr);
  }
  x[0] = x[0].narrow(1, x[0].size(1) - 1, 1).contiguous();
  return layers.back().layer->forward(std::move(x), context, nullptr)[0].squeeze(1);
}

std::unique_ptr<Model> build(const spec::ModelShape& shape, const BuildOptions& options) {
  if (auto problems = spec::find_problems(shape); !problems.empty()) {
    throw config::ProblemsError("this model's shape", std::move(problems));
  }
  auto model = std::make_unique<Model>();
  model->shape = shape;
  Assembly assembly(model->params, shape, options.recompute.kind == nn::RecomputeKind::kSelective);
  const bool encoder = shape.encoder_layers > 0;
  if (encoder) append_encoder(*model, assembly, options);
  auto embedding = assembly.embedding(nn::Stream::kSequence);
  if (encoder) {
    model->layers.push_back({"embedding", std::make_unique<nn::OnFirst>(std::move(embedding))});
  } else {
    model->layers.push_back({"embedding", std::move(embedding)});
  }
  append_blocks(*model, assembly, shape.layers, "layers",
                encoder ? BlockKind::kDecoderBesideEncoder : BlockKind::kPlain, options.recompute);
  if (encoder) model->layers.push_back({"decoder.end", std::make_unique<nn::First>(2)});
  if (shape.norm_first) model->layers.push_back({"norm", std::make_unique<nn::Norm>(assembly.norm("norm"))});
  if (shape.family == spec::Family::kBert) append_masked_lm(*model, assembly);
  model->layers.push_back({"head", assembly.head(options.logits_chunk_bytes)});
  TRIREME_CHECK(model->params.elements() == spec::count_parameters(shape).total(),
                "{} parameters were built where {} were counted", model->params.elements(),
                spec::count_parameters(shape).total());
  return model;
}

}  // namespace trireme::models
