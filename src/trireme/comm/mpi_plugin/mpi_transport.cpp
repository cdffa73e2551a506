// The MPI endpoint of a process: one communicator a group, sends and receives with headers, boards on one node.
#include <memory>

#include "trireme/base/error.h"
#include "trireme/comm/mpi_plugin/mpi_mailbox.h"
#include "trireme/comm/mpi_plugin/mpi_native.h"
#include "trireme/comm/mpi_plugin/mpi_plugin.h"
#include "trireme/comm/mpi_plugin/mpi_transfer.h"
#include "trireme/comm/shared_node.h"

namespace trireme::comm {
namespace {

/// MPI itself, started when nobody has, and ended in good order only when all ranks got that far.
class MpiLibrary {
 public:
  MpiLibrary() {
    int initialized = 0;
    MPI_Initialized(&initialized);
    if (initialized == 0) {
      int provided = MPI_THREAD_SINGLE;
      check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "starting MPI");
      started_ = true;
    }
    int level = MPI_THREAD_SINGLE;
    MPI_Query_thread(&level);
    if (level < MPI_THREAD_SERIALIZED) {
      throw CommError("MPI was started without thread support, but a background thread pushes pending calls on",
                      "start MPI with MPI_Init_thread and MPI_THREAD_SERIALIZED or higher");
    }
  }
  ~MpiLibrary() {
    if (started_ && !gave_up) MPI_Finalize();
  }
  MpiLibrary(const MpiLibrary&) = delete;
  MpiLibrary& operator=(const MpiLibrary&) = delete;

  bool gave_up = false;

 private:
  bool started_ = false;
};

/// The ranks of a communicator, which is borrowed.
class MpiBootstrap final : public Bootstrap {
 public:
  explicit MpiBootstrap(MPI_Comm comm) : comm_(comm) {}
  bool is_first() const override {
    int rank = 0;
    MPI_Comm_rank(comm_, &rank);
    return rank == 0;
  }
  void broadcast(void* data, std::size_t bytes) override {
    check_mpi(MPI_Bcast(data, static_cast<int>(bytes), MPI_BYTE, 0, comm_), "sharing memory");
  }
  bool all(bool mine) override {
    int value = mine ? 1 : 0, result = 0;
    check_mpi(MPI_Allreduce(&value, &result, 1, MPI_INT, MPI_MIN, comm_), "agreeing on shared memory");
    return result != 0;
  }

 private:
  MPI_Comm comm_;
};

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

/// The ranks of this node as MPI finds them. All ranks of `world` call this.
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

class MpiTransport final : public Transport {
 public:
  explicit MpiTransport(int ranks_per_node) {
    check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &world_), "starting MPI");
    MPI_Comm_set_errhandler(world_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(world_, &rank_);
    MPI_Comm_size(world_, &ranks_);
    node_ = make_mpi_node(world_, ranks_per_node);
    mail_ = std::make_shared<MpiMailHub>(world_);
    set_mpi_mail_hub(mail_);
  }
  ~MpiTransport() override {
    set_mpi_mail_hub(nullptr);
    mail_->close(library_.gave_up);
    const std::lock_guard calls(mpi_calls());
    node_.reset();
    if (library_.gave_up) return;
    for (auto& [channel, comm] : comms_) {
      if (comm != world_) MPI_Comm_free(&comm);
    }
    MPI_Comm_free(&world_);
  }

