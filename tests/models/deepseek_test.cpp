// DeepSeek-V3's published folders: configuration, names, weights in FP8 blocks.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/errors.h"
#include "tests/formats/samples.h"
#include "tests/models/support.h"
#include "trireme/formats/hf_writer.h"
#include "trireme/nn/multi_token.h"

namespace trireme::models {
namespace {

/// As it is published, but for the number of dense layers.
std::string v3_config(int dense_layers) {
  const std::string text = R"({"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3",
    "attention_bias": false, "attention_dropout": 0.0, "first_k_dense_replace": %s, "hidden_act": "silu",
    "hidden_size": 7168, "initializer_range": 0.02, "intermediate_size": 18432, "kv_lora_rank": 512,
    "max_position_embeddings": 163840, "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "quantization_config": {"fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]},
    "rms_norm_eps": 1e-06, "rope_theta": 10000, "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40,
      "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096, "type": "yarn"},
    "tie_word_embeddings": false, "v_head_dim": 128, "vocab_size": 129280})";
  std::string out = text;
  return out.replace(out.find("%s"), 2, std::to_string(dense_layers));
}

spec::ModelShape shape_of_text(const std::string& text) {
  const formats::HfConfig config(text, "config.json");
  return format_of(config).read_config(config);
}

TEST(DeepseekV3, HasThePublishedConfigurationsShape) {
  const spec::ModelShape shape = shape_of_text(v3_config(61));
  spec::ModelShape expected = spec::family_shape(spec::Family::kDeepseekV3);
  expected.mtp_depth = 1;
  EXPECT_EQ(shape, expected);
  EXPECT_NEAR(spec::rotary_score_factor(shape.rotary), 1.8738542070926265, 1e-14);
}

