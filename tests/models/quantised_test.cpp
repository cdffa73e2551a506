// Matrices in fewer bits in published folders: what is written reads back, and what others write is read as they mean
// it.
#include "trireme/models/quantised_tensors.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/errors.h"
#include "tests/formats/samples.h"
#include "tests/models/support.h"
#include "trireme/base/error.h"
#include "trireme/formats/hf_writer.h"
#include "trireme/models/matrix_codec.h"

namespace trireme::models {
namespace {

namespace fs = std::filesystem;
using kernels::WeightFormat;
using testing::HasSubstr;

class Quantised : public OwnFolder {};

struct Variant {
  const char* name;
  CodecOptions options;
};
const std::vector<Variant> kVariants{
    {"int8", {.format = WeightFormat::kInt8}},
    {"fp8", {.format = WeightFormat::kE4m3}},
    {"gptq", {.format = WeightFormat::kInt4, .group = 8}},
    {"gptq_symmetric", {.format = WeightFormat::kInt4, .group = 8, .symmetric = true}},
    {"awq", {.format = WeightFormat::kInt4, .group = 8, .layout = QuantisedLayout::kAwq}}};

void write_quantised(Model& model, const fs::path& path, const CodecOptions& options) {
  const auto read = [](const nn::Param& param, std::int64_t begin, std::int64_t end) {
    return param.master.view({-1}).narrow(0, begin, end - begin);
  };
  save_published(model, path, formats::Dtype::kF32, read, {}, make_codec(options).get());
}

TEST_F(Quantised, FoldersOfEveryFamilyReadBackAsTheBitsThatWereMeant) {
  for (const std::string name : {"llama", "gpt2", "mistral", "qwen3", "qwen2_tied"}) {
    for (const Variant& variant : kVariants) {
      SCOPED_TRACE(name + " " + variant.name);
      const auto model = load_published(formats::HfDirectory(fixture(name)), {});
      const fs::path path = folder_ / (name + variant.name);
      write_quantised(*model, path, variant.options);
      const formats::HfDirectory directory(path);
      ASSERT_TRUE(quantised_format(directory.config()));
      const auto again = load_published(directory, {});
      const auto tensors =
          published_tensors(*again, [&](std::string_view known) { return directory.find(known) != nullptr; });
      for (nn::Param& param : again->params) {
        const at::Tensor& was = model->params.at(param.name).master;
        if (!is_quantisable(param)) {
          EXPECT_TRUE(at::equal(param.master, was)) << param.name;
          continue;
        }
        const auto meant = kernels::quantise_weight(
            was,
            {.format = variant.options.format, .group = variant.options.group, .symmetric = variant.options.symmetric});
        EXPECT_TRUE(at::equal(param.master, kernels::dequantise_weight(meant))) << param.name;
        std::vector<const PublishedTensor*> parts;
        for (const PublishedTensor& tensor : tensors) {
          if (tensor.param == &param) parts.push_back(&tensor);
        }
        const auto codes = read_quantised(directory, parts);
        ASSERT_TRUE(codes) << param.name;
        EXPECT_TRUE(at::equal(codes->values.view(at::kByte), meant.values.view(at::kByte))) << param.name;
        EXPECT_TRUE(at::equal(codes->scales.view({-1}), meant.scales.view({-1}))) << param.name;
        if (meant.zeros.defined()) {
          EXPECT_TRUE(at::equal(codes->zeros, meant.zeros)) << param.name;
        }
      }
    }
  }
}

TEST_F(Quantised, NoWeightIsFurtherFromWhatItWasThanHalfAScale) {
  const auto model = load_published(formats::HfDirectory(fixture("llama")), {});
  const at::Tensor& weight = model->params.at("layers.1.mlp.in.weight").master;
  for (const bool symmetric : {false, true}) {
    const auto of =
        kernels::quantise_weight(weight, {.format = WeightFormat::kInt4, .group = 8, .symmetric = symmetric});
    const at::Tensor off = (kernels::dequantise_weight(of) - weight).abs().view({weight.size(0), -1, 8});
    EXPECT_TRUE((off <= of.scales.unsqueeze(2) * 0.5001F).all().item<bool>());
    EXPECT_TRUE(at::equal(of.scales, of.scales.to(at::kHalf).to(at::kFloat)));
  }
}

/// A folder of one layer whose q_proj is `parts`; everything else is the fixture's.
class Folder {
 public:
  Folder(const fs::path& path, const std::string& quantization) : path_(path), config_(quantization) {}
  void add(const std::string& name, const at::Tensor& data, formats::Dtype dtype) {
    specs_.push_back({.name = name, .dtype = dtype, .shape = data.sizes().vec()});
    data_.push_back(data.contiguous());
  }
  formats::HfDirectory write() {
    const formats::HfDirectory source(fixture("llama"));
    for (const formats::HfTensor& tensor : source.tensors()) {
      if (tensor.info->name == kReplaced) continue;
      at::Tensor data = at::empty(tensor.info->shape, at::kFloat);
      std::memcpy(data.data_ptr(), tensor.bytes().data(), tensor.bytes().size());
      add(tensor.info->name, data, formats::Dtype::kF32);
    }
    formats::HfConfig config(read_text_file(fixture("llama") / "config.json", 1 << 20), "config.json");
    config.set("quantization_config", nlohmann::ordered_json::parse(config_));
    formats::HfWriter writer(path_, formats::plan_hf(specs_, config, {}));
    for (std::size_t i = 0; i < specs_.size(); ++i) {
      writer.write(specs_[i].name,
                   {static_cast<const std::byte*>(data_[i].data_ptr()), static_cast<std::size_t>(data_[i].nbytes())});
    }
    writer.finish();
    return formats::HfDirectory(path_);
  }
  static constexpr const char* kReplaced = "model.layers.0.self_attn.q_proj.weight";

