// plan/graph/onnx/importer.h -- what the nodes of an ONNX model are turned into: values, dimensions and their names.
//
// Depends on: plan/graph/onnx.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/plan/graph/onnx.h"

namespace trireme::plan::graph {

inline constexpr int kUnitAxis = -1;  ///< an axis of one that reductions leave; the graph's tensor does not have it

/// A tensor of the model: which of the graph's it is, and which dimension each of its axes is.
struct OnnxOperand {
  int tensor = -1;
  std::vector<int> axes;
};

class OnnxImporter {
 public:
  OnnxImporter(const formats::OnnxModel& model, std::string source, Index batch)
      : model_(model), source_(std::move(source)), batch_(batch) {}
  Graph run();

 private:
  using Node = formats::OnnxNode;
  friend struct OnnxHandlers;
  friend struct OnnxWindowHandlers;

  [[noreturn]] void fail(const Node& node, const std::string& why, const std::string& hint) const;

  // Names and dimensions.
  std::string unique(std::string_view name, std::set<std::string>& taken) const;
  /// A dimension of that name and size, made where there is none.
  int named_dim(const std::string& name, Index size);
  int new_dim(const std::string& hint, Index size);
  int find(int dim) const;
  Index size(int dim) const { return graph_.size(dim); }
  /// Gives both one name, unless a tensor would have it twice; false then. Sizes must be equal.
  bool join(int a, int b);
  static std::vector<int> real(const std::vector<int>& axes);

  // Values.
  void add_inputs();
  void add_losses();
  const OnnxOperand& input(const Node& node, std::size_t index) const;
  bool has_input(const Node& node, std::size_t index) const;
  const formats::OnnxTensor* stored(const Node& node, std::size_t index) const;
  /// A stored tensor as a parameter with these dimensions; a second use must want the same.
  int parameter(const Node& node, std::size_t index, const std::vector<int>& dims);
  /// Integers that are known without running the model: shapes, axes, indices.
  const std::vector<std::int64_t>& integers(const Node& node, std::size_t index, const char* what) const;
  bool has_integers(const Node& node, std::size_t index) const;
  std::int64_t attribute(const Node& node, std::string_view name, std::int64_t otherwise, std::int64_t least,
                         std::int64_t most) const;
  std::vector<std::int64_t> attributes(const Node& node, std::string_view name, std::size_t count,
                                       std::int64_t otherwise, std::int64_t least, std::int64_t most) const;
  std::size_t axis_of(const Node& node, std::int64_t axis, std::size_t rank) const;

  /// Adds the operator with one output of these axes, and names that output.
  void emit(const Node& node, Op op, std::vector<int> axes);
  int add_activation(const std::string& name, const std::vector<int>& dims);
  /// From the operator that is added next on, input `at` must lie along these axes.
  void agree(int input_at, const std::vector<int>& axes);
  void resolve();
  /// A tensor with other names for its dimensions, of the same sizes.
  int renamed(int tensor, const std::vector<int>& dims, std::vector<Op>& ops);

  const formats::OnnxModel& model_;
  const std::string source_;
  const Index batch_;
  Graph graph_;
  std::vector<int> parents_;  // of dimensions that have become one
  std::set<std::string> tensor_names_, op_names_, dim_names_;
  std::map<std::string, OnnxOperand, std::less<>> values_;
  std::map<std::string, std::vector<std::int64_t>, std::less<>> integers_;
  std::map<std::string, const formats::OnnxTensor*, std::less<>> stored_;
  /// By the name that a node reads. Exporters store equal tensors once, behind Identity nodes: those are parameters of
  /// their own, as they were in the model.
  std::map<std::string, int, std::less<>> parameters_;
  struct Agreement {
    int op = -1, input = -1;
    std::vector<int> dims;
  };
  std::vector<Agreement> agreements_;
};

/// Convolutions and pooling; other nodes stand in nodes.cpp.
struct OnnxWindowHandlers {
  struct Windows {
    std::vector<Window> windows;
    std::vector<int> rows;  ///< dimensions of the result
  };

  static void convolution(OnnxImporter& in, const formats::OnnxNode& node);
  static void transposed_convolution(OnnxImporter& in, const formats::OnnxNode& node);
  static void max_pool(OnnxImporter& in, const formats::OnnxNode& node);
  static void average_pool(OnnxImporter& in, const formats::OnnxNode& node);
  /// The first input, which must be one.
  static const OnnxOperand& image(OnnxImporter& in, const formats::OnnxNode& node);

 private:
  static Windows windows_of(OnnxImporter& in, const formats::OnnxNode& node, const OnnxOperand& x,
                            const std::vector<std::int64_t>& kernel, bool transposed);
  static void convolve(OnnxImporter& in, const formats::OnnxNode& node, bool transposed);
  static void pool(OnnxImporter& in, const formats::OnnxNode& node, bool is_max);
};

/// One function a kind of node.
using OnnxHandler = void (*)(OnnxImporter& importer, const formats::OnnxNode& node);
OnnxHandler onnx_handler(std::string_view type);

}  // namespace trireme::plan::graph
