// comm/ucx_plugin/ucx_mailbox.h -- a mailbox between processes: frames of MailProtocol as UCX's active messages.
//
// Mailboxes find each other by a directory in the control plane: address -> worker address and incarnation. An endpoint
// is made at the first mail to somebody, or from somebody. When it breaks, it is made anew, with what the directory
// says then, until the other side answers; what was under way is the protocol's business. Each direction breaks alone:
// every message tells how often its sender has connected, and a higher number than before is answered with a hello.
//
// A mailbox has two workers: endpoints are made from one, to the other one of its peers, which makes none. UCX 1.13
// takes two endpoints that workers make to each other for the two ends of one connection, by the order in which they
// were made, and ends the process where one of them is gone when the other's request arrives. Here no two ever are. It
// also ends the process that is just answering such a request when the one who made it is gone. And of an endpoint that
// has ended it keeps the socket until the other side ends; where that was by force in the middle of a message, it goes
// on waiting to write there as well, and then ends the process when the other side ends: it reads first, which frees
// the endpoint, and writes then. So every message waits for the peer's answer to the connection; an endpoint is ended
// by force when its peer has told that it heard on it and nothing of it is being sent, or when UCX says that it broke.
// One that is given up earlier is left aside until that holds.
//
// Silence is no word from a peer since it owes one, for longer than what was sent takes on a slow link.
//
// A thread sleeps on UCX's event descriptor; whoever posts or takes mail pushes frames out at once. One mutex guards
// everything; UCX's callbacks only note what happened.
// Depends on: mailbox.h, ucx_context.h.
#pragma once

#include <atomic>
#include <condition_variable>
#include <list>
#include <map>
#include <mutex>
#include <thread>

#include "trireme/comm/control.h"
#include "trireme/comm/mailbox.h"
#include "trireme/comm/ucx_plugin/ucx_context.h"
#include "trireme/comm/ucx_plugin/ucx_plugin.h"

namespace trireme::comm {

/// What leads a frame.
struct UcxMailHeader {
  unsigned char session[kSessionBytes] = {};
  std::int32_t from = 0;
  std::uint32_t unused = 0;
  std::uint64_t incarnation = 0;        // of the sender
  std::uint64_t connection = 0;         // how often the sender has connected to this receiver; from 1
  std::uint64_t heard_incarnation = 0;  // of the receiver, as the sender knows it
  std::uint64_t heard_connection = 0;   // the receiver's, that the sender has heard on
};

class UcxMailbox final : public Mailbox {
 public:
  UcxMailbox(ControlPlane& control, const UcxMailOptions& options);
  ~UcxMailbox() override;

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
  using Clock = std::chrono::steady_clock;
  struct Arrival {
    UcxMailHeader header;
    std::string bytes;
  };
  /// An endpoint that is given up, of which something is still being sent.
  struct Left {
    ucp_ep_h endpoint;
    bool is_broken;
  };
  struct Peer {
    int address = 0;
    ucp_ep_h endpoint = nullptr;
    bool failed = false;     // the endpoint is still to be closed
    bool is_broken = false;  // UCX says so
    bool is_heard = false;   // the peer has heard on this endpoint
    std::vector<Left> left;
    std::uint64_t connections = 0;                         // how often we have connected
    std::uint64_t incarnation = 0, their_connections = 0;  // as its messages tell
    std::uint64_t endpoint_incarnation = 0;                // whom the endpoint was made to
    std::uint64_t frames = 0;                              // sent on this endpoint
    Clock::time_point heard = {};                          // last
    std::optional<Clock::time_point> owes;                 // an answer, since then
    std::size_t sent = 0, longest = 0;                     // bytes since then; of them, the longest frame
    int silences = 0;                                      // how often it was given up since all mail was taken
    Clock::time_point retry = {};                          // not before
    std::chrono::milliseconds wait{0};                     // before the retry after the next
    Clock::time_point same_again = {};                     // to the same process not before
    std::chrono::milliseconds same_wait{0};                // before that after the next
    std::vector<Arrival> early;                            // came before we could answer
    bool absent = false;                                   // not in the directory when it was last looked up
  };
  struct Sending {
    UcxMailHeader header;
    std::string bytes;
    ucp_ep_h endpoint = nullptr;
    void* request = nullptr;
  };
  struct Closing {
    int address;
    void* request;
  };
  static ucs_status_t on_message(void* self, const void* header, std::size_t header_bytes, void* data,
                                 std::size_t bytes, const ucp_am_recv_param_t* param);
  static void on_failure(void* peer, ucp_ep_h endpoint, ucs_status_t status);

  void join_directory();
  void run();
  // These need the lock.
  bool progress();
  bool progress_workers();
  void take_arrival(Peer& peer, const Arrival& arrival);
  void give_to_protocol(Peer& peer, const Arrival& arrival);
  void close_endpoint(Peer& peer);
  void close(int address, ucp_ep_h endpoint, bool by_force);
  bool is_sending(ucp_ep_h endpoint) const;
  std::chrono::milliseconds patience_with(const Peer& peer) const;
  bool may_be_replaced(const Peer& peer) const;
  void look_after_silence(Clock::time_point now);
  void look_after_failures();
  void look_after_left();
  void reap();
  void pump();
  void send(Peer& peer, const MailFrame& frame);
  Peer& peer_at(int address);
  std::vector<int> to_look_up(Clock::time_point now) const;
  void connect(int address, const std::string& worker, std::uint64_t incarnation);
  Clock::time_point next_retry() const;
  bool is_settled() const;
  bool wait_until(std::unique_lock<std::mutex>& lock, const std::function<bool()>& ready);
  // These must not have it.
  void look_up(const std::vector<int>& addresses);
  void wake();

  ControlPlane& control_;
  const UcxMailOptions options_;
  std::string session_;
  std::uint64_t incarnation_ = 0;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  UcxContext in_, out_;  // whom others send to; from where we send
  std::optional<MailProtocol> protocol_;
  std::map<int, Peer> peers_;  // nodes stay where they are: endpoints point to them
  std::list<Sending> sending_;
  std::vector<Arrival> arrived_;
  std::vector<Closing> closing_;
  std::uint64_t refused_ = 0;
  std::atomic<bool> stop_{false};
  int wake_fd_ = -1;
  std::thread thread_;
};

}  // namespace trireme::comm
