// parallel/matrix_owners.h -- who makes the update of which matrix, and how its parts get there and back.
//
// Every matrix that ranks hold parts or copies of has one owner among them, so that the work of Muon, Shampoo or SOAP
// is shared out evenly. Parts go to owners in one all-to-all, each element from one of its copies (an owner that has
// the whole matrix needs none of it), and directions come back in another. Which elements a rank holds, its placement
// says: tensor parallelism, ZeRO of any stage and experts are the same to it.
// Depends on: comm, layout, nn, optim.
#pragma once

#include <memory>

#include "trireme/optim/optimizer.h"
#include "trireme/parallel/mesh_groups.h"

namespace trireme::parallel {

/// Null where the optimizer treats no parameter as a matrix, or this rank holds everything alone. On all ranks
/// together; `owned`, what this rank updates, and `groups` are borrowed. `lane` of the groups: kUpdateLane where
/// another thread than the rank's own updates.
std::unique_ptr<optim::MatrixOwners> make_matrix_owners(const spec::OptimConfig& optim, nn::Params& owned,
                                                        MeshGroups& groups, int lane = 0);

/// Equally spaced stretches of the same length: runs of a placement as one strided copy.
struct StridedRuns {
  layout::Index global = 0, local = 0, count = 0;  ///< of the first
  layout::Index repeats = 1, global_step = 0, local_step = 0;
  layout::Index elements() const { return count * repeats; }
  bool operator==(const StridedRuns&) const = default;
};
std::vector<StridedRuns> strided(std::span<const layout::ContiguousRun> runs);

/// The owner of each, by the cost of its update, as even as can be; a function of the costs alone.
std::vector<int> share_out(std::span<const double> costs, int ranks);

}  // namespace trireme::parallel
