// plan/graph/annotate.h -- two languages in which people say how a graph is sharded; both become a strategy.
//
// Mesh-TensorFlow (Shazeer 2018, 1811.02084): one layout for the whole program, a map from names of dimensions to mesh
// axes. Wherever a dimension occurs it is split so.
// GShard (Lepikhin 2020, 2006.16668): some tensors are annotated; the rest follows from them. An operator takes the
// split of the first operand that has one for an axis, and its other operands follow, forwards and backwards through
// the graph, until nothing changes. A tensor that was annotated stays as it is; a graph without annotations stays
// replicated.
// Depends on: strategy.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "trireme/plan/graph/strategy.h"

namespace trireme::plan::graph {

/// dimension -> axis
using MeshLayout = std::map<std::string, std::string>;

/// "batch:dp hidden:tp", separated by spaces or commas.
MeshLayout parse_mesh_layout(std::string_view text);

/// ConfigError that names the tensor or operator of which two dimensions would be split along one axis, and names that
/// the graph or the mesh does not have.
Strategy mesh_tensorflow(const Graph& forward, const layout::Mesh& mesh, const MeshLayout& layout);

/// One tensor, split by the axes of `dims`; the other axes hold replicas.
struct Annotation {
  std::string tensor;
  MeshLayout dims = {};
};

/// "hidden groups:a; layer0.experts.up experts:a"
std::vector<Annotation> parse_annotations(std::string_view text);

Strategy propagate(const Graph& forward, const layout::Mesh& mesh, const std::vector<Annotation>& annotations);

}  // namespace trireme::plan::graph
