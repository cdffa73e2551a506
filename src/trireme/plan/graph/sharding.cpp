#include "trireme/plan/graph/sharding.h"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/units.h"

namespace trireme::plan::graph {
namespace {

constexpr Named<StepKind> kStepKinds[] = {{"slice", StepKind::kSlice},
                                          {"all-reduce", StepKind::kAllReduce},
                                          {"reduce-scatter", StepKind::kReduceScatter},
                                          {"all-gather", StepKind::kAllGather},
                                          {"all-to-all", StepKind::kAllToAll},
                                          {"halo exchange", StepKind::kHalo}};

int axis_size(const layout::Mesh& mesh, int axis) { return mesh.axes()[static_cast<std::size_t>(axis)].size; }

int ranks_along(const layout::Mesh& mesh, const MeshAxes& axes) {
  int ranks = 1;
  for (const int axis : axes) ranks *= axis_size(mesh, axis);
  return ranks;
}

bool has_axis(const MeshAxes& axes, int axis) { return std::ranges::find(axes, axis) != axes.end(); }

std::string axis_names(const layout::Mesh& mesh, const MeshAxes& axes, std::string_view between = ".") {
  std::string text;
  for (const int axis : axes) {
    if (!text.empty()) text += between;
    text += mesh.axes()[static_cast<std::size_t>(axis)].name;
  }
  return text;
}

/// A tensor on its way from one sharding to another.
class Conversion {
 public:
  Conversion(const layout::Mesh& mesh, double bytes, const Sharding& from, const Sharding& to)
      : mesh_(mesh), now_(from), to_(to) {
    TRIREME_CHECK(from.dims.size() == to.dims.size(), "shardings of different tensors");
    for (const Sharding* one : {&from, &to}) {
      for (const MeshAxes& axes : one->dims)
        TRIREME_CHECK(std::ranges::is_sorted(axes), "mesh axes of a dimension stand in the mesh's order");
    }
    for (const int axis : to.partial)
      TRIREME_CHECK(has_axis(from.partial, axis), "nothing becomes partial by a conversion");
    local_ = bytes;
    for (const MeshAxes& axes : from.dims) local_ /= ranks_along(mesh, axes);
  }

  std::vector<Step> run() {
    while (slice() || scatter() || reduce() || exchange() || gather()) {
    }
    TRIREME_CHECK(now_ == to_, "a conversion has come to a halt");
    return std::move(steps_);
  }

 private:
  /// Whether the dimension has only axes that stay, so that one can be added.
  bool is_open(std::size_t dim) const {
    const MeshAxes &now = now_.dims[dim], &to = to_.dims[dim];
    return now.size() < to.size() && std::equal(now.begin(), now.end(), to.begin());
  }
  int next(std::size_t dim) const { return to_.dims[dim][now_.dims[dim].size()]; }
  bool is_used(int axis) const {
    return has_axis(now_.partial, axis) ||
           std::ranges::any_of(now_.dims, [&](const MeshAxes& axes) { return has_axis(axes, axis); });
  }

  bool slice() {
    for (std::size_t dim = 0; dim < now_.dims.size(); ++dim) {
      if (!is_open(dim) || is_used(next(dim))) continue;
      const int axis = next(dim);
      now_.dims[dim].push_back(axis);
      local_ /= axis_size(mesh_, axis);
      steps_.push_back({.kind = StepKind::kSlice, .axes = {axis}, .to_dim = static_cast<int>(dim)});
      return true;
    }
    return false;
  }

  bool scatter() {
    for (std::size_t dim = 0; dim < now_.dims.size(); ++dim) {
      Step step{.kind = StepKind::kReduceScatter, .to_dim = static_cast<int>(dim), .bytes = local_};
      while (is_open(dim) && has_axis(now_.partial, next(dim)) && !has_axis(to_.partial, next(dim))) {
        const int axis = next(dim);
        step.axes.push_back(axis);
        std::erase(now_.partial, axis);
        now_.dims[dim].push_back(axis);
        local_ /= axis_size(mesh_, axis);
      }
      if (step.axes.empty()) continue;
      steps_.push_back(std::move(step));
      return true;
    }
    return false;
  }

  /// Sums that no dimension will be split by, at once.
  bool reduce() {
    Step step{.kind = StepKind::kAllReduce, .bytes = local_};
    for (const int axis : now_.partial) {
      const bool split = std::ranges::any_of(to_.dims, [&](const MeshAxes& axes) { return has_axis(axes, axis); });
      if (!split && !has_axis(to_.partial, axis)) step.axes.push_back(axis);
    }
    if (step.axes.empty()) return false;
    std::erase_if(now_.partial, [&](int axis) { return has_axis(step.axes, axis); });
    steps_.push_back(std::move(step));
    return true;
  }

