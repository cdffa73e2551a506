// Configurations in their published forms, and directories that are damaged or ask for what we do not compute.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/formats/samples.h"
#include "tests/models/support.h"
#include "trireme/formats/format_error.h"
#include "trireme/formats/hf_writer.h"

namespace trireme::models {
namespace {

using formats::HfConfig;
using spec::Family;
using spec::RotaryScaling;
using testing::AllOf;
using testing::HasSubstr;

spec::ModelShape shape_from(const std::string& text) {
  const HfConfig config(text, "config.json");
  return format_of(config).read_config(config);
}

constexpr const char* kLlama31 = R"({"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
  "max_position_embeddings": 131072, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
  "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "vocab_size": 128256, "hidden_act": "silu", "mlp_bias": false,
  "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                   "original_max_position_embeddings": 8192, "rope_type": "llama3"},
  "tie_word_embeddings": false, "eos_token_id": [128001, 128008], "pretraining_tp": 1})";
constexpr const char* kMistral = R"({"model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336,
  "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 32000 %s})";
constexpr const char* kQwen25 = R"({"model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864,
  "max_position_embeddings": 32768, "max_window_layers": 21, "num_attention_heads": 14, "num_hidden_layers": 24,
  "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768,
  "tie_word_embeddings": true, "use_sliding_window": false, "vocab_size": 151936, "hidden_act": "silu"})";

std::string mistral(const std::string& more) {
  std::string text = kMistral;
  return text.replace(text.find("%s"), 2, more);
}

TEST(PublishedConfig, OfKnownModelsGivesTheirShapes) {
  const auto total = [](const std::string& text) { return spec::count_parameters(shape_from(text)).total(); };
  EXPECT_EQ(total(kLlama31), 8'030'261'248);
  EXPECT_EQ(total(mistral("")), 7'241'732'096);
  EXPECT_EQ(total(kQwen25), 494'032'768);
  EXPECT_EQ(total(R"({"model_type": "gpt2", "vocab_size": 50257, "n_ctx": 1024, "n_positions": 1024, "n_embd": 1600,
                      "n_layer": 48, "n_head": 25, "activation_function": "gelu_new"})"),
            1'557'611'200);
  EXPECT_EQ(total(R"({"model_type": "bert", "vocab_size": 30522, "hidden_size": 1024, "num_hidden_layers": 24,
                      "num_attention_heads": 16, "intermediate_size": 4096, "type_vocab_size": 2})"),
            335'174'458);
  EXPECT_EQ(total(R"({"model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024, "num_hidden_layers": 28,
                      "num_attention_heads": 16, "num_key_value_heads": 8, "intermediate_size": 3072,
                      "tie_word_embeddings": true})"),
            596'049'920)
      << "heads are 128 wide where nothing is said";
}

TEST(PublishedConfig, RotaryScalingIsReadInItsOldAndNewForms) {
  const spec::Rotary llama3 = shape_from(kLlama31).rotary;
  EXPECT_EQ(llama3.base, 500000);
  EXPECT_EQ(llama3.scaling, RotaryScaling::kLlama3);
  EXPECT_EQ(llama3.factor, 8);
  EXPECT_EQ(llama3.original_positions, 8192);
  const spec::Rotary older = shape_from(mistral(R"(, "rope_scaling": {"type": "linear", "factor": 2})")).rotary;
  EXPECT_EQ(older.scaling, RotaryScaling::kLinear);
  EXPECT_EQ(older.factor, 2);
  const spec::Rotary newer =
      shape_from(mistral(R"(, "rope_parameters": {"rope_type": "yarn", "rope_theta": 5e5, "factor": 4.0,
                             "original_max_position_embeddings": 4096, "beta_fast": 16})"))
          .rotary;
  EXPECT_EQ(newer.scaling, RotaryScaling::kYarn);
  EXPECT_EQ(newer.base, 5e5);
  EXPECT_EQ(newer.beta_fast, 16);
  EXPECT_EQ(newer.original_positions, 4096);
}

