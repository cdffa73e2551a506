#include "trireme/plan/graph/graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "trireme/base/error.h"

namespace trireme::plan::graph {
namespace {

constexpr Named<Role> kRoles[] = {{"input", Role::kInput},
                                  {"parameter", Role::kParameter},
                                  {"activation", Role::kActivation},
                                  {"received", Role::kReceived}};
constexpr Named<DType> kDTypes[] = {{"fp32", DType::kFp32},
                                    {"fp16", DType::kFp16},
                                    {"bf16", DType::kBf16},
                                    {"int32", DType::kInt32},
                                    {"fp64", DType::kFp64}};
constexpr Named<OpKind> kOpKinds[] = {
    {"einsum", OpKind::kEinsum}, {"convolution", OpKind::kConvolution}, {"pooling", OpKind::kPooling},
    {"norm", OpKind::kNorm},     {"elementwise", OpKind::kElementwise}, {"gather", OpKind::kGather},
    {"lstm", OpKind::kLstmCell}, {"attention", OpKind::kAttention},     {"rotary", OpKind::kRotary},
    {"router", OpKind::kRouter}, {"loss", OpKind::kSoftmaxLoss},        {"concat", OpKind::kConcat},
    {"split", OpKind::kSplit},   {"reshape", OpKind::kReshape},
};
constexpr Named<Part> kParts[] = {{"forward", Part::kForward},
                                  {"backward", Part::kBackward},
                                  {"backward-data", Part::kBackwardData},
                                  {"backward-weight", Part::kBackwardWeight}};
constexpr Named<DimKind> kDimKinds[] = {{"output", DimKind::kOutput},
                                        {"reduced", DimKind::kReduced},
                                        {"windowed", DimKind::kWindowed},
                                        {"statistic", DimKind::kStatistic},
                                        {"whole", DimKind::kWhole}};

constexpr std::string_view kEinsumFunctions[] = {"mean"};
constexpr std::string_view kPoolingFunctions[] = {"max", "average"};
constexpr std::string_view kNormFunctions[] = {"batch", "layer", "rms", "local-batch"};
constexpr std::string_view kElementwiseFunctions[] = {"add",  "multiply", "relu",    "gelu",
                                                      "silu", "tanh",     "sigmoid", "dropout"};
constexpr std::string_view kAttentionFunctions[] = {"causal", "full"};
constexpr std::string_view kRouterFunctions[] = {"top1", "top2"};

/// A list of names for looking up many of them: most graphs have hundreds.
template <typename Items>
int position_of(const Items& items, std::string_view name) {
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (items[i].name == name) return static_cast<int>(i);
  }
  return -1;
}

}  // namespace

std::span<const Named<Role>> enum_names(std::type_identity<Role>) { return kRoles; }
std::span<const Named<DType>> enum_names(std::type_identity<DType>) { return kDTypes; }
std::span<const Named<OpKind>> enum_names(std::type_identity<OpKind>) { return kOpKinds; }
std::span<const Named<Part>> enum_names(std::type_identity<Part>) { return kParts; }
std::span<const Named<DimKind>> enum_names(std::type_identity<DimKind>) { return kDimKinds; }

std::span<const std::string_view> functions_of(OpKind kind) {
  switch (kind) {
    case OpKind::kEinsum:
      return kEinsumFunctions;
    case OpKind::kPooling:
      return kPoolingFunctions;
    case OpKind::kNorm:
      return kNormFunctions;
    case OpKind::kElementwise:
      return kElementwiseFunctions;
    case OpKind::kAttention:
      return kAttentionFunctions;
    case OpKind::kRouter:
      return kRouterFunctions;
    default:
      return {};
  }
}

double bytes_of(DType dtype) {
  if (dtype == DType::kFp64) return 8;
  return dtype == DType::kFp16 || dtype == DType::kBf16 ? 2 : 4;
}

Graph with_dtype(Graph graph, DType dtype) {
  for (Tensor& tensor : graph.tensors) {
    if (tensor.dtype != DType::kInt32) tensor.dtype = dtype;
  }
  return graph;
}

bool is_batch_norm(const Op& op) {
  return op.kind == OpKind::kNorm && (op.function == "batch" || op.function == "local-batch");
}

Graph with_local_norms(Graph graph) {
  for (Op& op : graph.ops) {
    if (is_batch_norm(op)) op.function = "local-batch";
  }
  return graph;
}

std::pair<Index, Index> Window::input_rows(Index begin, Index end, Index size) const {
  if (begin >= end) return {0, 0};
  const Index first = begin * stride - padding, last = (end - 1) * stride - padding + (kernel - 1) * dilation;
  return {std::clamp<Index>(first, 0, size), std::clamp<Index>(last + 1, 0, size)};
}

std::pair<Index, Index> Window::output_rows(Index begin, Index end, Index size) const {
  if (begin >= end) return {0, 0};
  // Row o reads o*stride - padding + j*dilation, j < kernel: the first o whose last row is begin, and so on.
  const Index reach = (kernel - 1) * dilation, low = begin + padding - reach, high = end - 1 + padding;
  const Index first = low <= 0 ? 0 : (low + stride - 1) / stride, last = high / stride;
  return {std::clamp<Index>(first, 0, size), std::clamp<Index>(last + 1, 0, size)};
}

Index Graph::elements(const Tensor& tensor) const {
  Index product = 1;
  for (const int dim : tensor.dims) product *= size(dim);
  return product;
}

double Graph::bytes(const Tensor& tensor) const {
  return bytes_of(tensor.dtype) * static_cast<double>(elements(tensor));
}

int Graph::find_dim(std::string_view dim) const { return position_of(dims, dim); }
int Graph::find_tensor(std::string_view tensor) const { return position_of(tensors, tensor); }
int Graph::find_op(std::string_view op) const { return position_of(ops, op); }

Uses uses_of(const Graph& graph) {
  Uses uses{.producer = std::vector<int>(graph.tensors.size(), -1), .consumers = {}};
  uses.consumers.resize(graph.tensors.size());
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    for (const int tensor : graph.ops[i].inputs) uses.consumers[static_cast<std::size_t>(tensor)].push_back(int(i));
    for (const int tensor : graph.ops[i].outputs) uses.producer[static_cast<std::size_t>(tensor)] = int(i);
  }
  return uses;
}

}  // namespace trireme::plan::graph
