#include "trireme/plan/graph/onnx/importer.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "trireme/base/error.h"

namespace trireme::plan::graph {
namespace {

constexpr double kMostElementsOfATensor = 1e13;  // what a product of sizes may be without overflowing anything

DType dtype_of(formats::OnnxType type) {
  switch (type) {
    case formats::OnnxType::kInt32:
    case formats::OnnxType::kInt64:
      return DType::kInt32;
    case formats::OnnxType::kFloat16:
      return DType::kFp16;
    case formats::OnnxType::kBfloat16:
      return DType::kBf16;
    case formats::OnnxType::kDouble:
      return DType::kFp64;
    default:
      return DType::kFp32;
  }
}

}  // namespace

void OnnxImporter::fail(const Node& node, const std::string& why, const std::string& hint) const {
  throw ConfigError(
      fmt::format("{}: node {} ({}): {}", source_, formats::shown(node.name), formats::shown(node.type), why), hint);
}

/// Names stand in lines with spaces, commas, colons and the like between them.
std::string OnnxImporter::unique(std::string_view name, std::set<std::string>& taken) const {
  std::string clean;
  for (const char c : name.substr(0, 200)) {
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
                          c == '.' || c == '-' || c == '/';
    clean += is_plain ? c : '_';
  }
  while (!clean.empty() && (clean.front() == '/' || clean.front() == '-')) clean.erase(clean.begin());
  if (clean.empty()) clean = "unnamed";
  std::string result = clean;
  for (int number = 2; !taken.insert(result).second; ++number) result = fmt::format("{}.{}", clean, number);
  return result;
}

int OnnxImporter::named_dim(const std::string& name, Index size) {
  if (const int found = graph_.find_dim(name); found >= 0) return found;
  dim_names_.insert(name);
  graph_.dims.push_back({name, size});
  parents_.push_back(static_cast<int>(parents_.size()));
  return static_cast<int>(graph_.dims.size()) - 1;
}

int OnnxImporter::new_dim(const std::string& hint, Index size) {
  graph_.dims.push_back({unique(hint, dim_names_), size});
  parents_.push_back(static_cast<int>(parents_.size()));
  return static_cast<int>(graph_.dims.size()) - 1;
}

int OnnxImporter::find(int dim) const {
  while (parents_[static_cast<std::size_t>(dim)] != dim) dim = parents_[static_cast<std::size_t>(dim)];
  return dim;
}

bool OnnxImporter::join(int a, int b) {
  a = find(a);
  b = find(b);
  if (a == b) return true;
  for (const Tensor& tensor : graph_.tensors) {
    const auto has = [&](int dim) { return std::ranges::any_of(tensor.dims, [&](int d) { return find(d) == dim; }); };
    if (has(a) && has(b)) return false;
  }
  parents_[static_cast<std::size_t>(std::max(a, b))] = std::min(a, b);  // the earlier one names it
  return true;
}

std::vector<int> OnnxImporter::real(const std::vector<int>& axes) {
  std::vector<int> dims;
  std::ranges::copy_if(axes, std::back_inserter(dims), [](int axis) { return axis != kUnitAxis; });
  return dims;
}

void OnnxImporter::add_inputs() {
  std::set<std::string_view> read;
  for (const Node& node : model_.nodes) {
    for (const std::string& name : node.inputs) read.insert(name);
  }
  for (const formats::OnnxValue& value : model_.inputs) {
    if (stored_.contains(value.name) || !read.contains(value.name)) continue;
    const auto refuse = [&](const std::string& why, const std::string& hint) {
      throw ConfigError(fmt::format("{}: input {}: {}", source_, formats::shown(value.name), why), hint);
    };
    if (!value.has_shape || value.dims.empty()) refuse("its shape is not given", "export the model with shapes");
    std::vector<int> axes;
    double elements = 1;
    for (std::size_t i = 0; i < value.dims.size(); ++i) {
      Index size = value.dims[i].size;
      const std::string open = value.dims[i].name.empty() ? "" : " (" + formats::shown(value.dims[i].name) + ")";
      if (i == 0 && batch_ > 0) {
        if (size > 0 && size != batch_)
          refuse(fmt::format("it has {} samples, not {}", size, batch_),
                 "leave out --batch, or export with an open batch");
        size = batch_;
      }
      if (size <= 0)
        refuse(fmt::format("axis {}{} has no size", i, open),
               i == 0 ? "say how many samples with --batch" : "export the model with fixed sizes");
      elements *= static_cast<double>(size);
      const bool is_image = value.dims.size() == 4 && i >= 2;
      axes.push_back(i == 0     ? named_dim("n", size)
                     : is_image ? named_dim(fmt::format("{}{}", i == 2 ? 'h' : 'w', size), size)
                                : new_dim(fmt::format("{}.{}", value.name, i), size));
      if (this->size(axes.back()) != size) refuse("inputs differ in their samples", "export them with one batch");
    }
    if (elements > kMostElementsOfATensor)
      refuse("it is larger than any memory", "export the model with its real sizes");
    graph_.tensors.push_back(
        {.name = unique(value.name, tensor_names_), .dims = axes, .role = Role::kInput, .dtype = dtype_of(value.type)});
    values_[value.name] = {static_cast<int>(graph_.tensors.size()) - 1, axes};
  }
}

const OnnxOperand& OnnxImporter::input(const Node& node, std::size_t index) const {
  if (!has_input(node, index)) fail(node, fmt::format("input {} is missing", index), "export the model again");
  const auto found = values_.find(node.inputs[index]);
  if (found != values_.end()) return found->second;
  if (stored_.contains(node.inputs[index]) || integers_.contains(node.inputs[index]))
    fail(node, fmt::format("input {} is stored, and this node takes what is computed", index),
         "simplify the model (constant folding) before it is imported");
  fail(node, fmt::format("nothing makes its input {}", formats::shown(node.inputs[index])), "export the model again");
}

bool OnnxImporter::has_input(const Node& node, std::size_t index) const {
  return index < node.inputs.size() && !node.inputs[index].empty();
}

const formats::OnnxTensor* OnnxImporter::stored(const Node& node, std::size_t index) const {
  if (!has_input(node, index)) return nullptr;
  const auto found = stored_.find(node.inputs[index]);
  return found == stored_.end() ? nullptr : found->second;
}

int OnnxImporter::parameter(const Node& node, std::size_t index, const std::vector<int>& dims) {
  const formats::OnnxTensor* tensor = stored(node, index);
  if (!tensor)
    fail(node, fmt::format("input {} is computed, and this node takes stored weights there", index),
         "simplify the model (constant folding) before it is imported");
  std::vector<std::int64_t> sizes;
  for (const int dim : dims) sizes.push_back(size(dim));
  std::vector<std::int64_t> stored_sizes = tensor->dims;
  if (stored_sizes != sizes) std::erase(stored_sizes, 1);  // axes of one that are broadcast
  if (stored_sizes != sizes)
    fail(node,
         fmt::format("weights {} have the shape [{}], where [{}] is wanted", formats::shown(node.inputs[index]),
                     fmt::join(tensor->dims, ", "), fmt::join(sizes, ", ")),
         "export the model again");
  const auto [place, is_new] = parameters_.try_emplace(node.inputs[index], static_cast<int>(graph_.tensors.size()));
  if (is_new) {
    graph_.tensors.push_back({.name = unique(node.inputs[index], tensor_names_),
                              .dims = dims,
                              .role = Role::kParameter,
                              .dtype = dtype_of(tensor->type)});
    return place->second;
  }
  const std::vector<int> has = graph_.tensor(place->second).dims;
  bool same = has.size() == dims.size();
  for (std::size_t i = 0; same && i < has.size(); ++i) same = size(has[i]) == size(dims[i]) && join(has[i], dims[i]);
  if (!same)
    fail(node, fmt::format("weights {} are read by two nodes in two ways", formats::shown(node.inputs[index])),
         "export the model without shared weights");
  return place->second;
}

bool OnnxImporter::has_integers(const Node& node, std::size_t index) const {
  return has_input(node, index) && integers_.contains(node.inputs[index]);
}

const std::vector<std::int64_t>& OnnxImporter::integers(const Node& node, std::size_t index, const char* what) const {
  if (!has_integers(node, index))
    fail(node, fmt::format("its {} is not known before the model runs", what),
         "simplify the model (constant folding) before it is imported");
  return integers_.find(node.inputs[index])->second;
}

std::int64_t OnnxImporter::attribute(const Node& node, std::string_view name, std::int64_t otherwise,
                                     std::int64_t least, std::int64_t most) const {
  const formats::OnnxAttribute* found = node.attribute(name);
  const std::int64_t value = found ? found->integer : otherwise;
  if (value < least || value > most)
    fail(node, fmt::format("its {} is {}, and graphs take {} to {}", name, value, least, most), "export it otherwise");
  return value;
}

std::vector<std::int64_t> OnnxImporter::attributes(const Node& node, std::string_view name, std::size_t count,
                                                   std::int64_t otherwise, std::int64_t least,
                                                   std::int64_t most) const {
  const formats::OnnxAttribute* found = node.attribute(name);
  if (!found || found->integers.empty()) return std::vector<std::int64_t>(count, otherwise);
  if (found->integers.size() != count)
    fail(node, fmt::format("its {} has {} numbers, not {}", name, found->integers.size(), count), "export it again");
  for (const std::int64_t value : found->integers) {
    if (value < least || value > most)
      fail(node, fmt::format("its {} has {}, and graphs take {} to {}", name, value, least, most),
           "export it otherwise");
  }
  return found->integers;
}

std::size_t OnnxImporter::axis_of(const Node& node, std::int64_t axis, std::size_t rank) const {
  const auto signed_rank = static_cast<std::int64_t>(rank);
  if (axis < -signed_rank || axis >= signed_rank)
    fail(node, fmt::format("its input has no axis {}: it has {}", axis, rank), "export the model again");
  return static_cast<std::size_t>(axis < 0 ? axis + signed_rank : axis);
}

int OnnxImporter::add_activation(const std::string& name, const std::vector<int>& dims) {
  double elements = 1;
  for (const int dim : dims) elements *= static_cast<double>(size(dim));
  if (elements > kMostElementsOfATensor)
    throw ConfigError(fmt::format("{}: tensor {} is larger than any memory", source_, formats::shown(name)),
                      "export the model with its real sizes");
  graph_.tensors.push_back({.name = unique(name, tensor_names_), .dims = dims});
  return static_cast<int>(graph_.tensors.size()) - 1;
}

void OnnxImporter::emit(const Node& node, Op op, std::vector<int> axes) {
  op.name = unique(node.name, op_names_);
  op.outputs = {add_activation(node.outputs[0], real(axes))};
  graph_.tensors.back().dtype = op.inputs.empty() ? DType::kFp32 : graph_.tensor(op.inputs[0]).dtype;
  if (graph_.tensors.back().dtype == DType::kInt32)
    graph_.tensors.back().dtype = op.inputs.size() > 1 ? graph_.tensor(op.inputs[1]).dtype : DType::kFp32;
  values_[node.outputs[0]] = {op.outputs[0], std::move(axes)};
  graph_.ops.push_back(std::move(op));
}

void OnnxImporter::agree(int input_at, const std::vector<int>& axes) {
  agreements_.push_back({static_cast<int>(graph_.ops.size()), input_at, real(axes)});
}

int OnnxImporter::renamed(int tensor, const std::vector<int>& dims, std::vector<Op>& ops) {
  Op op{.kind = OpKind::kReshape, .inputs = {tensor}};
  const std::vector<int> from = graph_.tensor(tensor).dims;
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (find(from[i]) != find(dims[i])) op.regroups.push_back({{from[i]}, {dims[i]}});
  }
  op.name = unique(graph_.tensor(tensor).name + ".renamed", op_names_);
  const DType dtype = graph_.tensor(tensor).dtype;
  op.outputs = {add_activation(op.name + ".out", dims)};
  graph_.tensors.back().dtype = dtype;
  ops.push_back(std::move(op));
  return ops.back().outputs[0];
}

