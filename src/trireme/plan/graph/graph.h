// plan/graph/graph.h -- a model as operators over tensors with named dimensions.
//
//   Graph graph;                                  // built with build.h, or read from text (text.h)
//   IterationSpace space = iteration_space(graph, graph.ops[3]);
//
// A dimension has one name and one size in the whole graph, so tensors are joined by names as in einsum, a layout of
// Mesh-TensorFlow is a map from names to mesh axes, and a gradient operator is split as its forward operator is. What
// an operator does to dimensions is one value, its iteration space: every split, every partial sum and every halo
// follows from that, for forward and backward alike. Gradient operators are derived (backward.h), never written.
// Depends on: base.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "trireme/base/text.h"

namespace trireme::plan::graph {

using Index = std::int64_t;

struct Dim {
  std::string name;
  Index size = 1;
  bool operator==(const Dim&) const = default;
};

enum class Role : std::uint8_t {
  kInput,       ///< data: any rank can have any part of it
  kParameter,   ///< trained
  kActivation,  ///< made by an operator
  kReceived,    ///< made by an operator of another pipeline stage
};
enum class DType : std::uint8_t { kFp32, kFp16, kBf16, kInt32, kFp64 };

struct Tensor {
  std::string name;
  std::vector<int> dims = {};  ///< into Graph::dims, outermost first
  Role role = Role::kActivation;
  DType dtype = DType::kFp32;
  int grad_of = -1;  ///< the tensor that this is a gradient of, or one consumer's part of it
  bool operator==(const Tensor&) const = default;
};

enum class OpKind : std::uint8_t {
  kEinsum,       ///< any sum of products over names; GEMM, reduction, transpose
  kConvolution,  ///< [n, c_in, ...] and [c_out, c_in, kernel...]; with a bias where there is a third input
  kPooling,
  kNorm,         ///< batch or layer norm: input, scale and shift; RMS norm: input and scale
  kElementwise,  ///< inputs have the output's dimensions or fewer
  kGather,       ///< rows of a table: an embedding
  kLstmCell,     ///< x, h, c, w_x, w_h, bias -> h, c
  kAttention,    ///< q, k, v of [batch, seq, heads, head_dim]; q may be [batch, seq, heads, group, head_dim]: grouped
  kRotary,       ///< pairs of the last dimension rotated by position x frequency (RoPE): x and x half a size later
  kRouter,       ///< top-k gating of experts: logits [group, token, expert] -> [group, token, expert, slot]
  kSoftmaxLoss,  ///< logits and labels -> a scalar
  kConcat,
  kSplit,
  kReshape,
};

enum class Part : std::uint8_t {
  kForward,
  kBackward,        ///< all gradients of the forward operator
  kBackwardData,    ///< of a convolution's input; as a forward operator: a transposed convolution
  kBackwardWeight,  ///< of a convolution's weight
};

/// One dimension that a kernel slides along. Dilation is not counted in `kernel`.
struct Window {
  int in = -1, out = -1;  ///< dimensions; the same one where the size stays
  int kernel_dim = -1;    ///< of the weight; -1 for pooling
  Index kernel = 1, stride = 1, padding = 0, dilation = 1;
  bool operator==(const Window&) const = default;

  /// Rows of the input that rows [begin, end) of the output are made of, cut to [0, size).
  std::pair<Index, Index> input_rows(Index begin, Index end, Index size) const;
  /// Rows of the output that rows [begin, end) of the input go into, cut to [0, size).
  std::pair<Index, Index> output_rows(Index begin, Index end, Index size) const;
};

/// Dimensions of a reshape's input that become dimensions of its output, row by row.
struct Regroup {
  std::vector<int> from, to;
  bool operator==(const Regroup&) const = default;
};

struct Op {
  std::string name;
  OpKind kind = OpKind::kEinsum;
  Part part = Part::kForward;
  std::vector<int> inputs = {}, outputs = {};  ///< tensors
  std::string function = {};                   ///< "relu", "max", "batch", "causal": what the kind leaves open
  bool bias = false;                           ///< of einsum and convolution: the last input is added
  /// Norm: averaged over; loss: classes; concat, split: that of the whole; rotary: positions, and what is in pairs.
  std::vector<int> dims = {};
  std::vector<Window> windows = {};    ///< convolution, pooling
  std::vector<Regroup> regroups = {};  ///< reshape; dimensions in none stay
  double base = 0;                     ///< rotary: pair i of d / 2 turns by base^(-2 i / d) a position
  Index reach = 0;                     ///< causal attention: keys a query sees, its own included; 0: all before
  int forward = -1;                    ///< of a derived operator: the one whose gradient this is
  bool operator==(const Op&) const = default;
};

struct Graph {
  std::string name;
  std::vector<Dim> dims = {};
  std::vector<Tensor> tensors = {};
  std::vector<Op> ops = {};  ///< in an order in which they can run
  bool operator==(const Graph&) const = default;

