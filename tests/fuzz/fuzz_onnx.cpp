// ONNX files: any bytes are refused with the file's name, or a graph that reads back from its text as itself.
#include "tests/fuzz/fuzz.h"
#include "trireme/base/error.h"
#include "trireme/plan/graph/onnx.h"
#include "trireme/plan/graph/text.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trireme;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  plan::graph::Graph graph;
  try {
    graph = plan::graph::import_onnx(formats::read_onnx(bytes, "input"), "input", 4);
  } catch (const formats::FormatError& error) {
    fuzz::require(error.message().starts_with("input"), "an error names its file");
    return 0;
  } catch (const ConfigError& error) {
    fuzz::require(error.message().starts_with("input"), "an error names its file");
    return 0;
  }
  fuzz::require(plan::graph::parse_graph(plan::graph::to_text(graph), "text") == graph, "a graph reads back as itself");
  return 0;
}