 private:
  fs::path path_;
  std::string config_;
  std::vector<formats::TensorSpec> specs_;
  std::vector<at::Tensor> data_;
};

constexpr std::int64_t kOut = 32, kIn = 32, kGroup = 8, kGroups = kIn / kGroup;
const std::string kBase = "model.layers.0.self_attn.q_proj";

/// Numbers of a matrix in int4, one by one, and what they stand for.
struct Example {
  at::Tensor codes = at::randint(0, 16, {kIn, kOut}, at::kLong);  // [in, out], as both formats think
  at::Tensor zeros = at::randint(0, 16, {kGroups, kOut}, at::kLong);
  at::Tensor scales = (at::rand({kGroups, kOut}) + 0.5).to(at::kHalf);
  at::Tensor group_of = at::arange(kIn, at::kLong).floor_divide(kGroup);
  at::Tensor meant() const {  // [out, in]
    const at::Tensor scale = scales.to(at::kFloat).index_select(0, group_of);
    return (scale * (codes - zeros.index_select(0, group_of)).to(at::kFloat)).t();
  }
};

/// Eight numbers of dimension `dim` a word, number order[i] at bits 4 i.
at::Tensor words(const at::Tensor& numbers, std::int64_t dim, const std::vector<int>& order) {
  const at::Tensor rows = dim == 0 ? numbers.t() : numbers;
  at::Tensor out = at::zeros({rows.size(0), rows.size(1) / 8}, at::kInt);
  for (std::int64_t r = 0; r < out.size(0); ++r) {
    for (std::int64_t w = 0; w < out.size(1); ++w) {
      std::uint32_t word = 0;
      for (int i = 0; i < 8; ++i) {
        word += static_cast<std::uint32_t>(rows[r][8 * w + order[static_cast<std::size_t>(i)]].item<std::int64_t>())
                << (4 * i);
      }
      out[r][w] = static_cast<std::int32_t>(word);
    }
  }
  return dim == 0 ? out.t() : out;
}
const std::vector<int> kPlain{0, 1, 2, 3, 4, 5, 6, 7}, kAwq{0, 2, 4, 6, 1, 3, 5, 7};

at::Tensor query_rows(const Model& model) {
  return model.params.find("layers.0.attention.qkv.weight")->master.narrow(0, 0, kOut);
}

TEST_F(Quantised, GptqIsReadAsItsPackerWritesIt) {
  at::manual_seed(3);
  for (const bool second : {false, true}) {
    for (const bool act_order : {false, true}) {
      SCOPED_TRACE(second);
      Example example;
      if (act_order) example.group_of = at::randperm(kIn, at::kLong).floor_divide(kGroup);
      Folder folder(folder_ / (std::to_string(second) + std::to_string(act_order)),
                    second ? R"({"quant_method": "gptq", "bits": 4, "group_size": 8, "checkpoint_format": "gptq_v2"})"
                           : R"({"quant_method": "gptq", "bits": 4, "group_size": 8, "desc_act": true})");
      folder.add(kBase + ".qweight", words(example.codes, 0, kPlain), formats::Dtype::kI32);
      const at::Tensor stored = second ? example.zeros : (example.zeros + 15).remainder(16);
      folder.add(kBase + ".qzeros", words(stored, 1, kPlain), formats::Dtype::kI32);
      folder.add(kBase + ".scales", example.scales, formats::Dtype::kF16);
      folder.add(kBase + ".g_idx", example.group_of.to(at::kInt), formats::Dtype::kI32);
      const auto model = load_published(folder.write(), {});
      EXPECT_TRUE(at::equal(query_rows(*model), example.meant()));
    }
  }
}

TEST_F(Quantised, AwqIsReadAsItsPackerWritesIt) {
  at::manual_seed(4);
  const Example example;
  Folder folder(folder_ / "awq", R"({"quant_method": "awq", "bits": 4, "group_size": 8, "version": "gemm"})");
  folder.add(kBase + ".qweight", words(example.codes, 1, kAwq), formats::Dtype::kI32);
  folder.add(kBase + ".qzeros", words(example.zeros, 1, kAwq), formats::Dtype::kI32);
  folder.add(kBase + ".scales", example.scales, formats::Dtype::kF16);
  const auto model = load_published(folder.write(), {});
  EXPECT_TRUE(at::equal(query_rows(*model), example.meant()));
}

TEST_F(Quantised, WhatIsNotReadIsNamed) {
  const auto refused = [&](const std::string& quantization, const std::string& why) {
    formats::HfConfig config(R"({"quantization_config": )" + quantization + "}", "config.json");
    try {
      quantised_format(config);
      ADD_FAILURE() << quantization;
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr(why));
    }
  };
  refused(R"({"quant_method": "gptq", "bits": 3})", "gptq of 3 bits");
  refused(R"({"quant_method": "awq", "bits": 4, "version": "gemv"})", "awq of 4 bits as \"gemv\"");
  refused(R"({"quant_method": "bitsandbytes"})", "quant_method \"bitsandbytes\"");
  refused(R"({"quant_method": "compressed-tensors", "format": "pack-quantized"})", "the format \"pack-quantized\"");
  formats::HfConfig blocks(R"({"quantization_config": {"quant_method": "fp8"}})", "config.json");
  EXPECT_FALSE(quantised_format(blocks));

  at::manual_seed(5);
  const Example example;
  Folder folder(folder_ / "short", R"({"quant_method": "awq", "bits": 4, "group_size": 16})");
  folder.add(kBase + ".qweight", words(example.codes, 1, kAwq), formats::Dtype::kI32);
  folder.add(kBase + ".qzeros", words(example.zeros, 1, kAwq), formats::Dtype::kI32);
  folder.add(kBase + ".scales", example.scales, formats::Dtype::kF16);
  const formats::HfDirectory wrong = folder.write();
  try {
    load_published(wrong, {});
    ADD_FAILURE() << "groups of another size";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("q_proj.qzeros"));
  }
}

TEST_F(Quantised, GroupsThatDoNotDivideAreNamedBeforeAnythingIsWritten) {
  const auto model = load_published(formats::HfDirectory(fixture("llama")), {});
  try {
    write_quantised(*model, folder_ / "none", {.format = WeightFormat::kInt4, .group = 24});
    ADD_FAILURE() << "32 inputs in groups of 24";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("q_proj"));
    EXPECT_THAT(error.hint(), HasSubstr("--group-size"));
  }
  EXPECT_FALSE(fs::exists(folder_ / "none"));
}

}  // namespace
}  // namespace trireme::models
