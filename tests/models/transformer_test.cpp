// The original Transformer against its paper (Vaswani et al. 2017), written out with whole matrices and autograd.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/models/support.h"
#include "tests/nn/layer_cases.h"
#include "trireme/nn/autograd_layer.h"

namespace trireme::models {
namespace {

/// Sections 3.1 to 3.5 and 5.4, equation by equation.
class Paper {
 public:
  Paper(const spec::ModelShape& shape, const nn::NamedWeights& weights) : shape_(shape), w_(weights) {}

  at::Tensor loss(const at::Tensor& source, const at::Tensor& ids, const at::Tensor& targets) const {
    at::Tensor memory = embed(source);
    for (std::int64_t i = 0; i < shape_.num_encoder_layers; ++i)
      memory = encode(memory, fmt::format("encoder.layers.{}", i));
    at::Tensor x = embed(ids);
    for (std::int64_t i = 0; i < shape_.num_layers; ++i) x = decode(x, memory, fmt::format("layers.{}", i));
    // 3.4: the same weight matrix before the softmax as in the embeddings.
    return smoothed(at::log_softmax(at::matmul(x, w_.at("embedding.tokens.weight").t()), -1), targets);
  }

 private:
  /// 3.4: embeddings times sqrt(d_model); 3.5: PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos of the same.
  at::Tensor embed(const at::Tensor& ids) const {
    at::Tensor table = at::empty({ids.size(1), shape_.hidden_size}, at::kDouble);
    for (std::int64_t pos = 0; pos < ids.size(1); ++pos) {
      for (std::int64_t i = 0; 2 * i < shape_.hidden_size; ++i) {
        const double angle = double(pos) / std::pow(10000.0, 2.0 * double(i) / double(shape_.hidden_size));
        table[pos][2 * i] = std::sin(angle);
        table[pos][2 * i + 1] = std::cos(angle);
      }
    }
    return w_.at("embedding.tokens.weight").index({ids}) * std::sqrt(double(shape_.hidden_size)) + table;
  }

  at::Tensor linear(const at::Tensor& x, const std::string& name, bool bias) const {
    const at::Tensor y = at::matmul(x, w_.at(name + ".weight").t());
    return bias ? y + w_.at(name + ".bias") : y;
  }

  /// 3.1: LayerNorm(x + Sublayer(x)).
  at::Tensor add_and_norm(const at::Tensor& x, const at::Tensor& sublayer, const std::string& name) const {
    const at::Tensor sum = x + sublayer, mean = sum.mean(-1, true);
    const at::Tensor variance = (sum - mean).pow(2).mean(-1, true);
    return (sum - mean) / (variance + shape_.epsilon).sqrt() * w_.at(name + ".weight") + w_.at(name + ".bias");
  }

  /// 3.2.1 and 3.2.2: Concat(softmax(Q_i K_i^T / sqrt(d_k)) V_i) W^O, head by head.
  at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool masked) const {
    std::vector<at::Tensor> heads;
    for (std::int64_t head = 0; head < shape_.num_heads; ++head) {
      const auto of_head = [&](const at::Tensor& x) { return x.narrow(2, head * shape_.head_dim, shape_.head_dim); };
      at::Tensor scores = at::matmul(of_head(q), of_head(k).transpose(1, 2)) / std::sqrt(double(shape_.head_dim));
      if (masked) {
        const at::Tensor later = at::ones({q.size(1), k.size(1)}, at::kBool).triu(1);
        scores = scores.masked_fill(later, -INFINITY);
      }
      heads.push_back(at::matmul(at::softmax(scores, -1), of_head(v)));
    }
    return at::cat(heads, 2);
  }

  at::Tensor self_attention(const at::Tensor& x, const std::string& name, bool masked) const {
    const at::Tensor qkv = linear(x, name + ".qkv", shape_.attention_bias);
    const auto part = [&](std::int64_t i) { return qkv.narrow(2, i * shape_.hidden_size, shape_.hidden_size); };
    return linear(attend(part(0), part(1), part(2), masked), name + ".out", shape_.output_bias);
  }

  at::Tensor cross_attention(const at::Tensor& x, const at::Tensor& memory, const std::string& name) const {
    const at::Tensor q = linear(x, name + ".q", shape_.attention_bias);
    const at::Tensor kv = linear(memory, name + ".kv", shape_.attention_bias);
    const at::Tensor k = kv.narrow(2, 0, shape_.hidden_size), v = kv.narrow(2, shape_.hidden_size, shape_.hidden_size);
    return linear(attend(q, k, v, false), name + ".out", shape_.output_bias);
  }

  /// 3.3: max(0, x W_1 + b_1) W_2 + b_2.
  at::Tensor feed_forward(const at::Tensor& x, const std::string& name) const {
    if (w_.contains(name + ".router.weight")) return experts(x, name);
    return linear(at::clamp_min(linear(x, name + ".in", true), 0), name + ".out", true);
  }

