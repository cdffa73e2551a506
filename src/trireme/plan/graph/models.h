// plan/graph/models.h -- the built-in graphs: published models at their published sizes, one file each in models/.
//
//   Graph graph = build_model("resnet50", 32);
//
// Nothing is allocated: counts of parameters and FLOPs are those of the papers, at full size. To add one: a function in
// models/NAME.cpp, its declaration below, its line in models/table.cpp; the shared tests then cover it.
// Depends on: build, spec.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/plan/graph/build.h"
#include "trireme/spec/model_shape.h"

namespace trireme::plan::graph {

struct Model {
  std::string_view name;
  std::string_view about;
  Index parameters = 0;  ///< as published; 0: no exact number is
  Index batch = 1;       ///< samples of a step unless another number is asked for
  Graph (*build)(Index batch);
};

std::span<const Model> models();
/// ConfigError that lists the names when it is none of them. `batch` 0: the model's own.
Graph build_model(std::string_view name, Index batch = 0);
std::vector<std::string> model_names();
/// A built-in graph; the model of a recipe, by its path or its name in recipes/models; or the file of that path: text
/// (text.h), whose batch is its own, or an ONNX model (onnx.h).
Graph open_graph(const std::string& name_or_path, Index batch = 0);

/// A decoder of the trainer's families that is not plainly GPT-2's: RMS norms, rotary positions, grouped queries, gated
/// MLPs, windows, matrices without biases, a head of its own, as the shape says.
Graph decoder(const std::string& name, const spec::ModelShape& shape, Index batch);

/// A model of the trainer's families: decoders, and BERT with its masked words. ConfigError that names what of it
/// graphs have no operators for; GELU is the exact one, epsilons are 1e-5, and dropout is left out.
Graph graph_of_family(const std::string& name, const spec::ModelShape& shape, Index batch);
/// A recipe's [model]; `batch` 0: eight sequences.
Graph import_recipe(const std::string& path, Index batch = 0);

/// A model of few channels, small images and short sequences, for ranks that are a CPU's threads: the same operators in
/// the same order. ConfigError for models that have none. `batch` 0: four.
Graph small_model(std::string_view name, Index batch = 0);

/// Sizes of a network of convolutions; tests take small ones.
struct ImageShape {
  Index batch = 32, size = 224, classes = 1000;
  Index width = 1;  ///< divides every number of channels
};

Graph alexnet(const ImageShape& image);
Graph vgg(int layers, const ImageShape& image);
/// `wide`: the inner convolutions of a block are so many times wider.
Graph resnet(int layers, int wide, const ImageShape& image);
/// With its auxiliary classifier.
Graph inception_v3(const ImageShape& image);
/// GPipe's (L, F): three groups of L / 3 normal cells, F filters after the stem.
Graph amoebanet_d(int layers, Index filters, const ImageShape& image);
/// `batch_norm`: after each convolution of three by three, in place of its bias.
Graph unet(Index channels, Index image_channels, const ImageShape& image, bool batch_norm = false);

struct LstmShape {
  Index batch = 20, steps = 35, layers = 2, hidden = 1500, vocab = 10000;
};
Graph lstm_language_model(const LstmShape& shape);

/// Encoder and decoder of LSTM layers, the encoder's first one bidirectional, with attention to the encoder's outputs.
struct TranslationShape {
  Index batch = 64, steps = 40, layers = 4, hidden = 1024, vocab = 32320;
};
Graph gnmt(const TranslationShape& shape);

struct TransformerShape {
  Index batch = 8, seq_len = 1024, layers = 12, hidden = 768, heads = 12, vocab = 50257, positions = 1024;
  Index head_dim = 0, ffn = 0;  ///< 0: hidden / heads; 4 hidden
  bool next_sentence = true;    ///< BERT: with its second task's pooler and head
};
Graph gpt(const std::string& name, const TransformerShape& shape);
/// For pre-training: masked language model and next sentence.
Graph bert(const std::string& name, const TransformerShape& shape);

/// A decoder layer of attention and experts as GShard writes them: groups of tokens, top-2 gating with a capacity.
struct MoeShape {
  Index groups = 8, tokens = 1024, hidden = 1024, heads = 16, ffn = 4096, experts = 16, layers = 1;
  double capacity_factor = 2;
};
Graph moe(const MoeShape& shape);

}  // namespace trireme::plan::graph
