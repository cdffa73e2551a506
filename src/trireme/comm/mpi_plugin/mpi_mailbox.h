// comm/mpi_plugin/mpi_mailbox.h -- mailboxes between ranks of MPI: frames of MailProtocol as messages of a communicator
// of their own.
//
// All mailboxes of a process share one hub, whose thread sends and takes frames; MPI is asked again and again while
// some mailbox is open, since it tells nobody that something has come. A directory in the control plane says on which
// rank an address is. MPI loses nothing, but an address may be given to another mailbox later: what went to the one
// before is lost, so a connection whose other end owes an answer and is silent is made anew.
// Depends on: mailbox.h, control.h, mpi_common.h.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "trireme/comm/control.h"
#include "trireme/comm/mailbox.h"
#include "trireme/comm/mpi_plugin/mpi_common.h"
#include "trireme/comm/mpi_plugin/mpi_plugin.h"

namespace trireme::comm {

/// Bytes to ranks and from them. Not locked: the hub's thread alone uses it.
class MpiCarrier {
 public:
  struct Arrival {
    int rank = 0;
    std::vector<std::byte> bytes;
  };
  explicit MpiCarrier(MPI_Comm comm) : comm_(comm) {}
  /// They arrive in the order in which they were sent to that rank.
  void send(int rank, std::vector<std::byte> bytes);
  /// Pushes on what is under way; what has arrived since, of each rank in its order.
  std::vector<Arrival> take();
  bool is_idle() const { return sending_.empty(); }
  /// Nothing is received any more. What is still being sent is left to MPI.
  void close();

 private:
  /// What goes first: the whole of a short message, the length of a long one.
  static constexpr std::size_t kShort = 8 << 10;
  struct Sending {
    std::vector<std::byte> first, rest;
    std::vector<MPI_Request> requests;
  };
  struct Receiving {
    std::vector<std::byte> bytes;
    std::vector<MPI_Request> requests;
  };
  void expect();

  const MPI_Comm comm_;
  MPI_Request next_ = MPI_REQUEST_NULL;
  std::vector<std::byte> first_ = std::vector<std::byte>(sizeof(std::uint64_t) + kShort);
  std::list<Sending> sending_;
  std::map<int, std::deque<Receiving>> receiving_;  // by rank
};

class MpiMailHub;

class MpiMailbox final : public Mailbox {
 public:
  MpiMailbox(std::shared_ptr<MpiMailHub> hub, ControlPlane& control, const MpiMailOptions& options);
  ~MpiMailbox() override;

  int address() const override { return options_.address; }
  void post(int to, std::uint32_t tag, int priority, std::span<const std::byte> bytes) override;
  bool try_post_parts(int to, std::uint32_t tag, int priority, std::span<const std::byte> head,
                      std::span<const std::byte> rest) override;
  Mail receive(std::optional<std::uint32_t> tag) override;
  std::optional<Mail> receive_for(Milliseconds time, std::optional<std::uint32_t> tag) override;
  std::optional<Mail> try_receive(std::optional<std::uint32_t> tag) override;
  std::vector<Mail> take_returned() override;
  QueueReading queue() const override;

 private:
  friend class MpiMailHub;
  using Clock = std::chrono::steady_clock;
  struct Peer {
    int rank = -1;
    std::uint64_t connections = 0;                         // how often we have connected
    std::uint64_t incarnation = 0, their_connections = 0;  // as its frames tell
    Clock::time_point heard = {};
    std::chrono::milliseconds patience{500};  // with one that owes an answer
  };
  bool find_peer(int address, std::chrono::milliseconds patience);
  void connect(int address, int rank);
  /// A frame from a rank; with the hub's lock.
  void give(int rank, const struct MpiMailHead& head, const MailFrame& frame);
  std::vector<int> silent_peers(Clock::time_point now) const;

  const std::shared_ptr<MpiMailHub> hub_;  // by all mailboxes of the process and its transport
  ControlPlane& control_;
  const MpiMailOptions options_;
  std::uint64_t incarnation_ = 0;
  std::optional<MailProtocol> protocol_;
  std::map<int, Peer> peers_;
  std::condition_variable changed_;
};

/// The mailboxes of this process, and the thread that carries their mail.
class MpiMailHub {
 public:
  /// On all ranks of `world` together.
  explicit MpiMailHub(MPI_Comm world);
  ~MpiMailHub() { close(/*gave_up=*/false); }
  /// Before MPI ends. `gave_up`: no call of MPI any more.
  void close(bool gave_up);

 private:
  friend class MpiMailbox;
  void open(MpiMailbox& mailbox);
  void shut(MpiMailbox& mailbox);
  void run();
  bool pass();
  std::vector<MpiCarrier::Arrival> collect(bool& moved);
  void wake();
  void check() const {
    if (failure_) std::rethrow_exception(failure_);
  }

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  MpiCarrier carrier_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::map<int, MpiMailbox*> boxes_;  // by address
  bool awake_ = false, stop_ = false, carrier_idle_ = true;
  std::uint64_t passes_ = 0, in_vain_ = 0;  // passes; since one moved something
  std::exception_ptr failure_;
  std::thread thread_;
};

/// That of this process's transport; null: MPI was not started here.
std::shared_ptr<MpiMailHub> mpi_mail_hub();
void set_mpi_mail_hub(const std::shared_ptr<MpiMailHub>& hub);

}  // namespace trireme::comm
