// spmd/transfers.h -- carries out a lowering's steps on a rank's block: collectives and halo exchanges.
//
// Groups are made once, for every set of mesh axes that a lowering names. What is carried out is recorded with the
// bytes that really went through the buffers, in the counting of cost/collectives.h; of a halo what this rank received.
// Depends on: block, comm, device.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/plan/graph/strategy.h"
#include "trireme/spmd/block.h"

namespace trireme::spmd {

class Transfers {
 public:
  /// Called by every rank of `world` at the same time: groups are made together. ConfigError where the world does not
  /// have as many ranks as the mesh.
  Transfers(const layout::Mesh& mesh, comm::Group& world, const std::vector<pg::MeshAxes>& axes);

  const std::vector<int>& coordinates() const { return coordinates_; }
  /// One step of a conversion.
  at::Tensor take(const pg::Step& step, const at::Tensor& data);
  /// Rows of the neighbours along `step.axes` before and after a block's own, as `halo_of` says for part and parts.
  Block extend(const pg::Step& step, const Block& block,
               const std::function<std::pair<Index, Index>(Index part, Index parts)>& halo_of);
  void all_reduce(const pg::Step& step, at::Tensor& data, comm::Reduce reduce);

  /// Bytes of what was carried out last.
  double last_bytes() const { return last_bytes_; }

 private:
  comm::Group& group(const pg::MeshAxes& axes);

  const layout::Mesh& mesh_;
  const int rank_;
  std::vector<int> coordinates_;
  std::map<pg::MeshAxes, std::unique_ptr<comm::Group>> groups_;
  double last_bytes_ = 0;
};

}  // namespace trireme::spmd