TEST(PublishedConfig, AWindowLeftOutAndOneOfNullAreNotTheSame) {
  EXPECT_EQ(shape_from(mistral("")).window, 4096) << "the default of the first release";
  EXPECT_EQ(shape_from(mistral(R"(, "sliding_window": null)")).window, 0) << "as later releases say it";
  EXPECT_EQ(shape_from(mistral(R"(, "sliding_window": 7)")).window, 7);
  EXPECT_EQ(shape_from(kQwen25).window, 0) << "there, but not used";
  std::string text = kQwen25;
  text.replace(text.find("\"use_sliding_window\": false"), 27, "\"use_sliding_window\": true ");
  EXPECT_EQ(shape_from(text).window, 32768);
  EXPECT_EQ(spec::window_of(shape_from(text), 20), 0);
  EXPECT_EQ(spec::window_of(shape_from(text), 21), 32768);
  std::string types = ", \"layer_types\": [";
  for (int layer = 0; layer < 24; ++layer) types += layer < 5 ? "\"full_attention\", " : "\"sliding_attention\", ";
  text.insert(text.size() - 1, types.substr(0, types.size() - 2) + "]");
  EXPECT_EQ(spec::window_of(shape_from(text), 4), 0);
  EXPECT_EQ(spec::window_of(shape_from(text), 5), 32768) << "layer by layer beats the number";
}

TEST(PublishedConfig, OfYarnAndDynamicRopeIsTheReferences) {
  const auto rotary = [](const std::string& scaling) {
    return shape_from(mistral(R"(, "max_position_embeddings": 64, "rope_scaling": )" + scaling)).rotary;
  };
  // Both together say the magnitude of cosines and sines; one of them says nothing.
  const spec::Rotary both = rotary(R"({"rope_type": "yarn", "factor": 4, "mscale": 2, "mscale_all_dim": 0.5})");
  EXPECT_NEAR(spec::yarn_magnitude(both), (0.2 * std::log(4.0) + 1) / (0.05 * std::log(4.0) + 1), 1e-15);
  EXPECT_DOUBLE_EQ(spec::rotary_score_factor(both), 1) << "DeepSeek's attention alone scales its scores";
  const spec::Rotary one = rotary(R"({"rope_type": "yarn", "factor": 4, "mscale": 2})");
  EXPECT_NEAR(spec::yarn_magnitude(one), 0.1 * std::log(4.0) + 1, 1e-15);
  const spec::Rotary dynamic = rotary(R"({"type": "dynamic", "factor": 2})");
  EXPECT_EQ(dynamic.scaling, spec::RotaryScaling::kDynamic);
  EXPECT_EQ(dynamic.original_positions, 64);
}

TEST(PublishedConfig, WhatWeDoNotComputeIsRefusedByName) {
  struct Case {
    std::string text;
    std::vector<std::string> said;
  };
  const std::string gpt2 = R"({"model_type": "gpt2", "vocab_size": 9, "n_embd": 8, "n_layer": 1, "n_head": 2, )";
  const std::string bert = R"({"model_type": "bert", "vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1,
                               "num_attention_heads": 2, "intermediate_size": 8, )";
  for (const auto& [text, said] : std::vector<Case>{
           {R"({"model_type": "mamba"})",
            {"model_type", "\"mamba\"", "gpt2, llama, mistral, mixtral, qwen2, qwen2_moe, qwen3, qwen3_moe, bert"}},
           {R"({"hidden_size": 3})", {"model_type", "missing"}},
           {gpt2 + R"("activation_function": "quick_gelu"})", {"activation_function", "\"quick_gelu\"", "gelu_new"}},
           {gpt2 + R"("scale_attn_by_inverse_layer_idx": true})", {"scale_attn_by_inverse_layer_idx is true"}},
           {gpt2 + R"("scale_attn_weights": false})", {"scale_attn_weights is false"}},
           {gpt2 + R"("add_cross_attention": true})", {"add_cross_attention is true"}},
           {R"({"model_type": "gpt2", "vocab_size": 9, "n_embd": 8, "n_layer": 1, "n_head": 3})", {"n_head is 3", "8"}},
           {R"({"model_type": "gpt2", "vocab_size": "9"})", {"vocab_size", "a whole number", "\"9\""}},
           {bert + R"("position_embedding_type": "relative_key"})", {"position_embedding_type", "relative_key"}},
           {bert + R"("is_decoder": true})", {"is_decoder is true"}},
           {mistral(R"(, "rope_scaling": {"rope_type": "longrope", "factor": 2})"), {"rope_type", "longrope", "yarn"}},
           {mistral(R"(, "rope_scaling": {"rope_type": "linear"})"), {"rope_scaling.factor", "missing"}},
           {mistral(R"(, "partial_rotary_factor": 0.5)"), {"partial_rotary_factor is 0.5"}},
       }) {
    try {
      shape_from(text);
      ADD_FAILURE() << "was taken: " << text;
    } catch (const Error& error) {
      for (const std::string& part : said) EXPECT_THAT(error.message() + " " + error.hint(), HasSubstr(part)) << text;
    }
  }
}

