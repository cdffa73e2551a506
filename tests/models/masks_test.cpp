// What a token must not see: later tokens, tokens beyond the window, other documents.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/models/support.h"
#include "tests/nn/layer_cases.h"
#include "trireme/nn/autograd_layer.h"

namespace trireme::models {
namespace {

using spec::Family;

constexpr Family kCausal[] = {Family::kGpt2, Family::kLlama, Family::kMistral, Family::kQwen2, Family::kQwen3};

std::unique_ptr<Model> tiny(const spec::ModelShape& shape, nn::Precision precision = nn::Precision::kFp32) {
  auto model = build(shape);
  fill(*model, precision);
  return model;
}

/// The same tokens with another one in this column.
at::Tensor changed(const at::Tensor& ids, std::int64_t column) {
  at::Tensor out = ids.clone();
  out.select(1, column).add_(1).remainder_(61);
  return out;
}

/// Columns in which any logit has other bits.
std::vector<bool> differing_columns(const at::Tensor& a, const at::Tensor& b) {
  std::vector<bool> out;
  for (std::int64_t column = 0; column < a.size(1); ++column) {
    out.push_back(!at::equal(a.select(1, column), b.select(1, column)));
  }
  return out;
}

TEST(CausalMask, ALaterTokenChangesNoBitOfEarlierLogits) {
  for (const Family family : kCausal) {
    for (const nn::Precision precision : {nn::Precision::kFp32, nn::Precision::kBf16}) {
      const auto model = tiny(tiny_shape(family), precision);
      const at::Tensor ids = some_ids(2, 19, 61), before = logits_of(*model, ids);
      for (const std::int64_t column : {1, 8, 18}) {
        const auto differs = differing_columns(before, logits_of(*model, changed(ids, column)));
        for (std::int64_t i = 0; i <= column; ++i) {
          EXPECT_EQ(differs[i], i == column) << int(family) << ": column " << i << " and token " << column;
        }
      }
    }
  }
}

TEST(Window, ReachesBackOneWindowALayerAndNoFurther) {
  for (const std::int64_t layers : {1, 2, 3}) {
    spec::ModelShape shape = tiny_shape(Family::kMistral);
    shape.num_layers = layers;
    const auto model = tiny(shape);
    const at::Tensor ids = some_ids(1, 24, 61);
    const auto differs = differing_columns(logits_of(*model, ids), logits_of(*model, changed(ids, 2)));
    const std::int64_t reach = 2 + layers * (shape.window - 1);  // the last column that sees it through every layer
    for (std::int64_t i = 2; i < 24; ++i) EXPECT_EQ(differs[i], i <= reach) << layers << " layers, column " << i;
  }
}

TEST(Window, OfSomeLayersLeavesTheOthersDense) {
  spec::ModelShape shape = tiny_shape(Family::kGpt2);
  shape.window = 3;
  shape.window_layers = spec::WindowLayers::kOdd;
  shape.num_layers = 2;
  const at::Tensor ids = some_ids(1, 24, 61);
  const auto alternating = tiny(shape);
  auto differs = differing_columns(logits_of(*alternating, ids), logits_of(*alternating, changed(ids, 0)));
  EXPECT_TRUE(differs[23]) << "layer 0 is dense";
  shape.window_layers = spec::WindowLayers::kFrom;
  shape.window_from = 0;
  const auto all = tiny(shape);
  differs = differing_columns(logits_of(*all, ids), logits_of(*all, changed(ids, 0)));
  EXPECT_TRUE(differs[4]);
  EXPECT_FALSE(differs[5]) << "two layers of three reach four back";
}

/// A GPT by whole matrices, as its papers write it; layers that are odd see a band only.
at::Tensor dense_gpt(const spec::ModelShape& shape, const nn::NamedWeights& w, const at::Tensor& ids,
                     const at::Tensor& targets) {
  const std::int64_t length = ids.size(1);
  const auto layer_norm = [&](const at::Tensor& x, const std::string& name) {
    return at::layer_norm(x, {shape.hidden_size}, w.at(name + ".weight"), w.at(name + ".bias"), shape.epsilon);
  };
  const auto linear = [&](const at::Tensor& x, const std::string& name) {
    return at::linear(x, w.at(name + ".weight"), w.at(name + ".bias"));
  };
  at::Tensor x = w.at("embedding.tokens.weight").index({ids}) +
                 w.at("embedding.positions.weight").narrow(0, 0, length).unsqueeze(0);
  const at::Tensor distance = at::arange(length).unsqueeze(1) - at::arange(length).unsqueeze(0);  // query - key
  for (std::int64_t layer = 0; layer < shape.num_layers; ++layer) {
    const std::string name = fmt::format("layers.{}.", layer);
    const at::Tensor qkv = linear(layer_norm(x, name + "attention.norm"), name + "attention.qkv");
    const auto heads = [&](std::int64_t part) {
      return qkv.narrow(2, part * shape.hidden_size, shape.hidden_size)
          .view({ids.size(0), length, shape.num_heads, shape.head_dim})
          .transpose(1, 2);
    };
    at::Tensor hidden = distance < 0;
    if (layer % 2 == 1) hidden = hidden.logical_or(distance >= shape.window);
    const at::Tensor scores =
        (at::matmul(heads(0), heads(1).transpose(2, 3)) / std::sqrt(static_cast<double>(shape.head_dim)))
            .masked_fill(hidden, -INFINITY);
    const at::Tensor mixed =
        at::matmul(at::softmax(scores, -1), heads(2)).transpose(1, 2).reshape({ids.size(0), length, shape.hidden_size});
    x = x + linear(mixed, name + "attention.out");
    const at::Tensor inner = at::gelu(linear(layer_norm(x, name + "mlp.norm"), name + "mlp.in"), "tanh");
    x = x + linear(inner, name + "mlp.out");
  }
  const at::Tensor logits = at::matmul(layer_norm(x, "norm"), w.at("embedding.tokens.weight").t());
  return at::cross_entropy_loss(logits.view({-1, shape.vocab_size}), targets.view(-1));
}

TEST(GptThree, AlternatesDenseAndBandedLayersAsWrittenOut) {
  spec::ModelShape shape = tiny_shape(Family::kGpt2);
  shape.num_layers = 4;
  shape.window = 6;
  shape.window_layers = spec::WindowLayers::kOdd;
  const auto model = tiny(shape, nn::Precision::kFp64);
  const at::Tensor ids = some_ids(2, 23, 61);
  nn::Context context = context_for(ids);
  context.targets = next_tokens(ids);
  const double loss = train_once(*model, {ids}, context);
  const auto ours = gradients_of(*model);

  std::vector<nn::Param*> list;
  for (nn::Param& param : model->params) list.push_back(&param);
  nn::AutogradLayer oracle(list, [&](const nn::Tensors&, const nn::Tensors& values) {
    nn::NamedWeights weights;
    for (std::size_t i = 0; i < list.size(); ++i) weights[list[i]->name] = values[i];
    return nn::Tensors{dense_gpt(shape, weights, ids, context.targets)};
  });
  nn::zero_grad(model->params);
  nn::Tape tape;
  const at::Tensor expected = oracle.forward({}, context, &tape)[0];
  oracle.backward({at::ones_like(expected)}, context, tape);
  EXPECT_NEAR(loss, expected.item<double>(), 1e-13);
  for (const nn::Param& param : model->params) {
    EXPECT_LE(largest(ours.at(param.name), param.gradient), 1e-12) << param.name;
  }
}

struct Packed {
  at::Tensor ids;
  nn::Context context;
};
/// Documents one after the other in a single row, each with positions of its own.
Packed packed(const std::vector<at::Tensor>& documents) {
  Packed out{.ids = at::cat(documents, 1), .context = {}};
  out.context = context_for(out.ids);
  std::vector<at::Tensor> positions, numbers, targets;
  for (std::size_t i = 0; i < documents.size(); ++i) {
    positions.push_back(at::arange(documents[i].size(1)).unsqueeze(0));
    numbers.push_back(at::full({1, documents[i].size(1)}, static_cast<std::int64_t>(i), at::kInt));
    targets.push_back(next_tokens(documents[i]));
  }
  out.context.sequence.positions = at::cat(positions, 1);
  out.context.sequence.documents = at::cat(numbers, 1);
  out.context.targets = at::cat(targets, 1);
  return out;
}

TEST(Documents, PackedInOneRowAreAsIfEachWereAlone) {
  for (const Family family : {Family::kGpt2, Family::kLlama, Family::kMistral, Family::kQwen3, Family::kBert}) {
    const auto model = tiny(tiny_shape(family), nn::Precision::kFp64);
    const std::vector<at::Tensor> documents = {some_ids(1, 7, 61, 1), some_ids(1, 1, 61, 2), some_ids(1, 12, 61, 3)};
    Packed row = packed(documents);
    const double loss = train_once(*model, {row.ids}, row.context);
    const double count = row.context.losses.at(0).count;
    EXPECT_EQ(count, 6 + 0 + 11);
    const auto gradients = gradients_of(*model);
    row.context.targets = at::Tensor();
    const at::Tensor logits = model->forward({row.ids}, row.context, nullptr);

    double sum = 0;
    std::int64_t column = 0;
    nn::zero_grad(model->params);
    for (const at::Tensor& document : documents) {
      EXPECT_LE(largest(logits_of(*model, document), logits.narrow(1, column, document.size(1))), 1e-12);
      column += document.size(1);
      nn::Context alone = context_for(document);
      alone.targets = next_tokens(document);
      alone.gradient_scale = 1 / count;
      nn::Tape tape;
      model->forward({document}, alone, &tape);
      model->backward(alone, tape);
      sum += alone.losses.at(0).sum;
    }
    EXPECT_NEAR(loss, sum / count, 1e-13);
    for (const nn::Param& param : model->params) {
      EXPECT_LE(largest(gradients.at(param.name), param.gradient), 1e-12) << int(family) << " " << param.name;
    }
  }
}

TEST(Documents, OneChangesNoBitOfAnother) {
  for (const Family family : {Family::kGpt2, Family::kLlama, Family::kMistral, Family::kBert}) {
    const auto model = tiny(tiny_shape(family));
    const Packed row = packed({some_ids(1, 7, 61, 1), some_ids(1, 9, 61, 2)});
    const auto logits = [&](const at::Tensor& ids) {
      nn::Context context = row.context;
      context.targets = at::Tensor();
      return model->forward({ids}, context, nullptr);
    };
    const at::Tensor before = logits(row.ids);
    for (const std::int64_t column : {6, 7, 15}) {
      const auto differs = differing_columns(before, logits(changed(row.ids, column)));
      for (std::int64_t i = 0; i < 16; ++i) {
        const bool same = (i < 7) == (column < 7);
        EXPECT_FALSE(!same && differs[i]) << int(family) << ": " << i << " sees " << column;
      }
      EXPECT_TRUE(differs[column]);
    }
  }
}

TEST(Bert, SeesBothSides) {
  const auto model = tiny(tiny_shape(Family::kBert));
  const at::Tensor ids = some_ids(1, 9, 61);
  for (const bool differs : differing_columns(logits_of(*model, ids), logits_of(*model, changed(ids, 8)))) {
    EXPECT_TRUE(differs);
  }
}

}  // namespace
}  // namespace trireme::models