TEST(DeepseekV3, HasThePublishedExperts) {
  const spec::ModelShape shape = shape_of_text(v3_config(3));
  EXPECT_EQ(spec::expert_layers(shape), 58);
  // README_WEIGHTS.md: 671B, 256 of which for each layer are biases of its router.
  const spec::ParameterCount count = spec::count_parameters(shape);
  EXPECT_EQ(count.total() - count.mtp, 671'026'419'200 - 58 * 256);
  EXPECT_NEAR(static_cast<double>(count.mtp), 11.5e9, 0.15e9) << "beside embedding and head";
  EXPECT_EQ(shape.experts.router, spec::RouterKind::kSigmoidTopK);
  EXPECT_EQ(shape.experts.top_k_groups, 4);
}

/// The reference's numbers are of a model with YaRN (mixtures_test.cpp). A factor of 1 stretches nothing and scales no
/// scores, so it ties plain RoPE to them.
TEST(DeepseekV3, WithoutYarnIsWithAFactorOfOne) {
  const formats::HfDirectory directory(fixture("deepseek_v3"));
  const spec::ModelShape stretched = read_shape(directory);
  ASSERT_EQ(stretched.rotary.scaling, spec::RotaryScaling::kYarn);
  spec::ModelShape plain = stretched, one = stretched;
  plain.rotary.scaling = spec::RotaryScaling::kNone;
  one.rotary.factor = 1;
  const auto logits = [&](const spec::ModelShape& shape) {
    return logits_of(*load_published(directory, {.precision = {}, .build = {}, .shape = shape}), fixture_ids());
  };
  EXPECT_LE(largest(logits(plain), logits(one)), 1e-5);
  EXPECT_GT(largest(logits(plain), logits(stretched)), 1e-2);
}

class DeepseekFolder : public OwnFolder {
 protected:
  static spec::ModelShape shape(std::int64_t q_lora_rank) {
    spec::ModelShape shape = tiny_shape(spec::Family::kDeepseekV3);
    shape.mla.q_lora_rank = q_lora_rank;
    shape.rotary.original_positions = 12;
    return shape;
  }
};

TEST_F(DeepseekFolder, ComesBackAsItWasWritten) {
  for (const std::int64_t q_lora_rank : {14, 0}) {
    const auto model = build(shape(q_lora_rank));
    fill(*model, nn::Precision::kFp32);
    const auto path = folder_ / std::to_string(q_lora_rank);
    save_published(*model, path, formats::Dtype::kF32);
    const formats::HfDirectory directory(path);
    EXPECT_EQ(directory.find("model.layers.2.self_attn.q_a_proj.weight") != nullptr, q_lora_rank > 0);
    EXPECT_EQ(directory.find("model.layers.2.self_attn.q_proj.weight") != nullptr, q_lora_rank == 0);
    EXPECT_NE(directory.find("model.layers.0.self_attn.kv_a_proj_with_mqa.weight"), nullptr);
    EXPECT_NE(directory.find("model.layers.0.self_attn.kv_a_layernorm.weight"), nullptr);
    const auto again = load_published(directory, {});
    EXPECT_EQ(again->shape, model->shape);
    const at::Tensor ids = some_ids(2, 14, model->shape.vocab_size, 1);
    EXPECT_TRUE(at::equal(logits_of(*again, ids), logits_of(*model, ids)));
  }
}

/// Matrices as codes with a scale for each 128 x 128, as DeepSeek publishes them; sizes that 128 does not divide.
TEST_F(DeepseekFolder, IsReadFromFp8Blocks) {
  spec::ModelShape wide = shape(140);
  wide.hidden_size = 160, wide.ffn_size = 200, wide.num_layers = 1;
  const auto model = build(wide);
  fill(*model, nn::Precision::kFp32);
  save_published(*model, folder_ / "plain", formats::Dtype::kF32);
  const formats::HfDirectory plain(folder_ / "plain");
  std::vector<formats::TensorSpec> specs;
  std::vector<std::string> contents;
  std::map<std::string, at::Tensor> expected;
  const auto text_of = [](const at::Tensor& tensor) {
    return std::string(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
  };
  for (const auto& tensor : plain.tensors()) {
    formats::TensorSpec spec = *tensor.info;
    if (spec.name.find("proj") == std::string::npos) {
      specs.push_back(spec);
      contents.push_back(formats::as_text(tensor.bytes()));
      continue;
    }
    const std::int64_t rows = spec.shape[0], columns = spec.shape[1], down = (rows + 127) / 128,
                       across = (columns + 127) / 128;
    at::Tensor weight = at::empty({rows, columns}, at::kFloat), scales = at::empty({down, across}, at::kFloat);
    std::memcpy(weight.data_ptr(), tensor.bytes().data(), tensor.bytes().size());
    at::Tensor codes = at::empty({rows, columns}, at::kFloat8_e4m3fn), value = at::empty({rows, columns}, at::kFloat);
    for (std::int64_t i = 0; i < down; ++i) {
      for (std::int64_t j = 0; j < across; ++j) {
        const auto block = [&](const at::Tensor& of) {
          return of.narrow(0, 128 * i, std::min<std::int64_t>(128, rows - 128 * i))
              .narrow(1, 128 * j, std::min<std::int64_t>(128, columns - 128 * j));
        };
        const float scale = block(weight).abs().max().item<float>() / 448;
        scales[i][j] = scale;
        block(codes).copy_((block(weight) / scale).to(at::kFloat8_e4m3fn));
        block(value).copy_(block(codes).to(at::kFloat) * scale);
      }
    }
    expected[spec.name] = value;
    spec.dtype = formats::Dtype::kF8E4M3;
    specs.push_back(spec);
    contents.push_back(text_of(codes));
    specs.push_back({.name = spec.name + "_scale_inv", .dtype = formats::Dtype::kF32, .shape = {down, across}});
    contents.push_back(text_of(scales));
  }
  formats::HfWriter writer(folder_ / "fp8", formats::plan_hf(specs, plain.config(), {}));
  for (std::size_t i = 0; i < specs.size(); ++i) writer.write(specs[i].name, formats::as_bytes(contents[i]));
  writer.finish();
  const formats::HfDirectory fp8(folder_ / "fp8");
  const auto read = load_published(fp8, {});
  int matrices = 0;
  for (const PublishedTensor& tensor : published_tensors(*read, nullptr)) {
    const auto found = expected.find(tensor.name);
    if (found == expected.end()) continue;
    ++matrices;
    EXPECT_TRUE(at::equal(published_view(tensor, tensor.param->master), found->second)) << tensor.name;
    // Any stretch of it, as ranks read it that hold a shard.
    const std::int64_t count = found->second.numel(), begin = count / 3, end = count - 7;
    EXPECT_TRUE(at::equal(stored_elements(fp8, fp8.tensor(tensor.name), begin, end),
                          found->second.view({-1}).narrow(0, begin, end - begin)));
  }
  EXPECT_EQ(matrices, 8);
  // Untouched, the same bytes; changed, codes and scales of what it is now.
  save_published_like(fp8, *read, folder_ / "again");
  const auto before = formats::contents(folder_ / "fp8"), after = formats::contents(folder_ / "again");
  for (const auto& [file, bytes] : before) EXPECT_TRUE(after.at(file) == bytes) << file;
  for (nn::Param& param : read->params) param.master.mul_(1.25);
  save_published_like(fp8, *read, folder_ / "changed");
  const auto changed = load_published(formats::HfDirectory(folder_ / "changed"), {});
  for (nn::Param& param : read->params) {
    const at::Tensor now = changed->params.at(param.name).master;
    EXPECT_LE(largest(now, param.master), 0.04 * param.master.abs().max().item<double>()) << param.name;
    EXPECT_FALSE(at::equal(now, param.master / 1.25)) << param.name;
  }
}

/// Modules of multi-token prediction stand behind the last layer, under the names that were published, with copies of
/// the embedding and the head: what comes back predicts further tokens as before, by routers with their biases.
class DeepseekModules : public DeepseekFolder {
 protected:
  static constexpr std::int64_t kDepth = 2;
  static spec::ModelShape with_modules() {
    spec::ModelShape shape = DeepseekFolder::shape(14);
    shape.mtp_depth = kDepth;
    shape.experts = {.num_experts = 4, .top_k = 2, .ffn_size = 10, .num_shared_experts = 1, .first_dense_layers = 1};
    shape.experts.router = spec::RouterKind::kSigmoidTopK, shape.experts.bias_update_rate = 1e-3;
    return shape;
  }
  static std::unique_ptr<Model> filled() {
    auto model = build(with_modules());
    fill(*model, nn::Precision::kFp32);
    std::uint64_t number = 0;
    for (nn::moe::ExpertLoads& layer : model->balance) {
      for (std::int64_t i = 0; i < 4; ++i) layer.bias[i] = 0.3 * Random(5, "bias").uniform(number++);
    }
    return model;
  }
  /// Loss terms of further tokens.
  static std::vector<double> further_losses(Model& model) {
    const at::Tensor ids = some_ids(2, 14, model.shape.vocab_size, 1);
    nn::Context context = context_for(ids);
    context.targets = next_tokens(ids);
    nn::shift_tokens(ids, context, model.shape.mtp_depth);
    train_once(model, {ids}, context);
    std::vector<double> sums;
    for (const nn::LossTerm& term : context.losses)
      if (term.name.starts_with("mtp_")) sums.push_back(term.sum);
    return sums;
  }
};

TEST_F(DeepseekModules, ComeBackUnderThePublishedNames) {
  const auto model = filled();
  const std::vector<double> losses = further_losses(*model);
  ASSERT_EQ(losses.size(), 2U);
  save_published(*model, folder_ / "v3", formats::Dtype::kF32);
  const formats::HfDirectory directory(folder_ / "v3");
  EXPECT_EQ(directory.config().get<std::int64_t>("num_nextn_predict_layers"), kDepth);
  const std::int64_t hidden = model->shape.hidden_size, vocabulary = model->shape.vocab_size;
  for (const std::string layer : {"model.layers.3.", "model.layers.4."}) {
    const auto shape_of = [&](const char* name) { return directory.tensor(layer + name).info->shape; };
    EXPECT_EQ(shape_of("enorm.weight"), (std::vector<std::int64_t>{hidden}));
    EXPECT_EQ(shape_of("hnorm.weight"), (std::vector<std::int64_t>{hidden}));
    EXPECT_EQ(shape_of("eh_proj.weight"), (std::vector<std::int64_t>{hidden, 2 * hidden}));
    EXPECT_EQ(shape_of("shared_head.norm.weight"), (std::vector<std::int64_t>{hidden}));
    EXPECT_EQ(shape_of("shared_head.head.weight"), (std::vector<std::int64_t>{vocabulary, hidden}));
    EXPECT_EQ(shape_of("mlp.gate.e_score_correction_bias"), (std::vector<std::int64_t>{4}));
    EXPECT_NE(directory.find(layer + "self_attn.kv_a_proj_with_mqa.weight"), nullptr);
    EXPECT_NE(directory.find(layer + "mlp.experts.3.down_proj.weight"), nullptr);
    EXPECT_TRUE(std::ranges::equal(directory.tensor(layer + "embed_tokens.weight").bytes(),
                                   directory.tensor("model.embed_tokens.weight").bytes()));
    EXPECT_TRUE(std::ranges::equal(directory.tensor(layer + "shared_head.head.weight").bytes(),
                                   directory.tensor("lm_head.weight").bytes()));
  }
  const auto again = load_published(directory, {});
  EXPECT_EQ(again->shape, model->shape);
  for (nn::Param& param : again->params)
    EXPECT_TRUE(at::equal(param.master, model->params.at(param.name).master)) << param.name;
  EXPECT_EQ(further_losses(*again), losses);
  save_published_like(directory, *again, folder_ / "again");
  const auto before = formats::contents(folder_ / "v3"), after = formats::contents(folder_ / "again");
  for (const auto& [file, bytes] : before) EXPECT_TRUE(after.at(file) == bytes) << file;
}

/// Others leave the modules out and keep the number of them; a module of which a part is missing is an error.
TEST_F(DeepseekModules, MayBeMissingAsAWhole) {
  const auto model = filled();
  save_published(*model, folder_ / "v3", formats::Dtype::kF32);
  const formats::HfDirectory whole(folder_ / "v3");
  const auto without = [&](const std::string& name, const std::function<bool(const std::string&)>& left_out) {
    std::vector<formats::TensorSpec> specs;
    for (const auto& tensor : whole.tensors())
      if (!left_out(tensor.info->name)) specs.push_back(*tensor.info);
    formats::HfWriter writer(folder_ / name, formats::plan_hf(specs, whole.config(), {}));
    for (const formats::TensorSpec& spec : specs) writer.write(spec.name, whole.tensor(spec.name).bytes());
    writer.finish();
    return formats::HfDirectory(folder_ / name);
  };
  const at::Tensor ids = some_ids(2, 14, model->shape.vocab_size, 1), expected = logits_of(*model, ids);
  for (const std::int64_t left : {1, 0}) {
    const auto directory = without(std::to_string(left), [&](const std::string& name) {
      return name.starts_with("model.layers.4.") || (left == 0 && name.starts_with("model.layers.3."));
    });
    const auto read = load_published(directory, {});
    EXPECT_EQ(read->shape.mtp_depth, left);
    EXPECT_TRUE(at::equal(logits_of(*read, ids), expected));
    // What is written of it says how many there are.
    save_published(
        *read, folder_ / ("of" + std::to_string(left)), formats::Dtype::kF32,
        [](const nn::Param& param, std::int64_t begin, std::int64_t end) {
          return param.master.view({-1}).narrow(0, begin, end - begin);
        },
        texts_of(folder_ / std::to_string(left)));
    const formats::HfDirectory written(folder_ / ("of" + std::to_string(left)));
    EXPECT_EQ(written.config().get<std::int64_t>("num_nextn_predict_layers"), left);
  }
  const auto broken = without("broken", [](const std::string& name) { return name == "model.layers.4.hnorm.weight"; });
  EXPECT_THAT(words_of([&] { load_published(broken, {}); }), testing::HasSubstr("model.layers.4.hnorm.weight"));
  // Whoever asks for more modules than there are reads the others and leaves theirs as they are.
  spec::ModelShape more = with_modules();
  auto asked = build(more);
  const formats::HfDirectory one(folder_ / "1");
  const auto tensors = published_tensors(*asked, [&](std::string_view name) { return one.find(name) != nullptr; });
  EXPECT_TRUE(std::ranges::none_of(
      tensors, [](const PublishedTensor& tensor) { return tensor.param->name.starts_with("mtp.1."); }));
  EXPECT_EQ(published_biases(more, one).size(), 3U) << "of two layers and a module";
}

TEST_F(DeepseekModules, AreCodedLikeLayersInFp8Blocks) {
  const auto model = filled();
  save_published(*model, folder_ / "fp8", formats::Dtype::kF8E4M3);
  const formats::HfDirectory directory(folder_ / "fp8");
  const auto type_of = [&](const std::string& name) { return directory.tensor("model.layers.3." + name).info->dtype; };
  EXPECT_EQ(type_of("self_attn.o_proj.weight"), formats::Dtype::kF8E4M3);
  EXPECT_EQ(type_of("mlp.experts.2.up_proj.weight"), formats::Dtype::kF8E4M3);
  for (const char* name : {"eh_proj.weight", "shared_head.head.weight", "embed_tokens.weight", "mlp.gate.weight"})
    EXPECT_EQ(type_of(name), formats::Dtype::kBF16) << name;
  const auto read = load_published(directory, {});
  EXPECT_EQ(read->shape.mtp_depth, kDepth);
  const std::vector<double> exact = further_losses(*model), coded = further_losses(*read);
  for (std::size_t i = 0; i < exact.size(); ++i) EXPECT_NEAR(coded[i], exact[i], 0.1 * exact[i]);
}

/// Matrices of layers as codes and scales, everything else and routers in bfloat16, and the configuration says so.
TEST_F(DeepseekFolder, IsWrittenInFp8Blocks) {
  spec::ModelShape wide = shape(140);
  wide.hidden_size = 160, wide.ffn_size = 200, wide.num_layers = 2;
  wide.experts = {.num_experts = 4, .top_k = 2, .ffn_size = 136, .first_dense_layers = 1};
  wide.experts.router = spec::RouterKind::kSigmoidTopK, wide.experts.bias_update_rate = 1e-3;
  const auto model = build(wide);
  fill(*model, nn::Precision::kFp32);
  save_published(*model, folder_ / "fp8", formats::Dtype::kF8E4M3);
  const formats::HfDirectory directory(folder_ / "fp8");
  EXPECT_EQ(directory.config().get<std::string>("quantization_config.quant_method"), "fp8");
  EXPECT_EQ(directory.tensor("model.layers.1.mlp.experts.3.down_proj.weight").info->dtype, formats::Dtype::kF8E4M3);
  EXPECT_EQ(directory.tensor("model.layers.1.mlp.experts.3.down_proj.weight_scale_inv").info->shape,
            (std::vector<std::int64_t>{2, 2}));
  EXPECT_EQ(directory.tensor("model.layers.1.mlp.gate.weight").info->dtype, formats::Dtype::kBF16);
  EXPECT_EQ(directory.tensor("model.embed_tokens.weight").info->dtype, formats::Dtype::kBF16);
  const auto read = load_published(directory, {});
  for (const PublishedTensor& tensor : published_tensors(*read, nullptr)) {
    const at::Tensor now = published_view(tensor, tensor.param->master),
                     was = published_view(tensor, model->params.at(tensor.param->name).master);
    const bool coded = directory.find(tensor.name + "_scale_inv") != nullptr;
    // Half a step of e4m3's 3 bits or bfloat16's 7, and what is too small for a code beside a block's largest.
    const at::Tensor bound = was.abs() * (coded ? 1.0 / 16 : 1.0 / 256) + was.abs().max() * (coded ? 0.002 : 0);
    EXPECT_TRUE(((now - was).abs() <= bound).all().item<bool>()) << tensor.name;
  }
  // And once more: what was read is said by the same codes.
  save_published(*read, folder_ / "again", formats::Dtype::kF8E4M3);
  const auto again = load_published(formats::HfDirectory(folder_ / "again"), {});
  for (nn::Param& param : read->params) {
    const double most = param.master.abs().max().item<double>();
    EXPECT_LE(largest(again->params.at(param.name).master, param.master), 1e-6 * most) << param.name;
  }
}

}  // namespace
}  // namespace trireme::models