  std::string_view name() const override { return "mpi"; }
  bool has_processes() const override { return true; }
  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }
  std::vector<int> node_of() const override { return node_->node_of(); }

  std::unique_ptr<Transfer> post_send(const Envelope& envelope, const void* data, std::size_t bytes) override {
    return std::make_unique<MpiSend>(resources_, world_of(envelope.channel), place(envelope),
                                     static_cast<int>(envelope.tag), envelope.key, data, bytes);
  }
  std::unique_ptr<Transfer> post_recv(const Envelope& envelope, const Sink& sink) override {
    return std::make_unique<MpiRecv>(resources_, world_of(envelope.channel), place(envelope),
                                     static_cast<int>(envelope.tag), envelope.key, sink);
  }

  void join(const Members& members) override {
    const std::lock_guard calls(mpi_calls());
    MPI_Comm comm = world_;
    if (static_cast<int>(members.ranks.size()) != ranks_ || members.channel != 0) {
      MPI_Group everyone = MPI_GROUP_NULL, chosen = MPI_GROUP_NULL;
      MPI_Comm_group(world_, &everyone);
      MPI_Group_incl(everyone, static_cast<int>(members.ranks.size()), members.ranks.data(), &chosen);
      // Only the members take part, and they are all here: this cannot wait for anybody else.
      const int code = MPI_Comm_create_group(world_, chosen, static_cast<int>(members.channel & 0x7fff), &comm);
      MPI_Group_free(&chosen);
      MPI_Group_free(&everyone);
      check_mpi(code, "making a group");
      MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    }
    comms_[members.channel] = comm;
    std::vector<int> places(static_cast<std::size_t>(ranks_), -1);
    for (std::size_t i = 0; i < members.ranks.size(); ++i) {
      places[static_cast<std::size_t>(members.ranks[i])] = static_cast<int>(i);
    }
    places_[members.channel] = std::move(places);
  }
  void leave(const Members& members) noexcept override {
    // Freeing a communicator waits for all its members; the memory is small and goes with the transport.
    places_.erase(members.channel);
  }
  std::unique_ptr<Board> make_board(const Members& members) override {
    if (!node_->can_share(members)) return nullptr;
    const std::lock_guard calls(mpi_calls());
    MpiBootstrap bootstrap(comms_.at(members.channel));
    return node_->make_board(bootstrap, members);
  }

  bool has_native(Op op) const override { return is_collective(op); }
  std::unique_ptr<Operation> make_native(const Members& members, const Call& call, bool agreed) override {
    return std::make_unique<MpiNative>(comms_.at(members.channel), call, agreed, resources_.under_way);
  }
  void give_up() noexcept override { library_.gave_up = true; }

  EventCount* event_count() override { return node_->event_count(); }
  bool event_count_suffices() const override { return resources_.under_way == 0; }
  void broadcast(void* data, std::size_t bytes) {
    const std::lock_guard calls(mpi_calls());
    check_mpi(MPI_Bcast(data, static_cast<int>(bytes), MPI_BYTE, 0, world_), "telling the ranks");
  }

 private:
  MPI_Comm world_of(std::uint32_t channel) const { return comms_.at(channel); }
  int place(const Envelope& envelope) const {
    return places_.at(envelope.channel)[static_cast<std::size_t>(envelope.peer)];
  }

  MpiLibrary library_;
  MPI_Comm world_ = MPI_COMM_NULL;
  int rank_ = 0, ranks_ = 1;
  std::unique_ptr<SharedNode> node_;
  std::shared_ptr<MpiMailHub> mail_;                  // with the mailboxes of the process
  std::map<std::uint32_t, MPI_Comm> comms_;           // by channel
  std::map<std::uint32_t, std::vector<int>> places_;  // rank in the communicator by rank in the world
  MpiResources resources_;
};

/// MPI is one a process, and so is its transport.
std::weak_ptr<MpiMailHub>& the_mail_hub() {
  static std::weak_ptr<MpiMailHub> hub;
  return hub;
}

}  // namespace

std::shared_ptr<MpiMailHub> mpi_mail_hub() { return the_mail_hub().lock(); }
void set_mpi_mail_hub(const std::shared_ptr<MpiMailHub>& hub) { the_mail_hub() = hub; }

}  // namespace trireme::comm

extern "C" trireme::comm::Transport* trireme_mpi_transport(int ranks_per_node) {
  return new trireme::comm::MpiTransport(ranks_per_node);
}

extern "C" void trireme_mpi_broadcast(trireme::comm::Transport* transport, void* data, std::size_t bytes) {
  static_cast<trireme::comm::MpiTransport*>(transport)->broadcast(data, bytes);
}