  std::size_t kept(std::size_t dim) const {
    const auto [now, to] = std::ranges::mismatch(now_.dims[dim], to_.dims[dim]);
    return static_cast<std::size_t>(now - now_.dims[dim].begin());
  }

  /// The longest inner part of one dimension's axes that another one wants next.
  bool exchange() {
    for (std::size_t from = 0; from < now_.dims.size(); ++from) {
      MeshAxes& axes = now_.dims[from];
      for (std::size_t begin = kept(from); begin < axes.size(); ++begin) {
        const MeshAxes moved(axes.begin() + static_cast<std::ptrdiff_t>(begin), axes.end());
        for (std::size_t to = 0; to < now_.dims.size(); ++to) {
          if (to == from || !is_open(to)) continue;
          const auto wanted = std::span(to_.dims[to]).subspan(now_.dims[to].size());
          if (wanted.size() < moved.size() || !std::equal(moved.begin(), moved.end(), wanted.begin())) continue;
          axes.resize(begin);
          now_.dims[to].insert(now_.dims[to].end(), moved.begin(), moved.end());
          steps_.push_back({.kind = StepKind::kAllToAll,
                            .axes = moved,
                            .from_dim = static_cast<int>(from),
                            .to_dim = static_cast<int>(to),
                            .bytes = local_});
          return true;
        }
      }
    }
    return false;
  }

  bool gather() {
    for (std::size_t dim = 0; dim < now_.dims.size(); ++dim) {
      const std::size_t begin = kept(dim);
      MeshAxes& axes = now_.dims[dim];
      if (begin == axes.size()) continue;
      const MeshAxes gathered(axes.begin() + static_cast<std::ptrdiff_t>(begin), axes.end());
      axes.resize(begin);
      local_ *= ranks_along(mesh_, gathered);
      steps_.push_back(
          {.kind = StepKind::kAllGather, .axes = gathered, .from_dim = static_cast<int>(dim), .bytes = local_});
      return true;
    }
    return false;
  }