  /// GShard (Lepikhin et al. 2020), algorithm 1, without the random second choice: a loop over the tokens of each
  /// sequence, first choices before second ones, an expert at a time.
  at::Tensor experts(const at::Tensor& x, const std::string& name) const {
    const std::int64_t count = shape_.experts.num_experts, tokens = x.size(1);
    const auto capacity =
        static_cast<std::int64_t>(std::ceil(2.0 * double(tokens) / double(count) * shape_.experts.capacity_factor));
    std::vector<at::Tensor> samples;
    for (std::int64_t sample = 0; sample < x.size(0); ++sample) {
      const at::Tensor rows = x[sample];
      const at::Tensor gates = at::softmax(at::matmul(rows, w_.at(name + ".router.weight").t()), -1);
      const auto best = std::get<1>(gates.detach().topk(2, -1));
      std::vector<std::int64_t> taken(static_cast<std::size_t>(count), 0);
      std::vector<at::Tensor> of_token(static_cast<std::size_t>(tokens), at::zeros({x.size(2)}, at::kDouble));
      for (const std::int64_t choice : {0, 1}) {
        for (std::int64_t token = 0; token < tokens; ++token) {
          const auto e = best[token][choice].item<std::int64_t>();
          if (taken[static_cast<std::size_t>(e)]++ >= capacity) continue;
          const at::Tensor both =
              gates[token][best[token][0].item<std::int64_t>()] + gates[token][best[token][1].item<std::int64_t>()];
          const at::Tensor inner = at::clamp_min(at::matmul(w_.at(name + ".experts.in.weight")[e], rows[token]), 0);
          of_token[static_cast<std::size_t>(token)] =
              of_token[static_cast<std::size_t>(token)] +
              gates[token][e] / both * at::matmul(w_.at(name + ".experts.out.weight")[e], inner);
        }
      }
      samples.push_back(at::stack(of_token));
    }
    return at::stack(samples);
  }

  at::Tensor encode(at::Tensor x, const std::string& name) const {
    x = add_and_norm(x, self_attention(x, name + ".attention", false), name + ".attention.norm");
    return add_and_norm(x, feed_forward(x, name + ".mlp"), name + ".mlp.norm");
  }

  at::Tensor decode(at::Tensor x, const at::Tensor& memory, const std::string& name) const {
    x = add_and_norm(x, self_attention(x, name + ".attention", true), name + ".attention.norm");
    x = add_and_norm(x, cross_attention(x, memory, name + ".cross"), name + ".cross.norm");
    return add_and_norm(x, feed_forward(x, name + ".mlp"), name + ".mlp.norm");
  }

  /// 5.4: the target distribution has 1 - epsilon on the label and epsilon spread over the vocabulary.
  at::Tensor smoothed(const at::Tensor& log_probabilities, const at::Tensor& targets) const {
    const at::Tensor there = targets != -100;
    const at::Tensor of_label = log_probabilities.gather(2, targets.clamp_min(0).unsqueeze(2)).squeeze(2);
    const at::Tensor loss =
        -(1 - shape_.label_smoothing) * of_label - shape_.label_smoothing * log_probabilities.mean(-1);
    return (loss * there).sum() / there.sum();
  }

