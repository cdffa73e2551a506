// parallel/mesh_groups.h -- the mesh of a run with a group for each set of axes that somebody asks for.
//
// Depends on: base, comm, layout.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/layout/mesh.h"

namespace trireme::parallel {

class MeshGroups {
 public:
  /// `world` is borrowed and has as many ranks as the mesh. ConfigError otherwise.
  MeshGroups(comm::Group& world, layout::Mesh mesh);

  const layout::Mesh& mesh() const { return mesh_; }
  int rank() const { return world_.rank(); }
  comm::Group& world() { return world_; }
  static constexpr int kUpdateLane = -1;  ///< calls of late updates, which another thread than the rank's own makes
  static constexpr int kFiniteLane = -2;  ///< whether a step is taken: not behind weights that are on their way

  /// The ranks that differ from this one along these axes only; null where there is no other. Made when first asked
  /// for, by all ranks of the world together and in the same order.
  /// `lane`: another group of the same ranks, whose calls do not wait for those of the first.
  comm::Group* along(const layout::AxisNames& axes, int lane = 0);
  /// Makes all groups that some rank will ask for: ranks of other stages have other parameters, and want other groups.
  /// On all ranks of the world together; the order of `wanted` does not matter. `lanes` of each, from `first` on, the
  /// same on all ranks.
  void agree_on(const std::vector<layout::AxisNames>& wanted, int lanes = 1, int first = 0);
  /// Those that were asked for, by their axes, ascending.
  std::vector<comm::Group*> all() const;

 private:
  comm::Group& world_;
  layout::Mesh mesh_;
  std::map<std::pair<layout::AxisNames, int>, std::unique_ptr<comm::Group>> groups_;  // by axes and lane
};

}  // namespace trireme::parallel
