// The IR: what splitting an operator means, what is refused, text and back, counts and liveness.
#include "trireme/plan/graph/graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/plan/graph/backward.h"
#include "trireme/plan/graph/build.h"
#include "trireme/plan/graph/count.h"
#include "trireme/plan/graph/models.h"
#include "trireme/plan/graph/text.h"

namespace trireme::plan::graph {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string kinds(const Graph& graph, const Op& op) {
  std::string text;
  for (const IterationDim& dim : iteration_space(graph, op).dims)
    text += fmt::format("{}{}:{}", text.empty() ? "" : " ", graph.dims[std::size_t(dim.dim)].name, name_of(dim.kind));
  return text;
}

Graph small_net() {
  Builder build("net");
  const int n = build.dim("n", 8), classes = build.dim("classes", 10);
  int x = build.input("x", {n, build.dim("c0", 3), build.dim("h16", 16), build.dim("w16", 16)});
  x = build.convolution("conv", x, {.channels = 4, .kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}});
  x = build.batch_norm("bn", x);
  x = build.elementwise("relu", "relu", {x});
  x = build.global_average("pool", x);
  x = build.linear("fc", x, classes);
  build.loss("loss", x, build.indices("labels", {n}), classes);
  return build.finish();
}

TEST(IterationSpace, OfAMatrixProductIsMNK) {
  Builder build("mm");
  const int m = build.dim("m", 4), n = build.dim("n", 6), k = build.dim("k", 8);
  build.einsum("mm", {build.input("a", {m, k}), build.input("b", {k, n})}, {m, n});
  const Graph graph = build.finish();
  EXPECT_EQ(kinds(graph, graph.ops[0]), "m:output n:output k:reduced");
}

TEST(IterationSpace, OfAConvolutionHasHalosAndReducesInputChannels) {
  const Graph graph = small_net();
  EXPECT_EQ(kinds(graph, graph.ops[0]),
            "n:output conv.c:output h8:windowed w8:windowed c0:reduced kh3:whole kw3:whole");
  EXPECT_EQ(kinds(graph, graph.ops[1]), "n:statistic conv.c:output h8:statistic w8:statistic");
}

TEST(IterationSpace, OfGradientsNamesTheForwardDimensions) {
  const Graph graph = with_backward(small_net());
  const Op& weight = graph.op(graph.find_op("conv.backward_weight"));
  EXPECT_EQ(kinds(graph, weight), "conv.c:output c0:output kh3:whole kw3:whole n:reduced h8:windowed w8:windowed");
  const IterationSpace norm = iteration_space(graph, graph.op(graph.find_op("bn.backward")));
  EXPECT_THAT(norm.outputs[1], ElementsAre(1)) << "the gradient of the scale lacks n, h and w: a partial sum over them";
}

TEST(Window, RowsOfInputAndOutputAreEachOthersInverse) {
  for (const Index kernel : {1, 2, 3, 5, 11}) {
    for (const Index stride : {1, 2, 4}) {
      for (const Index padding : {0, 1, 2}) {
        for (const Index dilation : {1, 2}) {
          const Window window{.kernel = kernel, .stride = stride, .padding = padding, .dilation = dilation};
          const Index in = 23, reach = in + 2 * padding - (kernel - 1) * dilation - 1;
          if (reach < 0 || padding >= kernel) continue;
          const Index out = reach / stride + 1;
          for (Index row = 0; row < in; ++row) {
            // The first and the last of all integers that read it, then cut to the rows there are. With dilation rows
            // between them may read only its neighbours.
            Index first = 1000, last = -1000;
            for (Index o = -60; o < 60; ++o) {
              for (Index j = 0; j < kernel; ++j) {
                if (o * stride - padding + j * dilation == row) first = std::min(first, o), last = std::max(last, o);
              }
            }
            if (last < first) continue;  // nobody reads it
            const auto [begin, end] = window.output_rows(row, row + 1, out);
            EXPECT_EQ(begin, std::clamp<Index>(first, 0, out)) << "kernel " << kernel << " stride " << stride;
            EXPECT_EQ(end, std::clamp<Index>(last + 1, 0, out)) << "dilation " << dilation << " row " << row;
          }
          EXPECT_EQ(window.input_rows(0, out, in).first, 0);
        }
      }
    }
  }
}

