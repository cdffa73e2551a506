// tests/models/support.h -- fixtures of the reference implementation, and tiny models, for tests of whole models.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/max.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/sum.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "trireme/base/random.h"
#include "trireme/formats/hf_directory.h"
#include "trireme/formats/safetensors.h"
#include "trireme/formats/token_lists.h"
#include "trireme/models/model.h"
#include "trireme/models/published.h"

namespace trireme::models {

/// One thread an operator: these models are so small that others would only wait for each other.
class OneThread : public testing::Environment {
  void SetUp() override { at::set_num_threads(1); }
};
inline const testing::Environment* const kOneThread = testing::AddGlobalTestEnvironment(new OneThread);

/// Directories in tests/fixtures/models, made by scripts/make-fixtures/models.
inline const std::vector<std::string> kCausalFixtures = {
    "gpt2",       "gpt2_bare", "gpt2_untied", "llama",      "llama_biased_tied", "llama_llama3", "llama_linear",
    "llama_yarn", "mistral",   "qwen2",       "qwen2_tied", "qwen2_window",      "qwen3"};
inline const std::vector<std::string> kMixtureFixtures{"mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v3"};
inline const std::vector<std::string> kT5Fixtures{"t5", "t5_gated", "switch"};
/// Those without experts and of one chain.
inline std::vector<std::string> all_fixtures() {
  auto names = kCausalFixtures;
  names.push_back("bert");
  return names;
}

inline std::filesystem::path fixture(const std::string& name) {
  return std::filesystem::path(TRIREME_FIXTURES) / "models" / name;
}

/// What the reference computed.
class Expected {
 public:
  explicit Expected(const std::string& name) : file_(fixture("expected") / (name + ".safetensors")) {}
  at::Tensor operator[](const std::string& name) const {
    const formats::TensorInfo& info = file_.tensor(name);
    at::Tensor out = at::empty(info.shape, info.dtype == formats::Dtype::kI64 ? at::kLong : at::kFloat);
    const auto bytes = file_.bytes(info);
    std::memcpy(out.data_ptr(), bytes.data(), bytes.size());
    return out;
  }
  /// Names that begin with `prefix`, without it.
  std::vector<std::string> below(const std::string& prefix) const {
    std::vector<std::string> names;
    for (const auto& tensor : file_.header().tensors) {
      if (tensor.name.starts_with(prefix)) names.push_back(tensor.name.substr(prefix.size()));
    }
    return names;
  }

