// Decoders of the trainer's families that differ from GPT-2: Llama (Touvron 2023), Mistral, Qwen, GPT-3's windows.
// Where queries share keys and values (Ainslie 2023), the heads of keys and the queries of each are two dimensions, so
// that a split of heads is one of queries, keys and values alike.
#include <fmt/format.h>

#include "trireme/plan/graph/models.h"

namespace trireme::plan::graph {
namespace {

class DecoderGraph {
 public:
  DecoderGraph(const std::string& name, const spec::ModelShape& shape, Index batch) : build_(name), shape_(shape) {
    n_ = build_.dim("n", batch);
    seq_ = build_.dim("seq", shape.max_seq_len);
    model_ = build_.dim("model", shape.hidden_size);
    vocab_ = build_.dim("vocab", shape.vocab_size);
    heads_ = build_.dim("heads", shape.num_kv_heads);
    units_ = build_.dim("head_dim", shape.head_dim);
    ffn_ = build_.dim("ffn", shape.ffn_size);
    query_heads_ = {heads_};
    if (shape.num_kv_heads < shape.num_heads)
      query_heads_.push_back(build_.dim("group", shape.num_heads / shape.num_kv_heads));
  }

  Graph run() {
    const int table = build_.parameter("token_embedding.weight", {vocab_, model_});
    int x = build_.gather("token_embedding", table, build_.indices("tokens", {n_, seq_}));
    if (shape_.position_kind == spec::PositionKind::kLearned) {
      const int positions =
          build_.parameter("position_embedding.weight", {build_.dim("positions", shape_.max_seq_len), model_});
      x = add("embedding.add_position", x,
              build_.gather("position_embedding", positions, build_.indices("positions", {n_, seq_})));
    }
    for (Index layer = 0; layer < shape_.num_layers; ++layer) {
      const std::string name = fmt::format("layer{}", layer);
      x = add(name + ".add1", attended(name, layer, norm(name + ".norm1", x)), x);
      x = add(name + ".add2", mlp(name, norm(name + ".norm2", x)), x);
    }
    x = norm("norm", x);
    x = shape_.tied ? build_.einsum("head", {x, table}, {n_, seq_, vocab_}) : build_.linear("head", x, vocab_, false);
    build_.loss("loss", x, build_.indices("labels", {n_, seq_}), vocab_);
    return build_.finish();
  }

 private:
  int add(const std::string& name, int a, int b) { return build_.elementwise(name, "add", {a, b}); }
  int norm(const std::string& name, int x) {
    return shape_.norm == spec::NormKind::kRms ? build_.rms_norm(name, x) : build_.layer_norm(name, x);
  }

  /// Queries or keys: normed and turned as the family does.
  int placed(const std::string& name, int x) {
    if (shape_.query_key_norm) x = build_.rms_norm(name + "_norm", x);
    if (shape_.position_kind == spec::PositionKind::kRotary)
      x = build_.rotary(name + "_rotary", x, seq_, shape_.rotary.base);
    return x;
  }

  int attended(const std::string& name, Index layer, int x) {
    std::vector<int> of_queries = query_heads_;
    of_queries.push_back(units_);
    const int q = placed(name + ".q", build_.dense(name + ".q", x, {model_}, of_queries, shape_.attention_bias));
    const int k = placed(name + ".k", build_.dense(name + ".k", x, {model_}, {heads_, units_}, shape_.attention_bias));
    const int v = build_.dense(name + ".v", x, {model_}, {heads_, units_}, shape_.attention_bias);
    const Index window = spec::window_of(shape_, layer);
    const int y = build_.attention(name + ".attention", q, k, v, "causal", window < shape_.max_seq_len ? window : 0);
    return build_.dense(name + ".projection", y, of_queries, {model_}, shape_.output_bias);
  }

  int mlp(const std::string& name, int x) {
    const char* function = shape_.activation == spec::Activation::kSilu   ? "silu"
                           : shape_.activation == spec::Activation::kRelu ? "relu"
                                                                          : "gelu";
    const int up = build_.linear(name + ".up", x, ffn_, shape_.mlp_bias);
    const int gate = shape_.gated ? build_.linear(name + ".gate", x, ffn_, shape_.mlp_bias) : up;
    int y = build_.elementwise(fmt::format("{}.{}", name, function), function, {gate});
    if (shape_.gated) y = build_.elementwise(name + ".gated", "multiply", {y, up});
    return build_.linear(name + ".down", y, model_, shape_.mlp_bias);
  }

  Builder build_;
  const spec::ModelShape shape_;
  int n_, seq_, model_, vocab_, heads_, units_, ffn_;
  std::vector<int> query_heads_;
};

}  // namespace

Graph decoder(const std::string& name, const spec::ModelShape& shape, Index batch) {
  return DecoderGraph(name, shape, batch).run();
}

}  // namespace trireme::plan::graph
