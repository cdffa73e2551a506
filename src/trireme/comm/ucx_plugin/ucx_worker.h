// comm/ucx_plugin/ucx_worker.h -- the endpoints of a rank to the others of its world, and a thread that keeps them
// going while nobody asks.
//
// Messages are UCP active messages: nothing is posted that could outlive a dead peer, and what arrives is ours to
// match. Every one carries the session, random bytes that ranks learn through the control plane alone: UCX has no
// credentials, and whoever speaks its protocol reaches its port. Endpoints are made at the first message to a peer.
//
// One mutex guards everything, callbacks included, which UCX calls from within progress.
// Depends on: ucx_context.h.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "trireme/comm/call.h"
#include "trireme/comm/event_count.h"
#include "trireme/comm/ucx_plugin/ucx_context.h"

namespace trireme::comm {

/// What leads a message.
struct UcxHeader {
  unsigned char session[kSessionBytes] = {};
  std::uint32_t from = 0;
  std::uint32_t channel = 0, tag = 0;
  std::uint32_t kind = 0;      // kData, kBye
  std::uint64_t sequence = 0;  // among the messages from that rank to this one
  std::uint64_t bytes = 0;
  CallKey key = {};
};
inline constexpr std::uint32_t kUcxData = 0, kUcxBye = 1;

/// Where messages go. Called with the worker's mutex held.
class UcxReceiver {
 public:
  virtual ~UcxReceiver() = default;
  /// `data` is good until this returns, unless `deferred`: then it is UCX's description of data that still is with the
  /// sender, kept until fetched or released. Returns whether it is kept.
  virtual bool arrived(const UcxHeader& header, void* data, std::size_t bytes, bool deferred) = 0;
  /// After each progress, outside UCX's callbacks: fetches of deferred data start here.
  virtual bool start_fetches() = 0;
};

class UcxWorker;

struct UcxPeer {
  std::string host, address;  // address: of its worker
  ucp_ep_h endpoint = nullptr;
  std::uint64_t sent = 0;  // messages to it
  bool heard = false, said_bye = false;
  ucs_status_t failure = UCS_OK;  // why its endpoint is of no more use
  std::int64_t failed_ns = 0;     // since when
  UcxWorker* worker = nullptr;    // whose peer it is, for UCX's callback
};

/// Called from within progress when a send that did not end at once has ended.
struct UcxOnSent {
  ucp_send_nbx_callback_t cb = nullptr;
  void* argument = nullptr;
};

class UcxWorker {
 public:
  UcxWorker(const ChosenInterfaces& interfaces, EventCount& fallback);
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  const std::string& address() const { return ucx_.address(); }

  /// From here on messages are sent and taken.
  void start(int rank, std::vector<UcxPeer> peers, const std::string& session, UcxReceiver& receiver);
  /// The end: takes leave of the others, lets the receiver `release` what it keeps of UCX's, and closes endpoints.
  void stop(const std::function<void()>& release);
  /// Who is notified when something happened; the fallback until then.
  void notify_at(EventCount* event_count) { event_count_.store(event_count, std::memory_order_release); }

  std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }
  int rank() const { return rank_; }
  // These need the lock.
  UcxPeer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  ucp_worker_h handle() { return ucx_.worker(); }
  /// Sends; `header` is filled in but for what the call says, and lives as long as the request. Null: done already.
  /// Nothing, with the peer's failure set, when the endpoint is gone.
  ucs_status_ptr_t send(int to, UcxHeader& header, const void* data, std::size_t bytes, const UcxOnSent& on_sent = {});
  /// Closes the endpoint at once: what is under way ends, and the caller's memory is left alone.
  void cut(int to, ucs_status_t why);
  /// The first reason counts.
  void note_failure(UcxPeer& peer, ucs_status_t why);
  /// "rank 2 on node7: Connection reset by remote peer".
  std::string describe_failure(int rank) const;

  /// Whether any endpoint has failed. Needs no lock.
  bool has_failures() const { return failures_.load(std::memory_order_acquire); }

  /// Pushes on; returns whether anything moved. Takes the lock.
  bool progress();
  /// Whether this thread may sleep on the event count: it is notified of whatever comes from now on. Takes the lock.
  bool may_sleep();
  /// No more waiting for others at the end.
  void give_up() { gave_up_ = true; }

 private:
  static ucs_status_t on_message(void* self, const void* header, std::size_t header_bytes, void* data,
                                 std::size_t bytes, const ucp_am_recv_param_t* param);
  static void on_failure(void* peer, ucp_ep_h endpoint, ucs_status_t status);

  bool progress_locked();
  ucp_ep_h endpoint_to(int rank);
  bool is_ours(const UcxHeader& header, std::size_t header_bytes);
  void run();
  void wake();
  void say_goodbye();
  void close_endpoints();

  UcxContext ucx_;
  int wake_fd_ = -1;

  std::mutex mutex_;
  int rank_ = 0;
  std::vector<UcxPeer> peers_;
  std::string session_;
  UcxReceiver* receiver_ = nullptr;
  std::uint64_t refused_ = 0;  // messages of strangers
  std::atomic<bool> gave_up_{false};
  std::vector<UcxHeader> goodbyes_;  // live until the worker is gone: one may still be on its way

  std::atomic<EventCount*> event_count_;
  std::atomic<bool> failures_{false};
  std::atomic<std::uint64_t> polls_{0};     // by threads that wait
  std::atomic<bool> waiter_asleep_{false};  // one of those is going to sleep: the thread takes over
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace trireme::comm
