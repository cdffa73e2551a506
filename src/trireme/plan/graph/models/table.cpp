#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "trireme/base/data_files.h"
#include "trireme/base/error.h"
#include "trireme/base/mapped_file.h"
#include "trireme/plan/graph/models.h"
#include "trireme/plan/graph/onnx.h"
#include "trireme/plan/graph/text.h"

namespace trireme::plan::graph {
namespace {

// Counts: those of torchvision's models for images, of Hugging Face's for transformers; Zaremba's 66 M for the LSTM.
// Where a paper prints a rounded count only (GPipe's AmoebaNet-D, U-Net, GNMT), none stands here.
constexpr Model kModels[] = {
    {"alexnet", "AlexNet, one column", 61'100'840, 128, [](Index batch) { return alexnet({.batch = batch}); }},
    {"vgg16", "VGG-16, configuration D", 138'357'544, 64, [](Index batch) { return vgg(16, {.batch = batch}); }},
    {"vgg19", "VGG-19, configuration E", 143'667'240, 64, [](Index batch) { return vgg(19, {.batch = batch}); }},
    {"resnet50", "ResNet-50", 25'557'032, 64, [](Index batch) { return resnet(50, 1, {.batch = batch}); }},
    {"resnet101", "ResNet-101", 44'549'160, 64, [](Index batch) { return resnet(101, 1, {.batch = batch}); }},
    {"resnet152", "ResNet-152", 60'192'808, 64, [](Index batch) { return resnet(152, 1, {.batch = batch}); }},
    {"wide-resnet50-2", "Wide ResNet-50-2", 68'883'240, 64,
     [](Index batch) { return resnet(50, 2, {.batch = batch}); }},
    {"wide-resnet101-2", "Wide ResNet-101-2", 126'886'696, 64,
     [](Index batch) { return resnet(101, 2, {.batch = batch}); }},
    {"inception-v3", "Inception-v3 with its auxiliary classifier", 27'161'264, 64,
     [](Index batch) { return inception_v3({.batch = batch, .size = 299}); }},
    {"amoebanet-d", "AmoebaNet-D (18, 208) of GPipe", 0, 32,
     [](Index batch) { return amoebanet_d(18, 208, {.batch = batch}); }},
    {"unet", "U-Net, 64 channels, padded", 0, 8,
     [](Index batch) { return unet(64, 1, {.batch = batch, .size = 512, .classes = 2}); }},
    {"lstm", "LSTM language model, two layers of 1500", 66'022'000, 64,
     [](Index batch) { return lstm_language_model({.batch = batch}); }},
    {"gnmt", "GNMT-like translation, four and four LSTM layers with attention", 0, 64,
     [](Index batch) { return gnmt({.batch = batch}); }},
    {"bert-base", "BERT base, pre-training", 110'106'428, 32,
     [](Index batch) { return bert("bert-base", {.batch = batch, .seq_len = 128, .vocab = 30522, .positions = 512}); }},
    {"bert-large", "BERT large, pre-training", 336'226'108, 32,
     [](Index batch) {
       return bert("bert-large", {.batch = batch,
                                  .seq_len = 128,
                                  .layers = 24,
                                  .hidden = 1024,
                                  .heads = 16,
                                  .vocab = 30522,
                                  .positions = 512});
     }},
    {"gpt", "GPT-2 small", 124'439'808, 8, [](Index batch) { return gpt("gpt", {.batch = batch}); }},
    {"gpt-1.5b", "GPT-2 XL", 1'557'611'200, 8,
     [](Index batch) { return gpt("gpt-1.5b", {.batch = batch, .layers = 48, .hidden = 1600, .heads = 25}); }},
    {"gpt-2.6b", "GPT of 2.6 billion parameters, as in Alpa", 2'651'345'920, 32,
     [](Index batch) {
       return gpt("gpt-2.6b", {.batch = batch, .layers = 32, .hidden = 2560, .heads = 32, .vocab = 51200});
     }},
    {"moe", "a decoder layer of 16 experts, as in GShard", 0, 8, [](Index batch) { return moe({.groups = batch}); }},
};

}  // namespace

std::span<const Model> models() { return kModels; }

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const Model& model : kModels) names.emplace_back(model.name);
  return names;
}

