// plan/graph/pricing.h -- seconds of what a strategy computes and sends, with the cost model that everything here uses.
//
// Collectives are priced by cost/group_time.h on the groups that mesh axes make of a cluster's devices, operators by
// cost/roofline.h, or as they were measured where there is a profile. Gradients of parameters are reduced in buckets,
// so one pays its share of a bucket and no latency of its own.
// Depends on: sharding, count, profile, cost.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <vector>

#include "trireme/cost/group_time.h"
#include "trireme/plan/graph/count.h"
#include "trireme/plan/graph/profile.h"
#include "trireme/plan/graph/sharding.h"

namespace trireme::plan::graph {

/// Costs of a paper's model instead of a cluster's: latency and seconds a byte of each mesh axis, computing for
/// nothing. Alpa's formulas, whose unit tests state optima in closed form.
struct AlphaBeta {
  std::vector<double> alpha, beta;
};

class Pricing {
 public:
  /// ConfigError for more mesh axes than a strategy can have, eight, and for numbers that the device has no units for.
  /// `profile`: measured operators, which outlive this; null: none.
  Pricing(const cost::Hardware& hardware, layout::Mesh mesh, cost::Arithmetic arithmetic = cost::Arithmetic::kFp32,
          const OperatorProfile* profile = nullptr);

  Pricing(layout::Mesh mesh, AlphaBeta costs);

  const layout::Mesh& mesh() const { return mesh_; }
  const cost::Hardware& hardware() const { return hardware_; }
  cost::Arithmetic arithmetic() const { return arithmetic_; }

  const OperatorProfile* profile() const { return profile_; }

  /// One device's part of an operator (count.h), as measured where it was measured.
  double seconds(const Graph& graph, const Op& op, const IterationSpace& space,
                 std::span<const int> degrees = {}) const;
  double seconds(const Step& step) const;
  /// What the busiest rank sends, at least (cost/collectives.h); of a halo what it receives.
  double wire_bytes(const Step& step) const;
  /// In buckets.
  double reduction_seconds(const Step& step) const;

 private:
  struct Group {
    cost::GroupShape shape;
    bool neighbours_across = false;  // whether some neighbours along the axes are on two nodes
  };
  const Group& group(const MeshAxes& axes) const;
  void make_groups();

  cost::Hardware hardware_;
  layout::Mesh mesh_;
  cost::Arithmetic arithmetic_ = cost::Arithmetic::kFp32;
  std::vector<Group> groups_;  // [bits of axes]
  const OperatorProfile* profile_ = nullptr;
  std::optional<AlphaBeta> costs_;
};

/// The mesh of a search: the prime factors of the devices, the largest outermost, so that twos lie inside of nodes. 12
/// devices: a=3 b=2 c=2.
layout::Mesh factored_mesh(int devices);

}  // namespace trireme::plan::graph
