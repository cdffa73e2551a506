#include "trireme/plan/graph/annotate.h"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme::plan::graph {
namespace {

int axis_named(const layout::Mesh& mesh, const std::string& name) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < mesh.axes().size(); ++i) {
    if (mesh.axes()[i].name == name) return static_cast<int>(i);
    names.push_back(mesh.axes()[i].name);
  }
  throw ConfigError(fmt::format("the mesh has no axis {}{}", name, did_you_mean(name, names)),
                    "its axes are " + listed(names));
}

int dim_named(const Graph& graph, const std::string& name) {
  const int dim = graph.find_dim(name);
  if (dim >= 0) return dim;
  std::vector<std::string> names;
  for (const Dim& known : graph.dims) names.push_back(known.name);
  throw ConfigError(fmt::format("graph {} has no dimension {}{}", graph.name, name, did_you_mean(name, names)),
                    "dimensions are listed by trireme graph show");
}

/// Refuses what does not divide, by name.
void check_splits(const Graph& forward, const Strategy& strategy) {
  for (const std::string& problem : find_problems(forward, strategy))
    throw ConfigError(problem, "take an axis whose size divides the dimension");
}

class Propagation {
 public:
  Propagation(const Graph& forward, const layout::Mesh& mesh)
      : graph_(forward), axes_(mesh.axes().size()), strategy_(replicated(forward, mesh)) {
    for (const Op& op : forward.ops) spaces_.push_back(iteration_space(forward, op));
    tensors_.assign(forward.tensors.size(), std::vector<int>(axes_, -1));
    fixed_.assign(forward.tensors.size(), false);
  }

  void annotate(const Annotation& annotation) {
    const int tensor = graph_.find_tensor(annotation.tensor);
    if (tensor < 0) {
      std::vector<std::string> names;
      for (const Tensor& known : graph_.tensors) names.push_back(known.name);
      throw ConfigError(fmt::format("graph {} has no tensor {}{}", graph_.name, annotation.tensor,
                                    did_you_mean(annotation.tensor, names)),
                        "tensors are listed by trireme graph show");
    }
    fixed_[static_cast<std::size_t>(tensor)] = true;
    for (const auto& [dim, axis] : annotation.dims) {
      const int place = dim_named(graph_, dim);
      const auto& dims = graph_.tensor(tensor).dims;
      if (std::ranges::find(dims, place) == dims.end())
        throw ConfigError(fmt::format("tensor {} has no dimension {}", annotation.tensor, dim), "annotate one it has");
      int& at = tensors_[static_cast<std::size_t>(tensor)][static_cast<std::size_t>(axis_named(strategy_.mesh, axis))];
      if (at >= 0 && at != place)
        throw ConfigError(fmt::format("tensor {} is split twice along axis {}", annotation.tensor, axis),
                          "an axis splits one dimension of a tensor");
      at = place;
    }
  }

  Strategy run() {
    // What was annotated speaks first, wherever it is in the graph.
    for (std::size_t i = 0; i < graph_.ops.size(); ++i) learn(i, true);
    bool changed = true;
    while (changed) {
      changed = false;
      for (std::size_t i = 0; i < graph_.ops.size(); ++i) changed |= visit(i);
      for (std::size_t i = graph_.ops.size(); i-- > 0;) changed |= visit(i);
    }
    return std::move(strategy_);
  }

 private:
  bool visit(std::size_t op) {
    const bool learnt = learn(op, false);
    return tell(op) || learnt;
  }

  /// Takes splits from operands for axes that the operator has none for yet.
  bool learn(std::size_t index, bool only_fixed) {
    const Op& op = graph_.ops[index];
    bool changed = false;
    const auto from = [&](int tensor, const std::vector<int>& places) {
      if (only_fixed && !fixed_[static_cast<std::size_t>(tensor)]) return;
      const auto& dims = graph_.tensor(tensor).dims;
      for (std::size_t axis = 0; axis < axes_; ++axis) {
        const int dim = tensors_[static_cast<std::size_t>(tensor)][axis];
        if (dim < 0 || strategy_.splits[index][axis] >= 0) continue;
        const int place = places[static_cast<std::size_t>(std::ranges::find(dims, dim) - dims.begin())];
        const IterationDim& named = spaces_[index].dims[static_cast<std::size_t>(place)];
        if (named.kind == DimKind::kWhole) continue;
        Split tried = strategy_.splits[index];
        tried[axis] = named.dim;
        if (!why_not(graph_, strategy_.mesh, op, spaces_[index], tried).empty()) continue;
        strategy_.splits[index] = tried;
        changed = true;
      }
    };
    for (std::size_t k = 0; k < op.inputs.size(); ++k) from(op.inputs[k], spaces_[index].inputs[k]);
    for (std::size_t k = 0; k < op.outputs.size(); ++k) from(op.outputs[k], spaces_[index].outputs[k]);
    return changed;
  }

