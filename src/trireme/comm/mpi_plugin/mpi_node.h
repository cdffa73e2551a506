// comm/mpi_plugin/mpi_node.h -- the ranks of one node as MPI finds them.
// Depends on: shared_node.h, MPI.
#pragma once

#include <memory>

#include "trireme/comm/mpi_plugin/mpi_common.h"
#include "trireme/comm/shared_node.h"

namespace trireme::comm {

/// The ranks of a communicator, which is borrowed.
class MpiBootstrap final : public Bootstrap {
 public:
  explicit MpiBootstrap(MPI_Comm comm) : comm_(comm) {}
  bool is_first() const override;
  void broadcast(void* data, std::size_t bytes) override;
  bool all(bool mine) override;

 private:
  MPI_Comm comm_;
};

/// All ranks of `world` call this.
std::unique_ptr<SharedNode> make_mpi_node(MPI_Comm world, int ranks_per_node);

}  // namespace trireme::comm
