// The large LSTM language model of Zaremba (2014, 1409.2329): two layers of 1500 units on the Penn Treebank's 10,000
// words, unrolled over 35 steps.
#include <fmt/format.h>

#include "trireme/plan/graph/models.h"

namespace trireme::plan::graph {

Graph lstm_language_model(const LstmShape& shape) {
  Builder build("lstm");
  const int n = build.dim("n", shape.batch), vocab = build.dim("vocab", shape.vocab);
  const int embed = build.dim("embed", shape.hidden), steps = build.dim("steps", shape.steps);
  const int one = build.dim("step", 1);
  const int table = build.parameter("embedding.weight", {vocab, embed});
  std::vector<LstmWeights> weights;
  std::vector<LstmState> states;
  int in = embed;
  for (Index layer = 0; layer < shape.layers; ++layer) {
    const std::string name = fmt::format("lstm{}", layer);
    const int hidden = build.dim(name + ".hidden", shape.hidden);
    weights.push_back(build.lstm_weights(name, in, hidden));
    states.push_back({build.input(name + ".h0", {n, hidden}), build.input(name + ".c0", {n, hidden})});
    in = hidden;
  }
  // Layer by layer, so that the inputs of a layer's time steps are there together: one GEMM can serve all of them.
  std::vector<int> xs, outputs;
  for (Index step = 0; step < shape.steps; ++step)
    xs.push_back(
        build.gather(fmt::format("embedding.{}", step), table, build.indices(fmt::format("token.{}", step), {n})));
  for (std::size_t layer = 0; layer < weights.size(); ++layer) {
    for (std::size_t step = 0; step < xs.size(); ++step) {
      states[layer] = build.lstm(fmt::format("lstm{}.{}", layer, step), xs[step], states[layer], weights[layer]);
      xs[step] = states[layer].h;
    }
  }
  for (std::size_t step = 0; step < xs.size(); ++step)
    outputs.push_back(build.reshape(fmt::format("step.{}", step), xs[step], {{{n}, {n, one}}}));
  int x = build.concat("outputs", outputs, steps, one);
  x = build.linear("softmax", x, vocab);
  build.loss("loss", x, build.indices("labels", {n, steps}), vocab);
  return build.finish();
}

}  // namespace trireme::plan::graph
