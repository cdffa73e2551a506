// Translation by LSTM layers with attention in the manner of GNMT (Wu 2016, 1609.08144): an encoder whose first layer
// goes both ways, a decoder whose layers all see the attention of the first, residual connections from the third layer
// on.
#include <fmt/format.h>

#include "trireme/plan/graph/models.h"

namespace trireme::plan::graph {
namespace {

class Translation {
 public:
  explicit Translation(const TranslationShape& shape) : build_("gnmt"), shape_(shape) {
    n_ = build_.dim("n", shape.batch);
    one_ = build_.dim("step", 1);
    vocab_ = build_.dim("vocab", shape.vocab);
    embed_ = build_.dim("embed", shape.hidden);
    source_ = build_.dim("source", shape.steps);
    target_ = build_.dim("target", shape.steps);
  }

  Graph run() {
    const int memory = encode();
    const int x = decode(memory);
    const int logits = build_.linear("softmax", x, vocab_);
    build_.loss("loss", logits, build_.indices("labels", {n_, target_}), vocab_);
    return build_.finish();
  }

 private:
  std::vector<int> embeddings(const std::string& side) {
    const int table = build_.parameter(side + ".embedding.weight", {vocab_, embed_});
    std::vector<int> steps;
    for (Index step = 0; step < shape_.steps; ++step)
      steps.push_back(build_.gather(fmt::format("{}.embedding.{}", side, step), table,
                                    build_.indices(fmt::format("{}.token.{}", side, step), {n_})));
    return steps;
  }

  /// One layer over all steps, forwards or backwards.
  std::vector<int> layer(const std::string& name, const std::vector<int>& inputs, int hidden, bool reversed = false) {
    const LstmWeights weights = build_.lstm_weights(name, build_.dims_of(inputs[0])[1], hidden);
    LstmState state{build_.input(name + ".h0", {n_, hidden}), build_.input(name + ".c0", {n_, hidden})};
    std::vector<int> outputs(inputs.size());
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const std::size_t step = reversed ? inputs.size() - 1 - i : i;
      state = build_.lstm(fmt::format("{}.{}", name, step), inputs[step], state, weights);
      outputs[step] = state.h;
    }
    return outputs;
  }

  std::vector<int> joined(const std::string& name, const std::vector<int>& a, const std::vector<int>& b) {
    const int both =
        build_.dim(name + ".both", build_.size(build_.dims_of(a[0])[1]) + build_.size(build_.dims_of(b[0])[1]));
    std::vector<int> result;
    for (std::size_t i = 0; i < a.size(); ++i)
      result.push_back(build_.concat(fmt::format("{}.{}", name, i), {a[i], b[i]}, both));
    return result;
  }

  /// Outputs renamed to the dimension of what they are added to.
  std::vector<int> residual(const std::string& name, const std::vector<int>& y, const std::vector<int>& x) {
    std::vector<int> result;
    for (std::size_t i = 0; i < y.size(); ++i) {
      const int same = build_.reshape(fmt::format("{}.rename.{}", name, i), y[i],
                                      {{{build_.dims_of(y[i])[1]}, {build_.dims_of(x[i])[1]}}});
      result.push_back(build_.elementwise(fmt::format("{}.add.{}", name, i), "add", {same, x[i]}));
    }
    return result;
  }

  int stacked(const std::string& name, const std::vector<int>& steps, int along) {
    std::vector<int> parts;
    for (std::size_t i = 0; i < steps.size(); ++i)
      parts.push_back(build_.reshape(fmt::format("{}.step.{}", name, i), steps[i], {{{n_}, {n_, one_}}}));
    return build_.concat(name, parts, along, one_);
  }

  int hidden(const std::string& name) { return build_.dim(name + ".hidden", shape_.hidden); }

  int encode() {
    std::vector<int> x = embeddings("encoder");
    x = joined("encoder.bi", layer("encoder.forward", x, hidden("encoder.forward")),
               layer("encoder.backward", x, hidden("encoder.backward"), true));
    for (Index i = 1; i < shape_.layers; ++i) {
      const std::string name = fmt::format("encoder.lstm{}", i);
      const std::vector<int> y = layer(name, x, hidden(name));
      x = i >= 2 ? residual(name, y, x) : y;
    }
    return stacked("memory", x, source_);
  }

  /// Dot products of all steps of the decoder's first layer with the encoder's outputs, one head.
  int decode(int memory) {
    std::vector<int> x = layer("decoder.lstm0", embeddings("decoder"), hidden("decoder.lstm0"));
    const int head = build_.dim("head", 1), units = build_.dim("attention.units", shape_.hidden);
    const auto project = [&](const std::string& name, int from) {
      return build_.dense(name, from, {build_.dims_of(from)[2]}, {head, units}, false);
    };
    const int queries = project("attention.query", stacked("queries", x, target_));
    const int keys = project("attention.key", memory), values = project("attention.value", memory);
    const int seen = build_.attention("attention", queries, keys, values, "full");
    std::vector<int> parts(static_cast<std::size_t>(shape_.steps), one_);
    std::vector<int> context;
    for (const int part : build_.split("context", seen, target_, parts))
      context.push_back(
          build_.reshape(fmt::format("context.flat.{}", context.size()), part, {{{n_, one_, head}, {n_}}}));
    for (Index i = 1; i < shape_.layers; ++i) {
      const std::string name = fmt::format("decoder.lstm{}", i);
      const std::vector<int> y = layer(name, joined(name + ".in", x, context), hidden(name));
      x = i >= 2 ? residual(name, y, x) : y;
    }
    return stacked("outputs", x, target_);
  }

  Builder build_;
  const TranslationShape shape_;
  int n_, one_, vocab_, embed_, source_, target_;
};

}  // namespace

Graph gnmt(const TranslationShape& shape) { return Translation(shape).run(); }

}  // namespace trireme::plan::graph