  const spec::ModelShape& shape_;
  const nn::NamedWeights& w_;
};

nn::Context context_of(const at::Tensor& source, const at::Tensor& ids) {
  nn::Context context = context_for(ids);
  context.source = nn::plain_sequence(source.size(0), source.size(1));
  context.targets = next_tokens(ids);
  return context;
}

TEST(Transformer, IsThePaperWrittenOut) {
  enum class Kind { kPlain, kBiased, kGshard };  // GShard's translation model: experts in every other layer
  for (const Kind kind : {Kind::kPlain, Kind::kBiased, Kind::kGshard}) {
    spec::ModelShape shape = tiny_shape(spec::Family::kTransformer);
    shape.label_smoothing = 0.1;
    shape.attention_bias = shape.output_bias = kind == Kind::kBiased;
    if (kind == Kind::kGshard) {
      shape.num_layers = shape.num_encoder_layers = 2;
      shape.experts = {.num_experts = 4, .top_k = 2, .ffn_size = 10, .every = 2, .capacity_factor = 0.6};
      shape.experts.router = spec::RouterKind::kGshard, shape.experts.random_second_choice = false;
    }
    const auto model = build(shape);
    fill(*model, nn::Precision::kFp64);
    const at::Tensor source = some_ids(2, 17, 61, 1), ids = some_ids(2, 11, 61, 2);
    nn::Context context = context_of(source, ids);
    const double loss = train_once(*model, {source, ids}, context);
    const auto ours = gradients_of(*model);

    std::vector<nn::Param*> list;
    for (nn::Param& param : model->params) list.push_back(&param);
    nn::AutogradLayer paper(list, [&](const nn::Tensors&, const nn::Tensors& values) {
      nn::NamedWeights weights;
      for (std::size_t i = 0; i < list.size(); ++i) weights[list[i]->name] = values[i];
      return nn::Tensors{Paper(shape, weights).loss(source, ids, context.targets)};
    });
    nn::zero_grad(model->params);
    nn::Tape tape;
    const at::Tensor expected = paper.forward({}, context, &tape)[0];
    paper.backward({at::ones_like(expected)}, context, tape);
    EXPECT_NEAR(loss, expected.item<double>(), 1e-13);
    for (const nn::Param& param : model->params) {
      EXPECT_GT(param.gradient.norm().item<double>(), 0) << param.name;
      EXPECT_LE(largest(ours.at(param.name), param.gradient), 1e-12) << param.name;
    }
  }
}

TEST(Transformer, SharesOneMatrixBetweenBothEmbeddingsAndTheHead) {
  const auto model = build(tiny_shape(spec::Family::kTransformer));
  EXPECT_EQ(model->params.at("embedding.tokens.weight").uses, 3);
}

TEST(Transformer, StartsAsItsCodeDoes) {
  spec::ModelShape shape = tiny_shape(spec::Family::kTransformer);
  const auto model = build(shape);
  nn::initialise(model->params, nn::Precision::kFp32, 1);
  const nn::Param& in = model->params.at("layers.0.mlp.in.weight");
  const double bound = std::sqrt(6.0 / double(shape.hidden_size + shape.ffn_size));
  EXPECT_LE(in.master.abs().max().item<double>(), bound);
  EXPECT_GT(in.master.abs().max().item<double>(), 0.95 * bound);
  const nn::Param& embedding = model->params.at("embedding.tokens.weight");
  EXPECT_NEAR(embedding.master.std().item<double>(), 1 / std::sqrt(double(shape.hidden_size)), 0.02);
}

TEST(Transformer, TheDecoderSeesAllOfTheSourceAndNothingLaterOfItsOwn) {
  const auto model = build(tiny_shape(spec::Family::kTransformer));
  fill(*model, nn::Precision::kFp32);
  const at::Tensor source = some_ids(1, 9, 61, 1), ids = some_ids(1, 8, 61, 2);
  const auto logits = [&](const at::Tensor& from, const at::Tensor& to) {
    nn::Context context = context_of(from, to);
    context.targets = at::Tensor();
    return model->forward({from, to}, context, nullptr);
  };
  const at::Tensor before = logits(source, ids);
  at::Tensor other_source = source.clone(), other = ids.clone();
  other_source.select(1, 8).add_(1).remainder_(61);
  other.select(1, 5).add_(1).remainder_(61);
  const at::Tensor after_source = logits(other_source, ids), after = logits(source, other);
  for (std::int64_t column = 0; column < 8; ++column) {
    EXPECT_FALSE(at::equal(before.select(1, column), after_source.select(1, column))) << column;
    EXPECT_EQ(at::equal(before.select(1, column), after.select(1, column)), column < 5) << column;
  }
}

TEST(Transformer, PackedPairsAreAsIfEachWereAlone) {
  const auto model = build(tiny_shape(spec::Family::kTransformer));
  fill(*model, nn::Precision::kFp64);
  const std::vector<at::Tensor> sources = {some_ids(1, 5, 61, 1), some_ids(1, 9, 61, 2)};
  const std::vector<at::Tensor> texts = {some_ids(1, 8, 61, 3), some_ids(1, 4, 61, 4)};
  const auto pack = [](const std::vector<at::Tensor>& parts) {
    nn::Sequence out;
    std::vector<at::Tensor> positions, documents;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      positions.push_back(at::arange(parts[i].size(1)).unsqueeze(0));
      documents.push_back(at::full({1, parts[i].size(1)}, std::int64_t(i), at::kInt));
    }
    out.positions = at::cat(positions, 1);
    out.documents = at::cat(documents, 1);
    return out;
  };
  nn::Context row = context_of(at::cat(sources, 1), at::cat(texts, 1));
  row.targets = at::Tensor();
  row.source = pack(sources);
  row.sequence = pack(texts);
  const at::Tensor together = model->forward({at::cat(sources, 1), at::cat(texts, 1)}, row, nullptr);
  std::int64_t column = 0;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    nn::Context alone = context_of(sources[i], texts[i]);
    alone.targets = at::Tensor();
    const at::Tensor logits = model->forward({sources[i], texts[i]}, alone, nullptr);
    EXPECT_LE(largest(logits, together.narrow(1, column, texts[i].size(1))), 1e-12) << i;
    column += texts[i].size(1);
  }
}

}  // namespace
}  // namespace trireme::models
