// plan/graph/sharding.h -- how a tensor lies on a mesh, what gets it into another sharding, and what an operator asks
// for.
//
// Each dimension of a tensor has a list of mesh axes that split it, outermost first: of [a, b], rank (i, j) has block
// i * size(b) + j. Axes in no list hold replicas, and along those in `partial` ranks hold summands of the tensor: the
// three kinds of DTensor. Blocks of one dimension stay contiguous only if axes come and go at the inner end of a list;
// a conversion therefore does just that, and every step of it is one collective or a local slice. A split of an
// operator gives each mesh axis one of its dimensions. Shardings of all operands follow from its iteration space; so do
// partial sums, halos and all-reduced statistics, for gradients as for forward operators.
// Depends on: graph, layout, cost.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "trireme/cost/collectives.h"
#include "trireme/layout/mesh.h"
#include "trireme/plan/graph/graph.h"

namespace trireme::plan::graph {

using MeshAxes = std::vector<int>;  ///< into Mesh::axes()

struct Sharding {
  std::vector<MeshAxes> dims =
      {};                 ///< [tensor dimension] ascending: a group's ranks are then in the order of its blocks
  MeshAxes partial = {};  ///< ascending
  bool operator==(const Sharding&) const = default;
};

/// Which box of a whole tensor a rank has; one entry for each dimension.
struct Place {
  std::vector<Index> origin, sizes;
  bool operator==(const Place&) const = default;
};
/// The box that a rank at these mesh coordinates has. Along partial axes every rank has the same box.
Place place_of(const Graph& graph, const layout::Mesh& mesh, const std::vector<int>& coordinates, int tensor,
               const Sharding& sharding);

enum class StepKind : std::uint8_t { kSlice, kAllReduce, kReduceScatter, kAllGather, kAllToAll, kHalo };
std::span<const Named<StepKind>> enum_names(std::type_identity<StepKind>);

/// One thing that is inserted between operators or inside of one.
struct Step {
  StepKind kind = StepKind::kSlice;
  MeshAxes axes = {};
  int from_dim = -1, to_dim = -1;  ///< of the tensor: gathered or moved from; scattered, sliced or moved to
  double bytes = 0;  ///< as cost/collectives.h counts them; of a halo what the busiest rank receives; 0 for a slice
  bool operator==(const Step&) const = default;
};

/// From one sharding to another of a tensor that is `bytes` large as a whole. A partial sum becomes whole, unless the
/// target is partial along that axis too; nothing becomes partial.
std::vector<Step> convert(const layout::Mesh& mesh, double bytes, const Sharding& from, const Sharding& to);

/// [mesh axis] the graph dimension that it splits; -1: none, so the operator is repeated along it.
using Split = std::vector<int>;

/// How an operator's operands lie. Inputs are never partial; outputs are along axes that split what they do not have.
Sharding input_sharding(const IterationSpace& space, const Split& split, std::size_t input);
Sharding output_sharding(const IterationSpace& space, const Split& split, std::size_t output);
/// [dimension of the iteration space] into how many parts it is split.
std::vector<int> degrees_of(const layout::Mesh& mesh, const IterationSpace& space, const Split& split);

/// Why an operator cannot be split so; empty when it can: every split dimension must divide, and halos must reach no
/// farther than the neighbour. Dimensions that it does not have are no hindrance.
std::string why_not(const Graph& graph, const layout::Mesh& mesh, const Op& op, const IterationSpace& space,
                    const Split& split);

/// Rows of a windowed operator are dealt out by the window's output where that is what is made or summed over, by its
/// input where the data gradient is made.
bool tiles_input(const Op& op);
/// Rows that part `part` of `parts` needs and does not have, before and after its own.
std::pair<Index, Index> halo_rows(const Graph& graph, const Window& window, bool by_input, Index part, Index parts);

/// What the operator exchanges while it runs: halos of its operands, and statistics, which are of fp64: sum and sum of
/// squares of a norm in one all-reduce; the largest logit, then the sum of exponentials of a loss.
struct Exchange {
  int tensor = -1;  ///< whose halo it is; -1: statistics
  Step step;
  int window = -1;  ///< of a halo: into the forward operator's windows
};
std::vector<Exchange> exchanges_of(const Graph& graph, const layout::Mesh& mesh, const Op& op,
                                   const IterationSpace& space, const Split& split);

/// "[dp, -, tp] partial cp": "-" for a dimension that is whole.
std::string to_text(const layout::Mesh& mesh, const Sharding& sharding);
/// "all-gather over tp, 4.1 MB"
std::string to_text(const layout::Mesh& mesh, const Step& step);
/// "n:dp c:tp", or "whole".
std::string to_text(const Graph& graph, const layout::Mesh& mesh, const Split& split);

}  // namespace trireme::plan::graph