 private:
  formats::SafetensorsFile file_;
};

inline at::Tensor as_tensor(const formats::TokenLists& lists) {
  at::Tensor ids = at::empty({std::int64_t(lists.size()), std::int64_t(lists[0].size())}, at::kLong);
  auto* out = ids.data_ptr<std::int64_t>();
  for (const auto& list : lists) out = std::copy(list.begin(), list.end(), out);
  return ids;
}

inline at::Tensor fixture_ids() { return as_tensor(formats::read_token_lists(fixture("ids.json"), true)); }

/// Next tokens, and nothing for the last of a row.
inline at::Tensor next_tokens(const at::Tensor& ids) {
  at::Tensor targets = at::full(ids.sizes(), -100, at::kLong);
  targets.narrow(1, 0, ids.size(1) - 1).copy_(ids.narrow(1, 1, ids.size(1) - 1));
  return targets;
}

inline nn::Context context_for(const at::Tensor& ids) {
  nn::Context context;
  context.sequence = nn::plain_sequence(ids.size(0), ids.size(1));
  context.samples = at::empty({ids.size(0)}, at::kLong);
  for (std::int64_t i = 0; i < ids.size(0); ++i) context.samples.data_ptr<std::int64_t>()[i] = i;
  return context;
}

/// Of an encoder-decoder model both read the same.
inline at::Tensor logits_of(Model& model, const at::Tensor& ids) {
  nn::Context context = context_for(ids);
  if (model.shape.num_encoder_layers == 0) return model.forward({ids}, context, nullptr);
  context.source = context.sequence;
  return model.forward({ids, ids}, context, nullptr);
}

/// Loss and gradients (in Param::gradient) of the mean over targets that are not -100.
inline double train_once(Model& model, const nn::Tensors& ids, nn::Context& context) {
  nn::zero_grad(model.params);
  context.losses.clear();
  context.gradient_scale = 1.0 / static_cast<double>((context.targets != -100).sum().item<std::int64_t>());
  nn::Tape tape;
  const double loss = model.forward(ids, context, &tape).item<double>();
  model.backward(context, tape);
  return loss;
}

inline double largest(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

/// Every parameter's gradient is the reference's, and there are no others.
inline void expect_published_gradients(Model& model, const std::string& name, const Expected& expected) {
  const formats::HfDirectory directory(fixture(name));
  const auto known = [&](std::string_view tensor) { return directory.find(tensor) != nullptr; };
  std::vector<std::string> names;
  for (const PublishedTensor& tensor : published_tensors(model, known)) {
    if (tensor.optional) continue;
    names.push_back(tensor.name);
    const at::Tensor ours = published_view(tensor, tensor.param->gradient),
                     theirs = expected["gradient." + tensor.name];
    ASSERT_EQ(ours.sizes(), theirs.sizes()) << tensor.name;
    EXPECT_LE((ours - theirs).norm().item<double>(), 5e-5 * theirs.norm().item<double>() + 1e-6) << tensor.name;
  }
  EXPECT_THAT(expected.below("grad_norm."), testing::UnorderedElementsAreArray(names));
}

/// A small model of a family, every feature of it kept.
inline spec::ModelShape tiny_shape(spec::Family family) {
  spec::ModelShape shape = spec::family_shape(family);
  shape.vocab_size = 61;
  shape.max_seq_len = 48;
  shape.hidden_size = 24, shape.num_heads = 4, shape.head_dim = 6, shape.ffn_size = 36, shape.num_layers = 3;
  shape.num_kv_heads = shape.num_kv_heads == spec::family_shape(family).num_heads ? 4 : 2;
  if (shape.num_encoder_layers > 0) shape.num_encoder_layers = 2;
  if (shape.window > 0) shape.window = 5;
  if (shape.mla.used()) shape.mla = {.q_lora_rank = 14, .kv_lora_rank = 10, .qk_rope_head_dim = 4, .v_head_dim = 5};
  shape.dropout = shape.attention_dropout = shape.label_smoothing = 0;
  return shape;
}

/// Numbers far from 0 and 1 everywhere, norms and biases too.
inline void fill(Model& model, nn::Precision precision, std::uint64_t seed = 1) {
  nn::allocate(model.params, precision);
  for (nn::Param& param : model.params) {
    std::vector<double> numbers(static_cast<std::size_t>(param.elements()));
    Random(seed, param.name).fill_normal(0, std::span(numbers));
    const bool vector = param.placement.shape.size() == 1, norm = param.name.find("norm.weight") != std::string::npos;
    const double scale = vector ? 0.3 : 1 / std::sqrt(static_cast<double>(param.placement.shape.back()));
    at::Tensor drawn = at::empty(param.master.sizes(), at::kDouble);
    for (std::size_t i = 0; i < numbers.size(); ++i) drawn.data_ptr<double>()[i] = numbers[i] * scale + (norm ? 1 : 0);
    param.master.copy_(drawn);
    nn::publish(param);
  }
}

/// Token numbers that differ from row to row, the same in every run.
inline at::Tensor some_ids(std::int64_t batch, std::int64_t length, std::int64_t vocabulary, std::uint64_t seed = 7) {
  at::Tensor ids = at::empty({batch, length}, at::kLong);
  const Random random(seed, "ids");
  for (std::int64_t i = 0; i < ids.numel(); ++i) {
    ids.data_ptr<std::int64_t>()[i] =
        static_cast<std::int64_t>(random.uniform(static_cast<std::uint64_t>(i)) * static_cast<double>(vocabulary));
  }
  return ids;
}

inline std::map<std::string, at::Tensor> gradients_of(Model& model) {
  std::map<std::string, at::Tensor> out;
  for (nn::Param& param : model.params) out[param.name] = param.gradient.clone();
  return out;
}

}  // namespace trireme::models