  Index size(int dim) const { return dims[static_cast<std::size_t>(dim)].size; }
  Index elements(const Tensor& tensor) const;
  double bytes(const Tensor& tensor) const;
  const Tensor& tensor(int index) const { return tensors[static_cast<std::size_t>(index)]; }
  const Op& op(int index) const { return ops[static_cast<std::size_t>(index)]; }
  /// -1 where there is none of that name.
  int find_dim(std::string_view dim) const;
  int find_tensor(std::string_view tensor) const;
  int find_op(std::string_view op) const;
};

/// What a split along a dimension of an operator means. Outputs without the dimension are then partial sums.
enum class DimKind : std::uint8_t {
  kOutput,     ///< parts of the output need parts of the inputs
  kReduced,    ///< in no output: parts are summed
  kWindowed,   ///< as kOutput or kReduced, and neighbours exchange the rows a kernel reaches over the border: halos
  kStatistic,  ///< as kOutput, and statistics are all-reduced: norms, the loss over a split vocabulary
  kWhole,      ///< cannot be split
};

struct IterationDim {
  int dim = -1;    ///< what names it; of a window its output's dimension, forward and backward
  Index size = 1;  ///< in how many parts it can be split
  DimKind kind = DimKind::kOutput;
  int window = -1;  ///< into Op::windows
  bool operator==(const IterationDim&) const = default;
};

/// All that splitting an operator needs: this is what Tofu derives from its description language.
struct IterationSpace {
  std::vector<IterationDim> dims;
  std::vector<std::vector<int>> inputs, outputs;  ///< [operand][tensor dimension] -> into dims
  /// The place of a graph dimension; -1 where it is not one that can be split.
  int find(int dim) const;
};

IterationSpace iteration_space(const Graph& graph, const Op& op);

/// Who makes and who reads each tensor.
struct Uses {
  std::vector<int> producer;                ///< [tensor]; -1: a parameter or an input
  std::vector<std::vector<int>> consumers;  ///< [tensor] operators in order; twice where it is read twice
};
Uses uses_of(const Graph& graph);

/// Everything that is wrong with a graph, a sentence each; empty when it can run.
std::vector<std::string> find_problems(const Graph& graph);

double bytes_of(DType dtype);
/// All tensors but indices in this type.
Graph with_dtype(Graph graph, DType dtype);
/// With exact statistics of the whole batch ("batch"), or with those of a rank's own samples ("local-batch").
bool is_batch_norm(const Op& op);
/// Every batch norm with the statistics of a rank's own samples, as Goyal et al. train: nothing is all-reduced for
/// them, and what is computed depends on how samples are split.
Graph with_local_norms(Graph graph);
std::span<const Named<Role>> enum_names(std::type_identity<Role>);
std::span<const Named<DType>> enum_names(std::type_identity<DType>);
std::span<const Named<OpKind>> enum_names(std::type_identity<OpKind>);
std::span<const Named<Part>> enum_names(std::type_identity<Part>);
std::span<const Named<DimKind>> enum_names(std::type_identity<DimKind>);
template <typename Enum>
std::string_view name_of(Enum value) {
  return name_in(enum_names(std::type_identity<Enum>{}), value);
}
/// The functions an operator of that kind may have; empty: none.
std::span<const std::string_view> functions_of(OpKind kind);

}  // namespace trireme::plan::graph