/// What nodes want alike gets one name where it can; where it cannot, a reshape gives a copy the wanted names.
void OnnxImporter::resolve() {
  std::vector<Op> ops;
  auto next = agreements_.begin();
  for (std::size_t i = 0; i < graph_.ops.size(); ++i) {
    Op op = graph_.ops[i];
    for (; next != agreements_.end() && next->op == static_cast<int>(i); ++next) {
      int& operand = op.inputs[static_cast<std::size_t>(next->input)];
      const auto& has = graph_.tensor(operand).dims;
      const bool same = std::ranges::equal(has, next->dims, [&](int a, int b) { return find(a) == find(b); });
      if (!same) operand = renamed(operand, next->dims, ops);
    }
    ops.push_back(std::move(op));
  }
  graph_.ops = std::move(ops);
  // Only dimensions that are left, in their order.
  std::vector<int> place(graph_.dims.size(), -1);
  std::vector<Dim> dims;
  const auto at = [&](int dim) {
    int& found = place[static_cast<std::size_t>(find(dim))];
    if (found < 0) {
      found = static_cast<int>(dims.size());
      dims.push_back(graph_.dims[static_cast<std::size_t>(find(dim))]);
    }
    return found;
  };
  const auto all = [&](std::vector<int>& list) {
    for (int& dim : list) dim = at(dim);
  };
  for (Tensor& tensor : graph_.tensors) all(tensor.dims);
  for (Op& op : graph_.ops) {
    all(op.dims);
    for (Window& window : op.windows) {
      window.in = at(window.in);
      window.out = at(window.out);
      if (window.kernel_dim >= 0) window.kernel_dim = at(window.kernel_dim);
    }
    for (Regroup& regroup : op.regroups) {
      all(regroup.from);
      all(regroup.to);
    }
  }
  graph_.dims = std::move(dims);
}

