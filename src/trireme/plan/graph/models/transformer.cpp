// GPT (Radford 2019) and BERT (Devlin 2018, 1810.04805), with tied embeddings; heads are a dimension of their own.
#include <fmt/format.h>

#include "trireme/base/error.h"
#include "trireme/plan/graph/models.h"

namespace trireme::plan::graph {
namespace {

class TransformerGraph {
 public:
  TransformerGraph(const std::string& name, const TransformerShape& shape) : build_(name), shape_(shape) {
    if (shape.heads < 1 || (shape.head_dim == 0 && shape.hidden % shape.heads != 0))
      throw ConfigError(fmt::format("{} heads do not divide a hidden size of {}", shape.heads, shape.hidden),
                        "take a number of heads that does");
    n_ = build_.dim("n", shape.batch);
    seq_ = build_.dim("seq", shape.seq_len);
    model_ = build_.dim("model", shape.hidden);
    vocab_ = build_.dim("vocab", shape.vocab);
    heads_ = build_.dim("heads", shape.heads);
    units_ = build_.dim("head_dim", shape.head_dim > 0 ? shape.head_dim : shape.hidden / shape.heads);
    ffn_ = build_.dim("ffn", shape.ffn > 0 ? shape.ffn : 4 * shape.hidden);
  }

  Graph gpt() {
    int x = embedded({"token", "position"});
    for (Index layer = 0; layer < shape_.layers; ++layer) {
      const std::string name = fmt::format("layer{}", layer);
      x = add(name + ".add1", attended(name, build_.layer_norm(name + ".norm1", x), "causal"), x);
      x = add(name + ".add2", mlp(name, build_.layer_norm(name + ".norm2", x)), x);
    }
    x = build_.layer_norm("norm", x);
    x = build_.einsum("head", {x, table_}, {n_, seq_, vocab_});
    build_.loss("loss", x, build_.indices("labels", {n_, seq_}), vocab_);
    return build_.finish();
  }

  Graph bert() {
    int x = build_.layer_norm("embedding.norm", embedded({"token", "position", "segment"}));
    for (Index layer = 0; layer < shape_.layers; ++layer) {
      const std::string name = fmt::format("layer{}", layer);
      x = build_.layer_norm(name + ".norm1", add(name + ".add1", attended(name, x, "full"), x));
      x = build_.layer_norm(name + ".norm2", add(name + ".add2", mlp(name, x), x));
    }
    masked_words(x);
    if (shape_.next_sentence) next_sentence(x);
    return build_.finish();
  }

 private:
  int add(const std::string& name, int a, int b) { return build_.elementwise(name, "add", {a, b}); }

  int embedded(const std::vector<std::string>& kinds) {
    int sum = -1;
    for (const std::string& kind : kinds) {
      const int rows = kind == "token"      ? vocab_
                       : kind == "position" ? build_.dim("positions", shape_.positions)
                                            : build_.dim("segments", 2);
      const int table = build_.parameter(kind + "_embedding.weight", {rows, model_});
      if (kind == "token") table_ = table;
      const int x = build_.gather(kind + "_embedding", table, build_.indices(kind + "s", {n_, seq_}));
      sum = sum < 0 ? x : add("embedding.add_" + kind, sum, x);
    }
    return sum;
  }

  int attended(const std::string& name, int x, const std::string& mask) {
    const int three = build_.dim("qkv", 3), one = build_.dim("one", 1);
    const int fused = build_.dense(name + ".qkv", x, {model_}, {three, heads_, units_});
    std::vector<int> qkv;
    for (const int part : build_.split(name + ".split", fused, three, {one, one, one}))
      qkv.push_back(build_.reshape(fmt::format("{}.part{}", name, qkv.size()), part, {{{seq_, one}, {seq_}}}));
    const int y = build_.attention(name + ".attention", qkv[0], qkv[1], qkv[2], mask);
    return build_.dense(name + ".projection", y, {heads_, units_}, {model_});
  }

  int mlp(const std::string& name, int x) {
    const int y = build_.elementwise(name + ".gelu", "gelu", {build_.linear(name + ".up", x, ffn_)});
    return build_.linear(name + ".down", y, model_);
  }

  void masked_words(int x) {
    const int transform = build_.dim("transform", shape_.hidden);
    x = build_.elementwise("mlm.gelu", "gelu", {build_.linear("mlm.transform", x, transform)});
    x = build_.layer_norm("mlm.norm", x);
    x = build_.reshape("mlm.rename", x, {{{transform}, {model_}}});
    x = build_.einsum("mlm.decoder", {x, table_}, {n_, seq_, vocab_});
    x = add("mlm.bias", x, build_.parameter("mlm.decoder.bias", {vocab_}));
    build_.loss("mlm.loss", x, build_.indices("labels", {n_, seq_}), vocab_);
  }

  /// Of the first position, which a one-hot vector picks.
  void next_sentence(int x) {
    const int pooled = build_.dim("pooled", shape_.hidden), classes = build_.dim("nsp.classes", 2);
    x = build_.einsum("first", {x, build_.input("first.position", {seq_})}, {n_, model_});
    x = build_.elementwise("pooler.tanh", "tanh", {build_.linear("pooler", x, pooled)});
    x = build_.linear("nsp", x, classes);
    build_.loss("nsp.loss", x, build_.indices("next", {n_}), classes);
  }

  Builder build_;
  const TransformerShape shape_;
  int n_, seq_, model_, vocab_, heads_, units_, ffn_, table_ = -1;
};

}  // namespace

Graph gpt(const std::string& name, const TransformerShape& shape) { return TransformerGraph(name, shape).gpt(); }
Graph bert(const std::string& name, const TransformerShape& shape) { return TransformerGraph(name, shape).bert(); }

}  // namespace trireme::plan::graph
