#include "trireme/comm/mpi_plugin/mpi_node.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <random>

#include "trireme/base/log.h"

namespace trireme::comm {
namespace {

bool all_true(MPI_Comm comm, bool mine) {
  int value = mine ? 1 : 0, all = 0;
  check_mpi(MPI_Allreduce(&value, &all, 1, MPI_INT, MPI_MIN, comm), "agreeing on shared memory");
  return all != 0;
}

}  // namespace

bool SharedRegion::create(MPI_Comm comm, std::size_t bytes) {
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  bytes_ = bytes;
  if (rank == 0) {
    static int made = 0;  // the name only has to differ from this process's others
    std::snprintf(name_, sizeof name_, "/trireme-%ld-%d", static_cast<long>(getpid()), made++);
    const int file = shm_open(name_, O_CREAT | O_EXCL | O_RDWR, 0600);
    // Reserved now, so that a full /dev/shm is an answer here and not a SIGBUS later.
    if (file >= 0 && posix_fallocate(file, 0, static_cast<off_t>(bytes)) == 0) {
      void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
      if (at != MAP_FAILED) data_ = at;
    }
    if (file >= 0) close(file);
    if (data_ == nullptr && file >= 0) shm_unlink(name_);
    if (data_ == nullptr) name_[0] = '\0';
  }
  return rank == 0;
}

bool SharedRegion::attach(MPI_Comm comm) {
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  check_mpi(MPI_Bcast(name_, sizeof name_, MPI_BYTE, 0, comm), "sharing memory");
  if (rank != 0 && name_[0] != '\0') {
    const int file = shm_open(name_, O_RDWR, 0600);
    if (file >= 0) {
      void* at = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
      if (at != MAP_FAILED) data_ = at;
      close(file);
    }
  }
  const bool all = all_true(comm, data_ != nullptr);
  if (rank == 0 && name_[0] != '\0') shm_unlink(name_);
  return all;
}

SharedRegion::~SharedRegion() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

MpiNode::MpiNode(MPI_Comm world, int ranks_per_node) {
  int rank = 0, ranks = 1, locals = 1;
  MPI_Comm_rank(world, &rank);
  MPI_Comm_size(world, &ranks);
  check_mpi(MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &local_),
            "finding the ranks of this node");
  if (ranks_per_node > 0) {
    MPI_Comm whole = local_;
    check_mpi(MPI_Comm_split(whole, rank / ranks_per_node, rank, &local_), "cutting nodes");
    MPI_Comm_free(&whole);
  }
  MPI_Comm_rank(local_, &my_local_);
  MPI_Comm_size(local_, &locals);
  int first = rank;
  check_mpi(MPI_Bcast(&first, 1, MPI_INT, 0, local_), "finding the ranks of this node");

#if defined(PR_SET_PTRACER) && defined(PR_SET_PTRACER_ANY)
  // Where the Yama module guards processes from each other, say that ours may read each other. Harmless elsewhere.
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
#endif
  struct About {
    long first, local, process;
    unsigned long probe_address, probe;
  };
  // A random word at a known address: a process of that number in another container would not have it.
  static unsigned long probe = 0;
  probe = (static_cast<unsigned long>(std::random_device{}()) << 32) | std::random_device{}();
  const About mine{first, my_local_, getpid(), reinterpret_cast<unsigned long>(&probe), probe};
  std::vector<About> all(static_cast<std::size_t>(ranks));
  check_mpi(MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all.data(), sizeof mine, MPI_BYTE, world),
            "meeting the other ranks");

  std::map<long, int> numbers;
  bool permitted = true;
  for (const About& about : all) {
    const int number = numbers.try_emplace(about.first, static_cast<int>(numbers.size())).first->second;
    node_of_.push_back(number);
    local_of_.push_back(static_cast<int>(about.local));
    processes_.push_back(static_cast<pid_t>(about.process));
    if (about.first != first || about.process == mine.process) continue;
    permitted &= RemoteMemory::permitted(static_cast<pid_t>(about.process),
                                         reinterpret_cast<const void*>(about.probe_address), about.probe);
  }
  my_node_ = node_of_[static_cast<std::size_t>(rank)];
  may_touch_ = all_true(local_, permitted);
  if (!may_touch_ && locals > 1) {
    log_debug(
        "the system does not let the ranks of this node read each other's memory: 'direct' is for small calls only");
  }
  event_counts_ = SharedRegion::make(local_, sizeof(EventCount) * static_cast<std::size_t>(locals), [&](void* at) {
    for (int i = 0; i < locals; ++i) new (static_cast<EventCount*>(at) + i) EventCount;
  });
}

MpiNode::~MpiNode() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (local_ != MPI_COMM_NULL && finalized == 0) MPI_Comm_free(&local_);
}

std::unique_ptr<Board> MpiNode::make_board(MPI_Comm comm, const Members& members) {
  for (const int r : members.ranks) {
    if (node_of_[static_cast<std::size_t>(r)] != my_node_) return nullptr;
  }
  if (!event_counts_) return nullptr;
  const int ranks = static_cast<int>(members.ranks.size());
  const std::size_t slot = slot_bytes(/*processes=*/true, ranks);
  auto region =
      SharedRegion::make(comm, BoardMemory::bytes(ranks, slot), [&](void* at) { BoardMemory::construct(at, ranks); });
  if (!region) return nullptr;
  auto& memory = *reinterpret_cast<BoardMemory*>(region->data());
  std::vector<EventCount*> event_counts;
  std::vector<pid_t> processes;
  for (const int r : members.ranks) {
    event_counts.push_back(event_count_of(local_of_[static_cast<std::size_t>(r)]));
    processes.push_back(processes_[static_cast<std::size_t>(r)]);
  }
  using Regions = std::pair<std::shared_ptr<SharedRegion>, std::shared_ptr<SharedRegion>>;
  return std::make_unique<Board>(Board::Parts{.memory = memory,
                                              .me = members.me,
                                              .ranks = ranks,
                                              .slot_bytes = slot,
                                              .event_counts = std::move(event_counts),
                                              .keep_alive = std::make_shared<Regions>(std::move(region), event_counts_),
                                              .remote = RemoteMemory(std::move(processes)),
                                              .pointers = may_touch_});
}

}  // namespace trireme::comm