  /// Gives operands that are not annotated the operator's split, for axes along which they are replicated yet.
  bool tell(std::size_t index) {
    const Op& op = graph_.ops[index];
    bool changed = false;
    const auto to = [&](int tensor, const std::vector<int>& places) {
      if (fixed_[static_cast<std::size_t>(tensor)]) return;
      const auto& dims = graph_.tensor(tensor).dims;
      for (std::size_t axis = 0; axis < axes_; ++axis) {
        int& at = tensors_[static_cast<std::size_t>(tensor)][axis];
        const int split = strategy_.splits[index][axis];
        const int place = split < 0 ? -1 : spaces_[index].find(split);
        const auto found = std::ranges::find(places, place);
        if (at >= 0 || place < 0 || found == places.end()) continue;
        at = dims[static_cast<std::size_t>(found - places.begin())];
        changed = true;
      }
    };
    for (std::size_t k = 0; k < op.inputs.size(); ++k) to(op.inputs[k], spaces_[index].inputs[k]);
    for (std::size_t k = 0; k < op.outputs.size(); ++k) to(op.outputs[k], spaces_[index].outputs[k]);
    return changed;
  }

  const Graph& graph_;
  const std::size_t axes_;
  Strategy strategy_;
  std::vector<IterationSpace> spaces_;
  std::vector<std::vector<int>> tensors_;  // [tensor][axis] the dimension that it splits, or -1
  std::vector<bool> fixed_;
};

}  // namespace

MeshLayout parse_mesh_layout(std::string_view text) {
  MeshLayout layout;
  std::string spaced(text);
  std::ranges::replace(spaced, ',', ' ');
  for (const std::string& word : trireme::split(spaced, ' ')) {
    if (word.empty()) continue;
    const std::size_t colon = word.rfind(':');
    if (colon == std::string::npos || colon == 0 || colon + 1 == word.size())
      throw ConfigError(fmt::format("\"{}\" maps no dimension to an axis", word), "write DIMENSION:AXIS, as in n:dp");
    if (!layout.emplace(word.substr(0, colon), word.substr(colon + 1)).second)
      throw ConfigError(fmt::format("dimension {} is given twice", word.substr(0, colon)), "a dimension has one axis");
  }
  return layout;
}

Strategy mesh_tensorflow(const Graph& forward, const layout::Mesh& mesh, const MeshLayout& layout) {
  Strategy strategy = replicated(forward, mesh);
  std::vector<std::vector<int>> split_by(mesh.axes().size());  // [axis] dimensions
  for (const auto& [dim, axis] : layout)
    split_by[static_cast<std::size_t>(axis_named(mesh, axis))].push_back(dim_named(forward, dim));
  const auto clash = [&](const std::string& what, const std::string& name, int a, int b, std::size_t axis) {
    throw ConfigError(
        fmt::format("{} {} has the dimensions {} and {}, which the layout both splits along axis {}", what, name,
                    forward.dims[std::size_t(a)].name, forward.dims[std::size_t(b)].name, mesh.axes()[axis].name),
        "split one of them, or along another axis");
  };
  for (std::size_t axis = 0; axis < split_by.size(); ++axis) {
    const auto is_split = [&](int dim) { return std::ranges::find(split_by[axis], dim) != split_by[axis].end(); };
    for (const Tensor& tensor : forward.tensors) {
      int first = -1;
      for (const int dim : tensor.dims) {
        if (!is_split(dim)) continue;
        if (first >= 0) clash("tensor", tensor.name, first, dim, axis);
        first = dim;
      }
    }
    for (std::size_t i = 0; i < forward.ops.size(); ++i) {
      int& at = strategy.splits[i][axis];
      for (const IterationDim& dim : iteration_space(forward, forward.ops[i]).dims) {
        if (!is_split(dim.dim) || dim.kind == DimKind::kWhole) continue;
        if (at >= 0) clash("operator", forward.ops[i].name, at, dim.dim, axis);
        at = dim.dim;
      }
    }
  }
  check_splits(forward, strategy);
  return strategy;
}

std::vector<Annotation> parse_annotations(std::string_view text) {
  std::vector<Annotation> annotations;
  for (const std::string& one : trireme::split(text, ';')) {
    const std::string bare(trimmed(one));
    if (bare.empty()) continue;
    const std::size_t space = std::min(bare.find(' '), bare.size());
    annotations.push_back({bare.substr(0, space), parse_mesh_layout(std::string_view(bare).substr(space))});
  }
  return annotations;
}

Strategy propagate(const Graph& forward, const layout::Mesh& mesh, const std::vector<Annotation>& annotations) {
  Propagation propagation(forward, mesh);
  for (const Annotation& annotation : annotations) propagation.annotate(annotation);
  return propagation.run();
}

}  // namespace trireme::plan::graph
