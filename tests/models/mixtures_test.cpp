// Models with experts: against what the reference computed with the same folder, out again in both layouts of tensors,
// and counted.
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/errors.h"
#include "tests/formats/samples.h"
#include "tests/models/support.h"
#include "trireme/base/log.h"
#include "trireme/formats/hf_writer.h"
#include "trireme/nn/multi_token.h"
#include "trireme/spec/parameters.h"

namespace trireme::models {
namespace {

using testing::HasSubstr;

std::unique_ptr<Model> load_mixture(const std::string& name) {
  return load_published(formats::HfDirectory(fixture(name)), {});
}

TEST(MixtureFamilies, HaveTheReferencesLogitsLossAndGradients) {
  for (const std::string& name : kMixtureFixtures) {
    SCOPED_TRACE(name);
    const Expected expected(name);
    const auto model = load_mixture(name);
    ASSERT_TRUE(model->shape.experts.used());
    const at::Tensor ids = fixture_ids();
    EXPECT_LE(largest(logits_of(*model, ids), expected["logits"]), 5e-5);
    nn::Context context = context_for(ids);
    context.targets = next_tokens(ids);
    EXPECT_NEAR(train_once(*model, {ids}, context), expected["loss"].item<double>(), 5e-6);
    expect_published_gradients(*model, name, expected);
  }
}

class MixtureFolder : public OwnFolder {};

TEST_F(MixtureFolder, ComesBackAsItWasWrittenBiasesIncluded) {
  for (const std::string& name : kMixtureFixtures) {
    SCOPED_TRACE(name);
    const auto model = load_mixture(name);
    save_published(*model, folder_ / name, formats::Dtype::kF32);
    const auto again = load_published(formats::HfDirectory(folder_ / name), {});
    EXPECT_EQ(again->shape, model->shape);
    const at::Tensor ids = fixture_ids();
    EXPECT_TRUE(at::equal(logits_of(*again, ids), logits_of(*model, ids)));
    auto other = again->balance.begin();
    for (const nn::moe::ExpertLoads& layer : model->balance) {
      EXPECT_EQ(layer.layer, other->layer);
      if (layer.bias.defined()) {
        EXPECT_TRUE(at::equal(layer.bias, other->bias));
      }
      ++other;
    }
  }
}

/// All experts of a layer in two tensors, as transformers 5 keeps them.
TEST_F(MixtureFolder, IsReadWithFusedExpertsToo) {
  for (const std::string& name : kMixtureFixtures) {
    SCOPED_TRACE(name);
    const auto model = load_mixture(name);
    const formats::HfDirectory source(fixture(name));
    const FamilyFormat& format = format_of(model->shape);
    std::vector<formats::TensorSpec> specs;
    std::vector<at::Tensor> numbers;
    const auto add = [&](const std::string& tensor, at::Tensor values) {
      specs.push_back({.name = tensor, .dtype = formats::Dtype::kF32, .shape = values.sizes().vec()});
      numbers.push_back(values.contiguous());
    };
    bool fused = false;
    for (const PublishedTensor& tensor : format.tensors(*model, {.prefix = "model.", .fused_experts = true})) {
      add(tensor.name, published_view(tensor, tensor.param->master));
      fused = fused || tensor.name.ends_with("experts.gate_up_proj");
    }
    ASSERT_TRUE(fused);
    for (const PublishedBias& bias : published_biases(model->shape, source)) {
      for (const nn::moe::ExpertLoads& layer : model->balance) {
        if (layer.layer == bias.layer) add(bias.name, layer.bias);
      }
    }
    formats::HfWriter writer(folder_ / name, formats::plan_hf(specs, source.config(), {}));
    for (std::size_t i = 0; i < specs.size(); ++i)
      writer.write(specs[i].name, std::span(static_cast<const std::byte*>(numbers[i].const_data_ptr()),
                                            static_cast<std::size_t>(numbers[i].nbytes())));
    writer.finish();
    const auto again = load_published(formats::HfDirectory(folder_ / name), {});
    for (nn::Param& param : again->params)
      EXPECT_TRUE(at::equal(param.master, model->params.at(param.name).master)) << param.name;
  }
}

/// Writes the folder again; `change` gives a tensor another name, none to leave it out, or another type and bytes.
void rewrite_mixture(const std::string& name, const std::filesystem::path& to,
                     const std::function<void(formats::TensorSpec& spec, std::string& bytes)>& change,
                     const std::string& also = {}) {
  const formats::HfDirectory source(fixture(name));
  std::vector<formats::TensorSpec> specs;
  std::vector<std::string> contents;
  const auto add = [&](formats::TensorSpec spec, std::string bytes) {
    if (spec.name.empty()) return;
    specs.push_back(std::move(spec));
    contents.push_back(std::move(bytes));
  };
  for (const auto& tensor : source.tensors()) {
    formats::TensorSpec spec = *tensor.info;
    std::string bytes = formats::as_text(tensor.bytes());
    const formats::TensorSpec as_it_was = spec;
    change(spec, bytes);
    add(spec, bytes);
    if (also.empty() || as_it_was.name.find(".experts.0.") == std::string::npos) continue;
    formats::TensorSpec twice = as_it_was;
    twice.name.replace(twice.name.find(".experts.0."), 11, also);
    add(twice, bytes);
  }
  formats::HfWriter writer(to, formats::plan_hf(specs, source.config(), {}));
  for (std::size_t i = 0; i < specs.size(); ++i) writer.write(specs[i].name, formats::as_bytes(contents[i]));
  writer.finish();
}

TEST_F(MixtureFolder, NamesExpertsThatAreMissingOrTooMany) {
  for (const std::string& name : kMixtureFixtures) {
    SCOPED_TRACE(name);
    const auto refused = [&](const std::filesystem::path& folder) {
      return words_of([&] { load_published(formats::HfDirectory(folder), {}); });
    };
    rewrite_mixture(name, folder_ / (name + "-less"), [](auto& spec, auto&) {
      if (spec.name.find(".experts.2.") != std::string::npos) spec.name.clear();
    });
    EXPECT_THAT(refused(folder_ / (name + "-less")),
                testing::AllOf(HasSubstr("has no tensor"), HasSubstr(".experts.")));
    rewrite_mixture(
        name, folder_ / (name + "-more"), [](auto&, auto&) {}, ".experts.99.");
    EXPECT_THAT(refused(folder_ / (name + "-more")),
                testing::AllOf(HasSubstr(".experts.99."), HasSubstr("the number of experts")));
  }
}

/// Routers whose fp32 was cut off: said once, with the tensor and its type.
TEST_F(MixtureFolder, WarnsOfRoutersInFewerBits) {
  const auto lines_of = [](const std::filesystem::path& folder) {
    std::string lines;
    divert_log([&](std::string_view line) { lines += std::string(line) + "\n"; });
    load_published(formats::HfDirectory(folder), {});
    divert_log(nullptr);
    return lines;
  };
  for (const std::string& name : kMixtureFixtures) {  // as their reference wrote them: some in BF16
    SCOPED_TRACE(name);
    bool narrow = false;
    rewrite_mixture(name, folder_ / name, [&](formats::TensorSpec& spec, std::string& bytes) {
      if (!spec.name.ends_with("gate.weight") || spec.name.find("shared") != std::string::npos) return;
      if (spec.dtype == formats::Dtype::kF32) return;
      narrow = true;
      spec.dtype = formats::Dtype::kF32;
      std::string wide;
      for (std::size_t at = 0; at < bytes.size(); at += 2) wide += std::string(2, '\0') + bytes.substr(at, 2);
      bytes = wide;
    });
    EXPECT_THAT(lines_of(folder_ / name), testing::Not(HasSubstr("other experts"))) << "all of them F32";
    const std::string lines = lines_of(fixture(name));
    EXPECT_EQ(lines.find("other experts") != std::string::npos, narrow);
    if (!narrow) continue;
    EXPECT_THAT(lines, testing::AllOf(HasSubstr("gate.weight"), HasSubstr("BF16")));
    EXPECT_EQ(lines.find("other experts"), lines.rfind("other experts")) << "once";
  }
}

std::vector<spec::ModelShape> mixture_shapes() {
  std::vector<spec::ModelShape> shapes;
  const auto add = [&](spec::Family family, const spec::Experts& experts) {
    shapes.push_back(tiny_shape(family));
    shapes.back().experts = experts;
  };
  add(spec::Family::kMistral, {.num_experts = 4, .top_k = 2, .ffn_size = 10});
  add(spec::Family::kQwen2,
      {.num_experts = 6, .top_k = 3, .ffn_size = 8, .num_shared_experts = 2, .every = 2, .shared_expert_gate = true});
  add(spec::Family::kDeepseekV3, {.num_experts = 4,
                                  .top_k = 2,
                                  .ffn_size = 8,
                                  .num_shared_experts = 1,
                                  .first_dense_layers = 1,
                                  .router = spec::RouterKind::kSigmoidTopK,
                                  .bias_update_rate = 0.1});
  shapes.back().mtp_depth = 1;
  add(spec::Family::kTransformer, {.num_experts = 4, .top_k = 2, .every = 2, .router = spec::RouterKind::kNoisyTopK});
  add(spec::Family::kGpt2, {.num_experts = 4, .top_k = 2, .router = spec::RouterKind::kStrictBalance});
  return shapes;
}

TEST(MixtureModels, HaveTheParametersThatAreListedAndCounted) {
  for (const spec::ModelShape& shape : mixture_shapes()) {
    const auto model = build(shape);  // checks the count by itself
    const std::vector<spec::ParameterShape> listed = spec::list_parameters(shape);
    std::map<std::string, std::int64_t> ours, theirs;
    for (const nn::Param& param : model->params) ours[param.name] = param.elements();
    for (const spec::ParameterShape& one : listed) theirs[one.name] = one.rows * std::max<std::int64_t>(1, one.columns);
    EXPECT_EQ(ours, theirs);
    std::vector<std::string> layers;
    for (const nn::moe::ExpertLoads& layer : model->balance) layers.push_back(layer.layer);
    EXPECT_THAT(expert_layer_names(shape), testing::UnorderedElementsAreArray(layers));
  }
}

/// Noisy gates start at zero, both matrices: each expert gets its share, by chance alone. Others are drawn.
TEST(MixtureModels, StartWithEvenLoadsWhereGatesAreNoisy) {
  for (const spec::ModelShape& shape : mixture_shapes()) {
    const auto model = build(shape);
    nn::initialise(model->params, nn::Precision::kFp32, 1);
    const bool noisy = shape.experts.router == spec::RouterKind::kNoisyTopK;
    for (const nn::Param& param : model->params) {
      if (!param.name.ends_with("router.weight")) continue;
      EXPECT_EQ(param.master.abs().max().item<double>() == 0, noisy) << param.name;
    }
    if (!noisy || shape.num_encoder_layers == 0) continue;
    const at::Tensor ids = some_ids(64, 8, shape.vocab_size, 1);
    nn::Context context = context_for(ids);
    context.source = context.sequence;
    context.training = true;
    context.targets = next_tokens(ids);
    train_once(*model, {ids, ids}, context);
    for (const nn::moe::ExpertLoads& layer : model->balance) {
      for (const std::int64_t count : layer.counts) EXPECT_NEAR(static_cast<double>(count), 256, 48) << layer.layer;
    }
  }
}

TEST(MixtureModels, ComputeTheFlopsOfTheFormula) {
  for (const spec::ModelShape& shape : mixture_shapes()) {
    if (shape.num_encoder_layers > 0 || shape.experts.router == spec::RouterKind::kStrictBalance) continue;
    const auto model = build(shape);
    nn::initialise(model->params, nn::Precision::kFp32, 1);
    const at::Tensor ids = some_ids(2, 8, shape.vocab_size, 1);
    nn::Context context = context_for(ids);
    context.targets = next_tokens(ids);
    nn::shift_tokens(ids, context, shape.mtp_depth);
    nn::Tape tape;
    model->forward({ids}, context, &tape);
    model->backward(context, tape);
    const double expected = 2 * spec::count_flops(shape, 8).total();
    EXPECT_NEAR(context.flops, 3 * expected, 1e-9 * expected);
  }
}

TEST(MixtureFamilies, RefuseWhatTheyDoNotCompute) {
  const auto read = [](const std::string& change) {
    const formats::HfConfig config(
        R"({"model_type": "deepseek_v3", "vocab_size": 8, "hidden_size": 8, "num_hidden_layers": 4,
            "num_attention_heads": 2, "intermediate_size": 8)" +
            change + "}",
        "config.json");
    return format_of(config).read_config(config);
  };
  EXPECT_EQ(read("").experts.num_experts, 256);
  EXPECT_THAT(words_of([&] { read(R"(, "scoring_func": "softmax")"); }), HasSubstr("scoring_func"));
  EXPECT_THAT(words_of([&] { read(R"(, "topk_method": "greedy")"); }), HasSubstr("topk_method"));
}

}  // namespace
}  // namespace trireme::models
