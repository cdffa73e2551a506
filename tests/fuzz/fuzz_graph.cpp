// Graphs as text: any bytes are refused with a line, or a graph that reads back as itself and can be differentiated.
#include <string>

#include "tests/fuzz/fuzz.h"
#include "trireme/base/error.h"
#include "trireme/plan/graph/backward.h"
#include "trireme/plan/graph/text.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trireme::plan::graph;
  const std::string input(reinterpret_cast<const char*>(data), size);
  Graph graph;
  try {
    graph = parse_graph(input, "input");
  } catch (const trireme::ConfigError& error) {
    fuzz::require(error.message().starts_with("input"), "an error names where it is");
    return 0;
  }
  fuzz::require(parse_graph(to_text(graph), "text") == graph, "a graph reads back as itself");
  for (const Op& op : graph.ops) {
    const IterationSpace space = iteration_space(graph, op);
    fuzz::require(space.inputs.size() == op.inputs.size() && space.outputs.size() == op.outputs.size(),
                  "every operand has its places");
  }
  bool has_loss = false, has_gradients = false;
  for (const Op& op : graph.ops) {
    has_loss |= op.kind == OpKind::kSoftmaxLoss && op.part == Part::kForward;
    has_gradients |= op.forward >= 0 || op.part == Part::kBackward;
  }
  if (!has_loss || has_gradients) return 0;
  try {
    const Graph both = with_backward(graph);
    fuzz::require(both.ops.size() >= graph.ops.size(), "its backward is more");
  } catch (const trireme::ConfigError& error) {
    fuzz::require(error.message().find(" are named ") != std::string::npos,
                  "only names can stand in the way of gradients");
  }
  return 0;
}