void OnnxImporter::add_losses() {
  bool any = false;
  for (const formats::OnnxValue& output : model_.outputs) {
    const auto found = values_.find(output.name);
    if (found == values_.end() || graph_.tensor(found->second.tensor).role == Role::kInput) continue;
    const std::vector<int> dims = graph_.tensor(found->second.tensor).dims;
    if (dims.size() < 2) continue;
    const std::string prefix = any ? graph_.tensor(found->second.tensor).name + "." : "";
    const int classes = dims.size() >= 4 ? dims[1] : dims.back();
    std::vector<int> places = dims;
    std::erase(places, classes);
    graph_.tensors.push_back({.name = unique(prefix + "labels", tensor_names_),
                              .dims = places,
                              .role = Role::kInput,
                              .dtype = DType::kInt32});
    Op loss{.name = unique(prefix + "loss", op_names_),
            .kind = OpKind::kSoftmaxLoss,
            .inputs = {found->second.tensor, static_cast<int>(graph_.tensors.size()) - 1},
            .dims = {classes}};
    const DType dtype = graph_.tensor(found->second.tensor).dtype;
    loss.outputs = {add_activation(loss.name + ".out", {})};
    graph_.tensors.back().dtype = dtype;
    graph_.ops.push_back(std::move(loss));
    any = true;
  }
  if (!any)
    throw ConfigError(source_ + ": no output has samples and classes, so there is nothing to train for",
                      "take a model whose output is [samples, classes]");
}

