// ONNX models become the graphs that they are; what cannot be imported is refused by its node.
#include "trireme/plan/graph/onnx.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/base/mapped_file.h"
#include "trireme/formats/protobuf_reader.h"
#include "trireme/plan/graph/backward.h"
#include "trireme/plan/graph/count.h"
#include "trireme/plan/graph/models.h"
#include "trireme/plan/graph/text.h"

namespace trireme::plan::graph {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string onnx_path(const std::string& name) { return TRIREME_FIXTURES "/onnx/" + name + ".onnx"; }

std::string refusal_of(const std::string& name, Index batch = 0) {
  try {
    open_graph(onnx_path(name), batch);
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

TEST(Onnx, PublishedModelsHaveTheParametersAndFlopsOfTheBuiltInOnes) {
  for (const std::string& name : {std::string("resnet50"), std::string("vgg16")}) {
    const Graph imported = open_graph(onnx_path(name), 8), built_in = build_model(name, 8);
    const GraphCount ours = count(with_backward(built_in)), theirs = count(with_backward(imported));
    EXPECT_EQ(theirs.parameters, ours.parameters) << name;
    EXPECT_DOUBLE_EQ(theirs.forward_flops, ours.forward_flops) << name;
    EXPECT_DOUBLE_EQ(theirs.backward_flops, ours.backward_flops) << name;
    EXPECT_EQ(imported.ops.size(), built_in.ops.size()) << name;
    EXPECT_EQ(parse_graph(to_text(imported), "text"), imported) << name;
  }
  // Branches that are added have one name for their channels, as in the built-in graph: nothing had to be renamed.
  EXPECT_THAT(to_text(open_graph(onnx_path("resnet50"), 8)), ::testing::Not(HasSubstr("renamed")));
}

TEST(Onnx, GivesAxesThatMustBeAlikeOneNameUnlessATensorWouldHaveItTwice) {
  const Graph graph = open_graph(onnx_path("small"));
  EXPECT_THAT(find_problems(graph), IsEmpty());
  const Op& residual = graph.op(graph.find_op("residual"));
  // conv "same" reads and makes eight channels, and its output is added to its input.
  const Op& same = graph.op(graph.find_op("same"));
  const std::vector<int>& weight = graph.tensor(same.inputs[1]).dims;
  EXPECT_NE(weight[0], weight[1]);
  EXPECT_EQ(graph.tensor(residual.inputs[0]).dims, graph.tensor(residual.inputs[1]).dims);
  EXPECT_GE(graph.find_op("bn_0.renamed"), 0);
  EXPECT_EQ(count(graph).parameters, 3 * 8 * 9 + 8 + 8 * 8 * 9 + 16 + 8 * 4 * 4 + 4 + 6 * 10 + 10);
  EXPECT_EQ(graph.ops.back().kind, OpKind::kSoftmaxLoss);  // in place of the softmax
}

TEST(Onnx, ReadsTokensThroughAnEmbedding) {
  const Graph graph = open_graph(onnx_path("tokens"));
  EXPECT_EQ(count(graph).parameters, 32 * 8 + 6 * 8 + 16 + 8 * 16 + 16 + 16 * 8 + 8 * 32);
  const Tensor& labels = graph.tensor(graph.find_tensor("labels"));
  EXPECT_EQ(labels.dims, graph.tensor(graph.find_tensor("input")).dims);
  EXPECT_EQ(labels.dtype, DType::kInt32);
}

TEST(Onnx, EqualWeightsThatAreStoredOnceAreTwoParameters) {
  EXPECT_EQ(count(open_graph(onnx_path("identical"))).parameters, 2 * (4 * 4 + 4));
}

TEST(Onnx, RefusesByNodeWhatGraphsDoNotHave) {
  EXPECT_THAT(refusal_of("grouped"), HasSubstr("node \"depthwise\" (\"Conv\"): its group is 2"));
  EXPECT_THAT(refusal_of("scaled"), HasSubstr("node \"lrn\" (\"LRN\"): graphs have no operator for LRN"));
  EXPECT_THAT(refusal_of("attention"), HasSubstr("node \"scores\" (\"MatMul\"): it multiplies two computed matrices"));
  EXPECT_THAT(refusal_of("resnet50"), HasSubstr("input \"input\": axis 0 (\"N\") has no size"));
  EXPECT_THAT(refusal_of("small", 8), HasSubstr("it has 4 samples, not 8"));
  EXPECT_THAT(refusal_of("absent"), HasSubstr("absent.onnx"));
}

TEST(Onnx, ADamagedFileIsRefusedWhereverItEnds) {
  const MappedFile file(onnx_path("small"));
  const std::string bytes(file.text());
  int refused = 0;
  for (std::size_t size = 0; size < bytes.size(); size += 7) {
    try {
      import_onnx(formats::read_onnx(std::string_view(bytes).substr(0, size), "cut"), "cut");
    } catch (const Error& error) {
      EXPECT_THAT(error.message(), HasSubstr("cut")) << size;
      ++refused;
    }
  }
  EXPECT_GT(refused, 100);
  std::string flipped = bytes;
  for (std::size_t i = 0; i < 400; ++i) {
    flipped[i] = static_cast<char>(flipped[i] ^ 0x55);
    try {
      import_onnx(formats::read_onnx(flipped, "flipped"), "flipped");
    } catch (const Error& error) {
      EXPECT_THAT(error.message(), HasSubstr("flipped"));
    }
    flipped[i] = bytes[i];
  }
}

TEST(ProtobufReader, NamesTheByteOfAMistake) {
  const auto why = [](std::string_view bytes) {
    try {
      formats::ProtobufReader in(bytes, "t");
      while (in.next()) in.integer();
    } catch (const formats::FormatError& error) {
      return error.message();
    }
    return std::string();
  };
  EXPECT_EQ(why("\x08\x96\x01"), "");
  EXPECT_THAT(why("\x08\x96"), HasSubstr("t: byte 2: the bytes end within a number"));
  EXPECT_THAT(why("\x0A\x05"
                  "ab"),
              HasSubstr("t: byte 2: field 1 has 5 bytes, but 2 are left"));
  EXPECT_THAT(why("\x0A\x01"
                  "a"),
              HasSubstr("field 1 is not an integer"));
  EXPECT_THAT(why("\x0B"), HasSubstr("field 1 has wire type 3"));
}

}  // namespace
}  // namespace trireme::plan::graph
