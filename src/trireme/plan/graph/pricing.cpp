#include "trireme/plan/graph/pricing.h"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme::plan::graph {
namespace {

constexpr std::size_t kMostAxes = 8;
constexpr double kBucketBytes = 25e6;

cost::Collective collective_of(StepKind kind) {
  switch (kind) {
    case StepKind::kAllReduce:
      return cost::Collective::kAllReduce;
    case StepKind::kReduceScatter:
      return cost::Collective::kReduceScatter;
    case StepKind::kAllToAll:
      return cost::Collective::kAllToAll;
    default:
      return cost::Collective::kAllGather;
  }
}

/// Alpa's cost of one step along one axis (alpa/device_mesh.py). Small constants break its ties.
double alpa_cost(const Step& step, double alpha, double beta, double n) {
  const double share = beta * (n - 1) / n * step.bytes;
  switch (step.kind) {
    case StepKind::kAllReduce:
      return alpha + 2 * share + 0.01;
    case StepKind::kReduceScatter:
      return alpha + share + 0.001;
    case StepKind::kAllGather:
      return alpha + share + 0.1;
    case StepKind::kAllToAll:  // its penalty of n / 2, on bytes of one device
      return alpha + share * n / 2 + 0.001;
    case StepKind::kHalo:
      return alpha + beta * step.bytes;
    case StepKind::kSlice:
      return 0;
  }
  return 0;
}

}  // namespace

Pricing::Pricing(layout::Mesh mesh, AlphaBeta costs) : mesh_(std::move(mesh)), costs_(std::move(costs)) {
  if (costs_->alpha.size() != mesh_.axes().size() || costs_->beta.size() != mesh_.axes().size())
    throw ConfigError(fmt::format("mesh {} has {} axes; {} latencies and {} inverse bandwidths were given",
                                  to_text(mesh_), mesh_.axes().size(), costs_->alpha.size(), costs_->beta.size()),
                      "give one of each for every axis");
  arithmetic_ = cost::Arithmetic::kFp32;
  make_groups();
}

Pricing::Pricing(const cost::Hardware& hardware, layout::Mesh mesh, cost::Arithmetic arithmetic,
                 const OperatorProfile* profile)
    : hardware_(hardware), mesh_(std::move(mesh)), arithmetic_(arithmetic), profile_(profile) {
  const std::size_t axes = mesh_.axes().size();
  if (axes > kMostAxes)
    throw ConfigError(
        fmt::format("the mesh {} has {} axes; strategies have at most {}", to_text(mesh_), axes, kMostAxes),
        "join some of them");
  if (hardware_.peak(arithmetic_) <= 0)
    throw ConfigError(fmt::format("{} has no units for these numbers", hardware_.device.name),
                      "take another precision");
  make_groups();
}

void Pricing::make_groups() {
  const std::size_t axes = mesh_.axes().size();
  const int per_node = std::max(1, hardware_.cluster.gpus_per_node);
  groups_.resize(std::size_t{1} << axes);
  for (std::size_t bits = 1; bits < groups_.size(); ++bits) {
    layout::AxisNames names;
    for (std::size_t axis = 0; axis < axes; ++axis) {
      if (bits >> axis & 1) names.push_back(mesh_.axes()[axis].name);
    }
    const std::vector<int> ranks = mesh_.group(0, names);
    Group& entry = groups_[bits];
    entry.shape.ranks = static_cast<int>(ranks.size());
    entry.shape.per_node = static_cast<int>(std::ranges::count_if(ranks, [&](int r) { return r / per_node == 0; }));
    entry.shape.groups = mesh_.ranks() / entry.shape.ranks;
    entry.shape.extent = ranks.back() - ranks.front() + 1;
    for (std::size_t i = 1; i < ranks.size(); ++i)
      entry.neighbours_across |= ranks[i] / per_node != ranks[i - 1] / per_node;
  }
}

const Pricing::Group& Pricing::group(const MeshAxes& axes) const {
  std::size_t bits = 0;
  for (const int axis : axes) bits |= std::size_t{1} << axis;
  return groups_[bits];
}

double Pricing::seconds(const Graph& graph, const Op& op, const IterationSpace& space,
                        std::span<const int> degrees) const {
  if (costs_) return 0;
  if (profile_) {
    if (const auto measured = profile_->of(profile_key(graph, op, space, degrees))) return *measured;
  }
  return seconds_of(hardware_, arithmetic_, work_of(graph, op, space, degrees));
}

double Pricing::seconds(const Step& step) const {
  if (step.kind == StepKind::kSlice) return 0;
  if (costs_) {
    double sum = 0;
    for (const int axis : step.axes)
      sum += alpa_cost(step, costs_->alpha[static_cast<std::size_t>(axis)],
                       costs_->beta[static_cast<std::size_t>(axis)], mesh_.axes()[static_cast<std::size_t>(axis)].size);
    return sum;
  }
  const Group& along = group(step.axes);
  if (step.kind == StepKind::kHalo) return cost::message_seconds(hardware_, step.bytes, along.neighbours_across);
  return cost::group_seconds(hardware_, collective_of(step.kind), along.shape, step.bytes);
}

double Pricing::wire_bytes(const Step& step) const {
  if (step.kind == StepKind::kSlice) return 0;
  if (step.kind == StepKind::kHalo) return step.bytes;
  return cost::wire_bytes(collective_of(step.kind), group(step.axes).shape.ranks, step.bytes);
}

double Pricing::reduction_seconds(const Step& step) const {
  if (costs_ || (step.kind != StepKind::kAllReduce && step.kind != StepKind::kReduceScatter)) return seconds(step);
  Step bucket = step;
  bucket.bytes = kBucketBytes;
  return seconds(bucket) * step.bytes / kBucketBytes;
}

layout::Mesh factored_mesh(int devices) {
  std::vector<layout::Axis> axes;
  int left = devices;
  for (int factor = 2; left > 1; ++factor) {
    while (left % factor == 0) {
      axes.push_back({std::string(1, static_cast<char>('a' + axes.size())), factor});
      left /= factor;
    }
  }
  std::ranges::reverse(axes);  // the largest factors outermost, the twos inside of nodes
  for (std::size_t i = 0; i < axes.size(); ++i) axes[i].name = std::string(1, static_cast<char>('a' + i));
  return layout::Mesh(std::move(axes));
}

}  // namespace trireme::plan::graph
