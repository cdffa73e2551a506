// Published directories out again: the same bytes, and new ones that read back the same.
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/formats/samples.h"
#include "tests/models/support.h"
#include "trireme/formats/hf_writer.h"

namespace trireme::models {
namespace {

namespace fs = std::filesystem;
using formats::contents;
using testing::HasSubstr;

class Export : public OwnFolder {};

TEST_F(Export, OfAnUntouchedModelIsTheSameBytes) {
  std::vector<std::string> names = all_fixtures();
  names.insert(names.end(), kMixtureFixtures.begin(), kMixtureFixtures.end());
  names.insert(names.end(), kT5Fixtures.begin(), kT5Fixtures.end());
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    const formats::HfDirectory source(fixture(name));
    const auto model = load_published(source, {});
    save_published_like(source, *model, folder_ / name);
    const auto expected = contents(fixture(name)), written = contents(folder_ / name);
    ASSERT_EQ(written.size(), expected.size());
    for (const auto& [file, bytes] : expected) EXPECT_TRUE(written.at(file) == bytes) << file;
  }
}

TEST_F(Export, HasTheModelsNewNumbersAndLeavesTheRest) {
  const formats::HfDirectory source(fixture("gpt2"));
  const auto model = load_published(source, {});
  for (nn::Param& param : model->params) param.master.mul_(2);
  save_published_like(source, *model, folder_ / "doubled");
  const formats::HfDirectory doubled(folder_ / "doubled");
  EXPECT_EQ(formats::as_text(doubled.tensor("transformer.h.0.attn.bias").bytes()),
            formats::as_text(source.tensor("transformer.h.0.attn.bias").bytes()));
  const auto again = load_published(doubled, {});
  for (nn::Param& param : again->params) {
    EXPECT_TRUE(at::equal(param.master, model->params.at(param.name).master)) << param.name;
  }
  const formats::HfTensor &before = source.tensor("transformer.h.1.mlp.c_fc.weight"),
                          &after = doubled.tensor("transformer.h.1.mlp.c_fc.weight");
  float was = 0, is = 0;
  std::memcpy(&was, before.bytes().data() + 40, 4);
  std::memcpy(&is, after.bytes().data() + 40, 4);
  EXPECT_EQ(is, 2 * was);
}

TEST_F(Export, FromNothingReadsBackAsTheSameModel) {
  for (const std::string& name : all_fixtures()) {
    SCOPED_TRACE(name);
    const auto model = load_published(formats::HfDirectory(fixture(name)), {});
    for (const formats::Dtype dtype : {formats::Dtype::kF32, formats::Dtype::kBF16}) {
      const fs::path path = folder_ / (name + std::string(formats::name_of(dtype)));
      save_published(*model, path, dtype);
      const auto again = load_published(formats::HfDirectory(path), {});
      EXPECT_TRUE(again->shape == model->shape);
      for (nn::Param& param : again->params) {
        const at::Tensor& was = model->params.at(param.name).master;
        const at::Tensor rounded = dtype == formats::Dtype::kF32 ? was : was.to(at::kBFloat16).to(at::kFloat);
        EXPECT_TRUE(at::equal(param.master, rounded)) << param.name;
      }
    }
  }
}

TEST_F(Export, OfAFamilysDefaultShapeKeepsEveryFeature) {
  for (const FamilyFormat* format : family_formats()) {
    SCOPED_TRACE(std::string(format->model_type));
    const auto model = build(tiny_shape(format->family));
    fill(*model, nn::Precision::kFp32);
    save_published(*model, folder_ / std::string(format->model_type), formats::Dtype::kF32);
    const auto again = load_published(formats::HfDirectory(folder_ / std::string(format->model_type)), {});
    const at::Tensor ids = some_ids(2, 9, 61);
    EXPECT_TRUE(at::equal(logits_of(*again, ids), logits_of(*model, ids)));
  }
}

TEST_F(Export, RefusesAShapeThatTheFormatCannotSay) {
  spec::ModelShape shape = tiny_shape(spec::Family::kGpt2);
  shape.window = 4;
  shape.window_layers = spec::WindowLayers::kOdd;
  auto model = build(shape);
  fill(*model, nn::Precision::kFp32);
  try {
    save_published(*model, folder_ / "gpt3", formats::Dtype::kF32);
    FAIL() << "a window was lost";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.message(), HasSubstr("gpt2"));
    EXPECT_THAT(error.message(), HasSubstr("window = 4"));
    EXPECT_THAT(error.message(), HasSubstr("window_layers = \"odd\""));
  }
  EXPECT_FALSE(fs::exists(folder_ / "gpt3"));
  model = build(tiny_shape(spec::Family::kTransformer));
  EXPECT_THROW(save_published(*model, folder_ / "transformer", formats::Dtype::kF32), ConfigError);
}