Graph OnnxImporter::run() {
  graph_.name = unique(std::filesystem::path(source_).stem().string(), op_names_);
  op_names_.clear();
  for (const formats::OnnxTensor& tensor : model_.initializers) {
    stored_[tensor.name] = &tensor;
    if (tensor.type == formats::OnnxType::kInt64 || tensor.type == formats::OnnxType::kInt32)
      integers_[tensor.name] = tensor.integers;
  }
  add_inputs();
  for (const Node& node : model_.nodes) {
    if (node.outputs.empty() || node.outputs[0].empty()) fail(node, "it has no output", "export the model again");
    const bool is_plain = node.domain.empty() || node.domain == "ai.onnx";
    const OnnxHandler handler = is_plain ? onnx_handler(node.type) : nullptr;
    if (!handler)
      fail(node, fmt::format("graphs have no operator for {}{}", is_plain ? "" : node.domain + ".", node.type),
           "imported are " + listed(onnx_operators()));
    handler(*this, node);
  }
  add_losses();
  resolve();
  if (const std::vector<std::string> problems = find_problems(graph_); !problems.empty())
    throw ConfigError(fmt::format("{}: {}", source_, problems.front()), "export the model again, or simplify it");
  return std::move(graph_);
}

Graph import_onnx(const formats::OnnxModel& model, const std::string& source, Index batch) {
  return OnnxImporter(model, source, batch).run();
}

bool is_onnx_path(const std::string& path) { return path.ends_with(".onnx"); }

}  // namespace trireme::plan::graph