  const layout::Mesh& mesh_;
  Sharding now_;
  const Sharding& to_;
  double local_ = 0;  ///< bytes of one rank
  std::vector<Step> steps_;
};

Sharding operand_sharding(const IterationSpace& space, const Split& split, const std::vector<int>& places) {
  Sharding sharding;
  sharding.dims.resize(places.size());
  for (std::size_t axis = 0; axis < split.size(); ++axis) {
    const int place = split[axis] < 0 ? -1 : space.find(split[axis]);
    if (place < 0) continue;
    const auto found = std::ranges::find(places, place);
    if (found == places.end()) {
      sharding.partial.push_back(static_cast<int>(axis));
    } else {
      sharding.dims[static_cast<std::size_t>(found - places.begin())].push_back(static_cast<int>(axis));
    }
  }
  return sharding;
}

/// Of a windowed operator: which of its operands' rows lie in the window's input, and which in its output.
enum class Side : std::uint8_t { kIn, kOut, kNeither };

Side side_of(const Graph& graph, const Op& op, int tensor) {
  const Op& base = op.forward >= 0 ? graph.op(op.forward) : op;
  const bool transposed = base.part == Part::kBackwardData;
  const int of = graph.tensor(tensor).grad_of;
  const auto is = [&](int operand) { return operand == tensor || (op.forward >= 0 && operand == of); };
  if (is(base.inputs[0])) return transposed ? Side::kOut : Side::kIn;
  if (is(base.outputs[0])) return transposed ? Side::kIn : Side::kOut;
  return Side::kNeither;
}

/// The all-reduces of a norm or a loss whose averaged dimensions or classes are split. A norm's backward needs sums
/// again where it makes the gradient of its input; what a loss has summed up it keeps.
std::vector<Step> statistics_of(const Graph& graph, const Op& op, const IterationSpace& space,
                                const std::vector<int>& degrees, const Split& split) {
  MeshAxes axes;
  for (std::size_t axis = 0; axis < split.size(); ++axis) {
    const int place = split[axis] < 0 ? -1 : space.find(split[axis]);
    if (place >= 0 && space.dims[static_cast<std::size_t>(place)].kind == DimKind::kStatistic)
      axes.push_back(static_cast<int>(axis));
  }
  const bool is_loss = op.kind == OpKind::kSoftmaxLoss, is_backward = op.part == Part::kBackward;
  if (axes.empty() || (is_loss && is_backward)) return {};
  const int x = (op.forward >= 0 ? graph.op(op.forward) : op).inputs[0];
  const std::vector<int>* places = is_backward ? nullptr : space.inputs.data();
  for (std::size_t i = 0; is_backward && i < op.outputs.size(); ++i) {
    if (graph.tensor(op.outputs[i]).grad_of == x) places = &space.outputs[i];
  }
  if (!places) return {};
  double shared = 1;
  for (const int place : *places) {
    const IterationDim& dim = space.dims[static_cast<std::size_t>(place)];
    if (dim.kind != DimKind::kStatistic)
      shared *= static_cast<double>(graph.size(dim.dim)) / degrees[static_cast<std::size_t>(place)];
  }
  const double bytes = 8 * shared;
  const bool is_single = is_loss || op.function == "rms";  // of a norm with a mean its sum too
  const Step one{.kind = StepKind::kAllReduce, .axes = axes, .bytes = is_single ? bytes : 2 * bytes};
  return std::vector<Step>(is_loss ? 2 : 1, one);
}

std::pair<Index, Index> widest_halo(const Graph& graph, const Window& window, bool by_input, Index parts) {
  Index before = 0, after = 0, both = 0;
  for (Index part = 0; part < parts; ++part) {
    const auto [low, high] = halo_rows(graph, window, by_input, part, parts);
    before = std::max(before, low);
    after = std::max(after, high);
    both = std::max(both, low + high);
  }
  return {std::max(before, after), both};
}

}  // namespace

std::span<const Named<StepKind>> enum_names(std::type_identity<StepKind>) { return kStepKinds; }

bool tiles_input(const Op& op) {
  return op.part == Part::kBackwardData || (op.part == Part::kBackward && op.kind == OpKind::kPooling);
}

std::pair<Index, Index> halo_rows(const Graph& graph, const Window& window, bool by_input, Index part, Index parts) {
  const Index in = graph.size(window.in), out = graph.size(window.out);
  const Index mine = by_input ? in / parts : out / parts, own = by_input ? out / parts : in / parts;
  const Index whole = by_input ? out : in;
  const auto [begin, end] = by_input ? window.output_rows(part * mine, (part + 1) * mine, whole)
                                     : window.input_rows(part * mine, (part + 1) * mine, whole);
  if (begin >= end) return {0, 0};
  return {std::max<Index>(0, part * own - begin), std::max<Index>(0, end - (part + 1) * own)};
}

Place place_of(const Graph& graph, const layout::Mesh& mesh, const std::vector<int>& coordinates, int tensor,
               const Sharding& sharding) {
  Place place;
  const auto& dims = graph.tensor(tensor).dims;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    Index parts = 1, part = 0;
    for (const int axis : sharding.dims[i]) {
      const Index size = mesh.axes()[static_cast<std::size_t>(axis)].size;
      parts *= size;
      part = part * size + coordinates[static_cast<std::size_t>(axis)];
    }
    place.sizes.push_back(graph.size(dims[i]) / parts);
    place.origin.push_back(part * place.sizes.back());
  }
  return place;
}

std::vector<Step> convert(const layout::Mesh& mesh, double bytes, const Sharding& from, const Sharding& to) {
  if (from == to) return {};
  return Conversion(mesh, bytes, from, to).run();
}

Sharding input_sharding(const IterationSpace& space, const Split& split, std::size_t input) {
  Sharding sharding = operand_sharding(space, split, space.inputs[input]);
  sharding.partial.clear();
  return sharding;
}

Sharding output_sharding(const IterationSpace& space, const Split& split, std::size_t output) {
  return operand_sharding(space, split, space.outputs[output]);
}

std::vector<int> degrees_of(const layout::Mesh& mesh, const IterationSpace& space, const Split& split) {
  std::vector<int> degrees(space.dims.size(), 1);
  for (std::size_t axis = 0; axis < split.size(); ++axis) {
    const int place = split[axis] < 0 ? -1 : space.find(split[axis]);
    if (place >= 0) degrees[static_cast<std::size_t>(place)] *= axis_size(mesh, static_cast<int>(axis));
  }
  return degrees;
}

