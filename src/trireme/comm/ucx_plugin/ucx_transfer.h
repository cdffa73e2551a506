// comm/ucx_plugin/ucx_transfer.h -- sends and receives over UCX, and how messages meet them.
//
// A short message brings its data along and goes straight into place when its receive is posted; the data of a long one
// stays with the sender until then (UCX's rendezvous) and is fetched into place. Messages of one rank are numbered and
// met in that order, whichever way UCX took them.
// Depends on: transport.h, ucx_worker.h.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "trireme/comm/transport.h"
#include "trireme/comm/ucx_plugin/ucx_worker.h"

namespace trireme::comm {

class UcxMatcher;

/// A message that is here, or whose description is.
struct UcxArrival {
  UcxHeader header;
  std::vector<std::byte> copy;  // a short one's data
  void* description = nullptr;  // a long one's; owned
};

/// Memory into which data is fetched that is combined afterwards.
struct UcxScratch {
  std::unique_ptr<std::byte[]> memory;
  std::size_t capacity = 0;
};

/// A posted receive as the worker sees it.
struct UcxReception {
  enum class State : std::uint8_t {
    kWaiting,
    kMatched,   ///< a long message is here; its data can be fetched
    kFetching,  ///< UCX writes into the memory
    kFetched,   ///< the data is there; what must be combined is not yet
    kDone,
    kFailed,  ///< the fetch broke off: the peer's failure says why
  };
  int from = 0;
  std::uint32_t channel = 0, tag = 0;
  CallKey key = {};
  Sink sink = {};
  std::atomic<State> state = State::kWaiting;  // written under the lock; who only asks reads it without
  bool mismatched = false;
  UcxHeader header = {};
  void* description = nullptr;
  void* request = nullptr;
  UcxScratch scratch = {};
  UcxMatcher* matcher = nullptr;  // for UCX's callback
};

/// All messages and receives of this rank. Everything needs the worker's lock.
class UcxMatcher final : public UcxReceiver {
 public:
  UcxMatcher(UcxWorker& worker, int ranks) : worker_(worker), lanes_(static_cast<std::size_t>(ranks)) {}
  /// Gives back what nobody fetched; after the worker's goodbye, before it is destroyed.
  void release_all();

  void post(UcxReception& reception);
  void remove(UcxReception& reception);
  /// A message of this rank to itself.
  void deliver_own(const UcxHeader& header, const void* data);
  /// Drops what came for a group that is no more.
  void drop(std::uint32_t channel);

  bool arrived(const UcxHeader& header, void* data, std::size_t bytes, bool deferred) override;
  bool start_fetches() override;

  /// Headers of sends that were given up while UCX may still read them.
  std::vector<std::unique_ptr<UcxHeader>> still_sending;

 private:
  struct Lane {
    std::uint64_t next = 0;                     // number of the message that is due
    std::map<std::uint64_t, UcxArrival> early;  // came before their turn
    std::deque<UcxArrival> messages;
    std::deque<UcxReception*> receptions;
  };
  void take(Lane& lane, UcxArrival arrival);
  void meet(UcxReception& reception, UcxArrival& arrival, const void* data);
  bool take_scratch(UcxReception& reception);
  void fetch(UcxReception& reception);
  void fetched(UcxReception& reception, ucs_status_t status);
  static void on_fetched(void* request, ucs_status_t status, std::size_t bytes, void* reception);
  void release(void* description);
  Lane& lane(int from) { return lanes_[static_cast<std::size_t>(from)]; }

  UcxWorker& worker_;
  std::vector<Lane> lanes_;             // by rank they come from
  std::deque<UcxReception*> to_fetch_;  // matched, not begun
  std::vector<UcxScratch> scratch_;     // free
  std::size_t scratch_in_use_ = 0;      // bytes
  int scratch_users_ = 0;
  std::uint64_t own_sent_ = 0;
};

class UcxSend final : public Transfer {
 public:
  UcxSend(UcxWorker& worker, UcxMatcher& matcher, const Envelope& envelope, const void* data, std::size_t bytes);
  ~UcxSend() override { abandon(); }
  Progress advance(Effort effort) override;
  void abandon() noexcept override;

 private:
  static void on_sent(void* request, ucs_status_t status, void* self);

  UcxWorker& worker_;
  UcxMatcher& matcher_;
  const int to_;
  std::atomic<bool> ended_{false};  // UCX has called back
  std::unique_ptr<UcxHeader> header_;
  ucs_status_ptr_t request_ = nullptr;
  bool done_ = false;
};

class UcxRecv final : public Transfer {
 public:
  UcxRecv(UcxWorker& worker, UcxMatcher& matcher, const Envelope& envelope, const Sink& sink);
  ~UcxRecv() override { abandon(); }
  Progress advance(Effort effort) override;
  void abandon() noexcept override;

 private:
  UcxWorker& worker_;
  UcxMatcher& matcher_;
  UcxReception reception_;
  bool done_ = false;
};

}  // namespace trireme::comm