class Damaged : public OwnFolder {
 protected:
  void SetUp() override { std::filesystem::copy(fixture("qwen2_tied"), folder_ / "model"); }
  /// Writes the model again; `change` may alter a tensor's spec and bytes, or give it no name to leave it out.
  void rewrite(const std::function<void(formats::TensorSpec& spec, std::string& bytes)>& change) {
    const formats::HfDirectory source(fixture("qwen2_tied"));
    std::vector<formats::TensorSpec> specs;
    std::vector<std::string> contents;
    for (const auto& tensor : source.tensors()) {
      formats::TensorSpec spec = *tensor.info;
      std::string bytes = formats::as_text(tensor.bytes());
      change(spec, bytes);
      if (spec.name.empty()) continue;
      specs.push_back(spec);
      contents.push_back(bytes);
    }
    std::filesystem::remove_all(folder_ / "model");
    formats::HfWriter writer(folder_ / "model", formats::plan_hf(specs, source.config(), {}));
    for (std::size_t i = 0; i < specs.size(); ++i) writer.write(specs[i].name, formats::as_bytes(contents[i]));
    writer.finish();
  }
  void set(const std::string& key, const nlohmann::ordered_json& value) {
    HfConfig config = formats::read_hf_config(folder_ / "model" / "config.json");
    config.set(key, value);
    write_all(folder_ / "model" / "config.json", config.text());
  }
  void expect_refused(const std::vector<std::string>& said) {
    try {
      load_published(formats::HfDirectory(folder_ / "model"), {});
      FAIL() << "was loaded";
    } catch (const Error& error) {
      for (const std::string& part : said) EXPECT_THAT(std::string(error.what()), HasSubstr(part));
    }
  }
};

constexpr const char* kTensor = "model.layers.1.mlp.up_proj.weight";

TEST_F(Damaged, AMissingTensorIsNamed) {
  rewrite([](auto& spec, auto&) {
    if (spec.name == kTensor) spec.name.clear();
  });
  expect_refused({"has no tensor", kTensor});
}

TEST_F(Damaged, AnotherShapeIsNamedWithBoth) {
  rewrite([](auto& spec, auto&) {
    if (spec.name == kTensor) spec.shape = {16, 24};
  });
  expect_refused({kTensor, "[16, 24]", "[24, 16]"});
}

TEST_F(Damaged, AnotherTypeIsNamed) {
  rewrite([](auto& spec, auto&) {
    if (spec.name == kTensor) spec.dtype = formats::Dtype::kI16;
  });
  expect_refused({kTensor, "I16", "F32, BF16, F16 or F64"});
}

TEST_F(Damaged, AConfigurationOfAnotherModelIsFoundOut) {
  set("num_hidden_layers", 3);
  expect_refused({"has no tensor", "model.layers.2.input_layernorm.weight"});
  set("num_hidden_layers", 2);
  set("num_key_value_heads", 2);
  expect_refused({"k_proj", "[16, 16]", "[32, 16]"});
  set("num_key_value_heads", 3);
  expect_refused({"kv_heads", "3 does not divide num_heads = 2"});
  set("num_key_value_heads", 1);
  EXPECT_NO_THROW(load_published(formats::HfDirectory(folder_ / "model"), {})) << "as it was";
  set("hidden_size", 0);
  expect_refused({"hidden_size", "at least 1"});
  set("hidden_size", -16);
  expect_refused({"hidden_size", "at least 1"});
}

TEST_F(Damaged, FilesCutShortAreRefused) {
  const std::string whole = read_all(folder_ / "model" / "model.safetensors");
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{7}, std::size_t{100}, whole.size() - 1}) {
    write_all(folder_ / "model" / "model.safetensors", whole.substr(0, bytes));
    expect_refused({"model.safetensors"});
  }
  std::filesystem::remove(folder_ / "model" / "model.safetensors");
  expect_refused({"model.safetensors"});
  std::filesystem::remove(folder_ / "model" / "config.json");
  expect_refused({"config.json"});
}

}  // namespace
}  // namespace trireme::models
