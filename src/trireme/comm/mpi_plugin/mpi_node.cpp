#include "trireme/comm/mpi_plugin/mpi_node.h"

namespace trireme::comm {
namespace {

/// A bootstrap with a communicator of its own.
class OwnMpiBootstrap final : public Bootstrap {
 public:
  explicit OwnMpiBootstrap(MPI_Comm comm) : comm_(comm), bootstrap_(comm) {}
  ~OwnMpiBootstrap() override { MPI_Comm_free(&comm_); }
  bool is_first() const override { return bootstrap_.is_first(); }
  void broadcast(void* data, std::size_t bytes) override { bootstrap_.broadcast(data, bytes); }
  bool all(bool mine) override { return bootstrap_.all(mine); }

 private:
  MPI_Comm comm_;
  MpiBootstrap bootstrap_;
};

}  // namespace

bool MpiBootstrap::is_first() const {
  int rank = 0;
  MPI_Comm_rank(comm_, &rank);
  return rank == 0;
}

void MpiBootstrap::broadcast(void* data, std::size_t bytes) {
  check_mpi(MPI_Bcast(data, static_cast<int>(bytes), MPI_BYTE, 0, comm_), "sharing memory");
}

bool MpiBootstrap::all(bool mine) {
  int value = mine ? 1 : 0, result = 0;
  check_mpi(MPI_Allreduce(&value, &result, 1, MPI_INT, MPI_MIN, comm_), "agreeing on shared memory");
  return result != 0;
}

std::unique_ptr<SharedNode> make_mpi_node(MPI_Comm world, int ranks_per_node) {
  int rank = 0, ranks = 1;
  MPI_Comm_rank(world, &rank);
  MPI_Comm_size(world, &ranks);
  MPI_Comm local = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &local),
            "finding the ranks of this node");
  int first = rank;  // names the node: MPI knows best who shares memory
  check_mpi(MPI_Bcast(&first, 1, MPI_INT, 0, local), "finding the ranks of this node");
  const ProcessCard mine = own_process_card(static_cast<unsigned long>(first));
  std::vector<ProcessCard> cards(static_cast<std::size_t>(ranks));
  check_mpi(MPI_Allgather(&mine, sizeof mine, MPI_BYTE, cards.data(), sizeof mine, MPI_BYTE, world),
            "meeting the other ranks");
  auto node = std::make_unique<SharedNode>(rank, cards, ranks_per_node, [&](const std::vector<int>& locals) {
    MPI_Comm cut = MPI_COMM_NULL;
    check_mpi(MPI_Comm_split(local, locals.front(), rank, &cut), "cutting nodes");
    return std::make_unique<OwnMpiBootstrap>(cut);
  });
  MPI_Comm_free(&local);
  return node;
}

}  // namespace trireme::comm