/// A directory of one file again, with tensors renamed, dropped, added or given other bytes.
class Tied : public Export {
 protected:
  struct Stored {
    std::string name;
    formats::TensorSpec spec;
    std::string bytes;
  };
  std::vector<Stored> stored(const std::string& name) {
    std::vector<Stored> out;
    const formats::HfDirectory source(fixture(name));
    for (const auto& tensor : source.tensors()) {
      out.push_back({tensor.info->name, *tensor.info, formats::as_text(tensor.bytes())});
    }
    return out;
  }
  fs::path write(const std::string& name, std::vector<Stored> tensors) {
    std::vector<formats::TensorSpec> specs;
    for (auto& tensor : tensors) {
      tensor.spec.name = tensor.name;
      specs.push_back(tensor.spec);
    }
    const formats::HfDirectory source(fixture(name));
    formats::HfWriter writer(folder_ / "changed", formats::plan_hf(specs, source.config(), {}));
    for (const auto& tensor : tensors) writer.write(tensor.name, formats::as_bytes(tensor.bytes));
    writer.finish();
    return folder_ / "changed";
  }
};

TEST_F(Tied, AWeightStoredTwiceIsExportedTwice) {
  auto tensors = stored("qwen2_tied");
  const auto embedding = *std::ranges::find(tensors, "model.embed_tokens.weight", &Stored::name);
  tensors.push_back({"lm_head.weight", embedding.spec, embedding.bytes});
  const fs::path path = write("qwen2_tied", tensors);
  const formats::HfDirectory source(path);
  const auto model = load_published(source, {});
  EXPECT_LE(largest(logits_of(*model, fixture_ids()), Expected("qwen2_tied")["logits"]), 1e-5);
  model->params.at("embedding.tokens.weight").master.mul_(2);
  save_published_like(source, *model, folder_ / "out");
  const formats::HfDirectory out(folder_ / "out");
  EXPECT_EQ(formats::as_text(out.tensor("lm_head.weight").bytes()),
            formats::as_text(out.tensor("model.embed_tokens.weight").bytes()));
  EXPECT_NE(formats::as_text(out.tensor("lm_head.weight").bytes()), embedding.bytes);
}

TEST_F(Tied, AWeightStoredUnderItsOtherNameIsFound) {
  auto tensors = stored("gpt2");
  std::ranges::find(tensors, "transformer.wte.weight", &Stored::name)->name = "lm_head.weight";
  const fs::path path = write("gpt2", tensors);
  const formats::HfDirectory source(path);
  const auto model = load_published(source, {});
  EXPECT_LE(largest(logits_of(*model, fixture_ids()), Expected("gpt2")["logits"]), 1e-5);
  save_published_like(source, *model, folder_ / "out");
  EXPECT_EQ(contents(folder_ / "out"), contents(path));
}

TEST_F(Tied, ACopyThatSaysSomethingElseIsLeftAlone) {
  auto tensors = stored("qwen2_tied");
  const auto embedding = *std::ranges::find(tensors, "model.embed_tokens.weight", &Stored::name);
  tensors.push_back({"lm_head.weight", embedding.spec, std::string(embedding.bytes.size(), '\1')});
  const fs::path path = write("qwen2_tied", tensors);
  const formats::HfDirectory source(path);
  const auto model = load_published(source, {});
  // The reference ties the head to the embedding whatever the file says.
  EXPECT_LE(largest(logits_of(*model, fixture_ids()), Expected("qwen2_tied")["logits"]), 1e-5);
  save_published_like(source, *model, folder_ / "out");
  EXPECT_EQ(contents(folder_ / "out"), contents(path));
}

}  // namespace
}  // namespace trireme::models