std::string why_not(const Graph& graph, const layout::Mesh& mesh, const Op& op, const IterationSpace& space,
                    const Split& split) {
  const std::vector<int> degrees = degrees_of(mesh, space, split);
  for (std::size_t i = 0; i < degrees.size(); ++i) {
    const IterationDim& dim = space.dims[i];
    if (degrees[i] == 1) continue;
    const std::string& name = graph.dims[static_cast<std::size_t>(dim.dim)].name;
    if (dim.size % degrees[i] != 0)
      return fmt::format("operator {}: {} parts do not divide the {} of {}", op.name, degrees[i], dim.size, name);
    if (dim.window < 0) continue;
    const Window& window = op.part == Part::kBackward ? graph.op(op.forward).windows[std::size_t(dim.window)]
                                                      : op.windows[std::size_t(dim.window)];
    const bool by_input = tiles_input(op);
    const Index own = (by_input ? graph.size(window.out) : graph.size(window.in)) / degrees[i];
    const Index reach = widest_halo(graph, window, by_input, degrees[i]).first;
    if (reach > own)
      return fmt::format("operator {}: in {} parts of {} its halo of {} rows reaches beyond the neighbour's {}",
                         op.name, degrees[i], name, reach, own);
  }
  return "";
}

std::vector<Exchange> exchanges_of(const Graph& graph, const layout::Mesh& mesh, const Op& op,
                                   const IterationSpace& space, const Split& split) {
  std::vector<Exchange> exchanges;
  const std::vector<int> degrees = degrees_of(mesh, space, split);
  const auto axes_of = [&](const IterationDim& dim) {
    MeshAxes axes;
    for (std::size_t axis = 0; axis < split.size(); ++axis) {
      if (split[axis] == dim.dim) axes.push_back(static_cast<int>(axis));
    }
    return axes;
  };
  const auto local_bytes = [&](int tensor, const std::vector<int>& places) {
    double bytes = graph.bytes(graph.tensor(tensor));
    for (const int place : places) bytes /= degrees[static_cast<std::size_t>(place)];
    return bytes;
  };
  const bool by_input = tiles_input(op);
  const Op& base = op.part == Part::kBackward ? graph.op(op.forward) : op;
  for (std::size_t k = 0; k < op.inputs.size() && !base.windows.empty(); ++k) {
    if (side_of(graph, op, op.inputs[k]) != (by_input ? Side::kOut : Side::kIn)) continue;
    double bytes = local_bytes(op.inputs[k], space.inputs[k]);
    for (std::size_t i = 0; i < space.dims.size(); ++i) {
      const IterationDim& dim = space.dims[i];
      if (dim.window < 0 || degrees[i] == 1) continue;
      const Window& window = base.windows[static_cast<std::size_t>(dim.window)];
      const Index own = (by_input ? graph.size(window.out) : graph.size(window.in)) / degrees[i];
      const Index rows = widest_halo(graph, window, by_input, degrees[i]).second;
      if (rows == 0) continue;
      const double received = bytes / static_cast<double>(own) * static_cast<double>(rows);
      const auto place = std::ranges::find(space.inputs[k], static_cast<int>(i));
      exchanges.push_back({.tensor = op.inputs[k],
                           .step = {.kind = StepKind::kHalo,
                                    .axes = axes_of(dim),
                                    .from_dim = static_cast<int>(place - space.inputs[k].begin()),
                                    .bytes = received},
                           .window = dim.window});
      bytes += received;  // corners come with the second dimension
    }
  }
  for (Step& step : statistics_of(graph, op, space, degrees, split))
    exchanges.push_back({.tensor = -1, .step = std::move(step)});
  return exchanges;
}

std::string to_text(const layout::Mesh& mesh, const Sharding& sharding) {
  std::string text = "[";
  for (std::size_t i = 0; i < sharding.dims.size(); ++i)
    text += (i ? ", " : "") + (sharding.dims[i].empty() ? "-" : axis_names(mesh, sharding.dims[i]));
  text += "]";
  if (!sharding.partial.empty()) text += " partial " + axis_names(mesh, sharding.partial);
  return text;
}

std::string to_text(const layout::Mesh& mesh, const Step& step) {
  std::string text = fmt::format("{} over {}", name_of(step.kind), axis_names(mesh, step.axes));
  if (step.bytes > 0) text += ", " + short_bytes(step.bytes);
  return text;
}

std::string to_text(const Graph& graph, const layout::Mesh& mesh, const Split& split) {
  std::string text;
  for (std::size_t axis = 0; axis < split.size(); ++axis) {
    if (split[axis] < 0) continue;
    if (!text.empty()) text += ' ';
    text += graph.dims[static_cast<std::size_t>(split[axis])].name + ":" + mesh.axes()[axis].name;
  }
  return text.empty() ? "whole" : text;
}

}  // namespace trireme::plan::graph