Graph build_model(std::string_view name, Index batch) {
  for (const Model& model : kModels) {
    if (model.name == name) return model.build(batch > 0 ? batch : model.batch);
  }
  const std::vector<std::string> names = model_names();
  throw ConfigError(fmt::format("there is no built-in graph {}{}", name, did_you_mean(name, names)),
                    "graphs are " + listed(names));
}

Graph small_model(std::string_view name, Index batch) {
  const Index n = batch > 0 ? batch : 4;
  const TransformerShape small{
      .batch = n, .seq_len = 8, .layers = 12, .hidden = 48, .heads = 12, .vocab = 64, .positions = 8};
  const ImageShape image{.batch = n, .size = 224, .classes = 16, .width = 16};
  if (name == "alexnet") return alexnet(image);
  if (name == "vgg16") return vgg(16, {.batch = n, .size = 64, .classes = 16, .width = 16});
  if (name == "vgg19") return vgg(19, {.batch = n, .size = 64, .classes = 16, .width = 16});
  if (name == "resnet50") return resnet(50, 1, {.batch = n, .size = 64, .classes = 16, .width = 16});
  if (name == "resnet101") return resnet(101, 1, {.batch = n, .size = 64, .classes = 16, .width = 16});
  if (name == "inception-v3") return inception_v3({.batch = n, .size = 299, .classes = 16, .width = 16});
  if (name == "unet") return unet(4, 1, {.batch = n, .size = 64, .classes = 2});
  if (name == "lstm") return lstm_language_model({.batch = n, .steps = 35, .layers = 2, .hidden = 12, .vocab = 32});
  if (name == "gnmt") return gnmt({.batch = n, .steps = 40, .layers = 4, .hidden = 8, .vocab = 32});
  if (name == "gpt") return gpt("gpt", small);
  if (name == "bert-base") return bert("bert-base", small);
  if (name == "moe") return moe({.groups = n, .tokens = 16, .hidden = 32, .heads = 16, .ffn = 64, .experts = 16});
  const std::vector<std::string> names{"alexnet", "vgg16", "vgg19", "resnet50",  "resnet101", "inception-v3",
                                       "unet",    "lstm",  "gnmt",  "bert-base", "gpt",       "moe"};
  throw ConfigError(fmt::format("there is no small {}{}", name, did_you_mean(name, names)),
                    "small ones are " + listed(names));
}

Graph open_graph(const std::string& name_or_path, Index batch) {
  if (is_onnx_path(name_or_path)) {
    const MappedFile file(name_or_path);
    return import_onnx(formats::read_onnx(file.text(), name_or_path), name_or_path, batch);
  }
  if (!std::filesystem::is_regular_file(name_or_path)) {
    const std::vector<std::string> built_in = model_names(), recipes = data_names("models");
    const bool is_recipe = std::ranges::find(recipes, name_or_path) != recipes.end();
    if (!is_recipe || std::ranges::find(built_in, name_or_path) != built_in.end())
      return build_model(name_or_path, batch);
    return import_recipe(find_data_file("models", name_or_path).string(), batch);
  }
  if (name_or_path.ends_with(".toml")) return import_recipe(name_or_path, batch);
  if (batch > 0)
    throw ConfigError(fmt::format("the batch of {} is that of its dimensions", name_or_path),
                      "change them in the file");
  std::ifstream file(name_or_path);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) throw IoError("could not read " + name_or_path, "may it be read?");
  return parse_graph(text.str(), name_or_path);
}

}  // namespace trireme::plan::graph
