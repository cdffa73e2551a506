// The built-in graphs have the published numbers of parameters and multiply-adds.
#include "trireme/plan/graph/models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/data_files.h"
#include "trireme/base/error.h"
#include "trireme/plan/graph/count.h"
#include "trireme/plan/graph/text.h"
#include "trireme/spec/recipe.h"

namespace trireme::plan::graph {
namespace {

using ::testing::HasSubstr;

TEST(Models, HaveThePublishedParameters) {
  for (const Model& model : models()) {
    if (model.parameters == 0) continue;
    EXPECT_EQ(count(build_model(model.name, 1)).parameters, model.parameters) << model.name;
  }
}

TEST(Models, VggHasItsParametersInTheFullyConnectedLayers) {
  const Graph graph = build_model("vgg16", 1);
  Index connected = 0;
  for (const Tensor& tensor : graph.tensors) {
    if (tensor.role == Role::kParameter && tensor.name.starts_with("fc")) connected += graph.elements(tensor);
  }
  EXPECT_EQ(connected, 123'642'856);
}

TEST(Models, AmoebaNetHasTheParametersOfGPipesTable) {
  const auto millions = [](int layers, Index filters) {
    return static_cast<double>(count(amoebanet_d(layers, filters, {.batch = 1})).parameters) / 1e6;
  };
  EXPECT_NEAR(millions(18, 208), 82, 1);
  EXPECT_NEAR(millions(18, 416), 318, 2);
  EXPECT_NEAR(millions(18, 544), 542, 1);
  EXPECT_NEAR(millions(36, 544), 1050, 10);
  EXPECT_NEAR(millions(72, 512), 1800, 50);
}

// Levels of two 3x3 convolutions each way, 2x2 transposed convolutions between: the sum written out.
TEST(Models, UnetHasTheParametersOfItsLevels) {
  Index wanted = 0;
  const auto convolution = [&](Index from, Index to, Index kernel) { wanted += from * to * kernel * kernel + to; };
  for (Index level = 0, from = 1; level <= 4; ++level) {
    const Index to = Index{64} << level;
    convolution(from, to, 3), convolution(to, to, 3);
    from = to;
    if (level < 4) convolution(2 * to, to, 2), convolution(2 * to, to, 3), convolution(to, to, 3);
  }
  convolution(64, 2, 1);
  EXPECT_EQ(count(build_model("unet", 1)).parameters, wanted);
}

// Two embeddings, an output layer with bias; 4 gates of input, state and bias each; three projections.
TEST(Models, GnmtHasTheParametersOfItsLayers) {
  const Index h = 1024, v = 32320;
  const auto lstm = [&](Index in) { return 4 * h * (in + h + 1); };
  const Index encoder = 2 * lstm(h) + lstm(2 * h) + 2 * lstm(h), decoder = lstm(h) + 3 * lstm(2 * h);
  EXPECT_EQ(count(build_model("gnmt", 1)).parameters, 2 * v * h + encoder + decoder + 3 * h * h + h * v + v);
}

/// torchvision's tables, in billions of multiply-adds an image.
TEST(Models, HaveThePublishedMultiplyAdds) {
  const std::pair<const char*, double> published[] = {
      {"alexnet", 0.71},   {"vgg16", 15.47},     {"vgg19", 19.63},          {"resnet50", 4.09},
      {"resnet101", 7.80}, {"resnet152", 11.51}, {"wide-resnet50-2", 11.40}};
  for (const auto& [name, billions] : published)
    EXPECT_NEAR(count(build_model(name, 1)).matmul_flops / 2e9, billions, 0.006) << name;
}

TEST(Models, OfARecipeHaveItsParametersAndAreTheBuiltInOnes) {
  for (const char* name : {"gpt2-124m", "gpt2-355m", "gpt2-774m", "gpt2-1.5b"}) {
    const spec::Recipe recipe = spec::load_recipe({.file = find_data_file("models", name).string()}).value;
    EXPECT_EQ(count(open_graph(name, 2)).parameters, count_parameters(*spec::shape_of(recipe.model)).total()) << name;
  }
  Graph imported = open_graph("gpt2-124m", 8), built_in = build_model("gpt", 8);
  imported.name = built_in.name;
  EXPECT_EQ(imported, built_in);
  spec::ModelShape narrow = spec::family_shape(spec::Family::kGpt2);
  narrow.head_dim = 32, narrow.ffn_size = 1000, narrow.num_layers = 2;
  EXPECT_EQ(count(graph_of_family("narrow", narrow, 2)).parameters, count_parameters(narrow).total());
}

TEST(Models, OfOtherFamiliesHaveTheirParametersToo) {
  for (const char* name :
       {"llama3-8b", "llama3-70b", "mistral-7b", "qwen2.5-0.5b", "qwen3-0.6b", "gpt3-125m", "bert-large"}) {
    const spec::Recipe recipe = spec::load_recipe({.file = find_data_file("models", name).string()}).value;
    const Graph graph = import_recipe(find_data_file("models", name).string(), 2);
    EXPECT_EQ(count(graph).parameters, count_parameters(*spec::shape_of(recipe.model)).total()) << name;
    EXPECT_EQ(parse_graph(to_text(graph), "text"), graph) << name;
  }
  // As the papers have them.
  EXPECT_EQ(count(open_graph("llama3-8b", 1)).parameters, 8'030'261'248);
  EXPECT_EQ(count(open_graph("mistral-7b", 1)).parameters, 7'241'732'096);
  // GEMMs are those that the trainer counts: all but the positions' and the masked part of scores.
  const spec::ModelShape llama = spec::family_shape(spec::Family::kLlama);
  const double counted = count(open_graph("llama3-8b", 1)).matmul_flops;
  const spec::FlopCount flops = count_flops(llama, llama.max_seq_len);
  EXPECT_NEAR(counted, flops.projections + flops.head, 1e-9 * counted);
}

TEST(Models, OfFamiliesThatGraphsHaveNoOperatorsForAreRefusedByName) {
  const auto refusal = [](const spec::ModelShape& shape) -> std::string {
    try {
      graph_of_family("net", shape, 2);
    } catch (const ConfigError& error) {
      return error.message();
    }
    return "";
  };
  EXPECT_THAT(refusal(spec::family_shape(spec::Family::kTransformer)), HasSubstr("no encoders beside decoders"));
  EXPECT_THAT(refusal(spec::family_shape(spec::Family::kT5)), HasSubstr("no encoders beside decoders"));
  EXPECT_THAT(refusal(spec::family_shape(spec::Family::kDeepseekV3)), HasSubstr("latent attention"));
  spec::ModelShape llama = spec::family_shape(spec::Family::kLlama);
  EXPECT_EQ(refusal(llama), "");
  llama.rotary.scaling = spec::RotaryScaling::kLlama3;
  EXPECT_THAT(refusal(llama), HasSubstr("rotary positions that are scaled"));
  llama.rotary.scaling = spec::RotaryScaling::kNone;
  llama.mup_base_hidden_size = 256;
  EXPECT_THAT(refusal(llama), HasSubstr("factors of muP"));
}

TEST(Models, AnUnknownNameIsAnsweredWithTheNearest) {
  try {
    build_model("resnet51");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(error.message().find("resnet50"), std::string::npos) << error.message();
  }
}

}  // namespace
}  // namespace trireme::plan::graph