TEST(GraphText, OfEveryModelAndItsBackwardReadsBackAsItself) {
  for (const Model& model : models()) {
    if (model.name == "gnmt" || model.name == "resnet152") continue;  // long, and nothing new in them
    const Graph forward = build_model(model.name, 4);
    EXPECT_EQ(parse_graph(to_text(forward), "text"), forward) << model.name;
    const Graph both = with_backward(forward);
    EXPECT_THAT(find_problems(both), IsEmpty()) << model.name;
    EXPECT_EQ(parse_graph(to_text(both), "text"), both) << model.name;
  }
}

TEST(GraphText, SaysWhichLineIsWrongAndWhatItWasMeantToBe) {
  const auto error_of = [](const std::string& text) -> std::string {
    try {
      parse_graph(text, "net.txt");
    } catch (const ConfigError& error) {
      return error.message();
    }
    return "";
  };
  const std::string head = "graph g\ndim n 4\ntensor x input fp32 n\n";
  EXPECT_THAT(error_of("dim n 4\n"), HasSubstr("net.txt, line 1"));
  EXPECT_THAT(error_of(head + "tensor y activation fp32 m\n"), HasSubstr("line 4: no dimension m stands above"));
  EXPECT_THAT(error_of(head + "op a elementwize x -> x\n"), HasSubstr("did you mean \"elementwise\""));
  EXPECT_THAT(error_of(head + "op a elementwise x -> x function=relu\n"), HasSubstr("which is there already"));
  EXPECT_THAT(error_of(head + "tensor y activation fp32 n\nop a elementwise x -> y function=relux\n"),
              HasSubstr("unknown function \"relux\""));
  EXPECT_THAT(error_of(head + "dim k 3\ndim h 5\n"
                              "tensor y activation fp32 n\nop a pooling x -> y window=n>h,kernel=3 function=max\n"),
              HasSubstr("makes 2 rows of 4, not 5"));
  EXPECT_EQ(error_of(head), "");
}

TEST(FindProblems, NamesWhatContradictsItself) {
  const Graph net = small_net();
  const auto broken = [&](auto change) {
    Graph graph = net;
    change(graph);
    const std::vector<std::string> problems = find_problems(graph);
    return problems.empty() ? std::string() : problems.front();
  };
  EXPECT_EQ(broken([](Graph&) {}), "");
  EXPECT_THAT(broken([](Graph& g) { g.dims[0].size = 0; }), HasSubstr("dimension n has size 0"));
  EXPECT_THAT(broken([](Graph& g) { std::swap(g.ops[0], g.ops[1]); }), HasSubstr("which nothing before it makes"));
  EXPECT_THAT(broken([](Graph& g) { g.ops[0].windows[0].stride = 1; }), HasSubstr("makes 16 rows of 16, not 8"));
  EXPECT_THAT(broken([](Graph& g) { g.ops[1].dims.clear(); }), HasSubstr("names no dimension"));
  EXPECT_THAT(broken([](Graph& g) { g.tensors[1].dims[1] = g.tensors[1].dims[0]; }), HasSubstr("twice"));
}

TEST(Count, OfASmallNetIsByHand) {
  const GraphCount counted = count(small_net());
  EXPECT_EQ(counted.parameters, 4 * 3 * 9 + 4 + 8 + 4 * 10 + 10);
  EXPECT_EQ(counted.matmul_flops, 2.0 * 8 * 4 * 8 * 8 * 3 * 9 + 2.0 * 8 * 4 * 10);
}

TEST(Liveness, HoldsATensorFromWhereItIsMadeToWhereItIsReadLast) {
  Builder build("chain");
  const int n = build.dim("n", 10);
  int x = build.input("x", {n});
  const int a = build.elementwise("a", "relu", {x});
  const int b = build.elementwise("b", "relu", {a});
  build.elementwise("c", "add", {b, a});
  const Graph graph = build.finish();
  const auto bytes = [&](int tensor) { return graph.bytes(graph.tensor(tensor)); };
  EXPECT_THAT(live_bytes(graph, bytes), ElementsAre(80, 80, 120)) << "x and a; a and b; a, b and c";
}

}  // namespace
}  // namespace trireme::plan::graph
