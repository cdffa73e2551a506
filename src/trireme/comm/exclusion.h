// comm/exclusion.h -- mutual exclusion by messages (Lamport 1978): one rank at a time, without a server and without a
// shared lock file, granted in the order of logical clocks.
//
// A rank that wants the resource stamps a request with its clock, sends it to all and keeps it in its queue; whoever
// receives one queues it and acknowledges. A rank may enter when its own request is the earliest in its queue, by
// (clock, rank), and it has heard something later than it from every other rank. Leaving, it sends a release. That is 3
// (n - 1) messages an entry. Channels between two ranks must keep their order: explore_exclusion() (exclusion_check.h)
// shows what happens when they do not.
//
// ExclusionProcess decides and sends nothing: messages in, messages out. MutualExclusion carries it out over the
// control plane.
// Depends on: control.
#pragma once

#include <chrono>
#include <compare>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "trireme/comm/control.h"

namespace trireme::comm {

/// When and by whom: the total order of requests.
struct ClockStamp {
  std::int64_t clock = 0;
  int rank = 0;
  auto operator<=>(const ClockStamp&) const = default;
};

struct ExclusionMessage {
  enum class Kind : std::uint8_t { kRequest, kAcknowledge, kRelease };
  Kind kind = Kind::kRequest;
  int from = 0, to = 0;
  std::int64_t clock = 0;
  auto operator<=>(const ExclusionMessage&) const = default;
};

/// One rank's part, as a value.
class ExclusionProcess {
 public:
  using Messages = std::vector<ExclusionMessage>;

  ExclusionProcess(int rank, int ranks);

  int rank() const { return rank_; }
  std::int64_t clock() const { return clock_; }
  /// This rank's own request, from request() until release().
  std::optional<ClockStamp> requested() const;
  bool inside() const { return inside_; }
  /// Its request is the earliest, and every other rank has been heard of after it.
  bool may_enter() const;
  /// The ranks from which nothing later than the request has come, and those with an earlier one.
  std::vector<int> waits_for() const;
  /// Whether the request is the earliest in the queue: the first half of may_enter().
  bool is_first() const;

  /// Of another rank, as far as is known here: the clock of its request, 0 without one; the clock of its last message.
  std::int64_t request_of(int rank) const { return requests_[static_cast<std::size_t>(rank)]; }
  std::int64_t heard_of(int rank) const { return heard_[static_cast<std::size_t>(rank)]; }

  Messages request();
  void enter();
  Messages release();
  Messages receive(const ExclusionMessage& message);

 private:
  Messages to_all(ExclusionMessage::Kind kind);

  int rank_, ranks_;
  std::int64_t clock_ = 0;
  bool inside_ = false;
  std::vector<std::int64_t> requests_;  // [rank]: the clock of its request; 0: none
  std::vector<std::int64_t> heard_;     // [rank]: the clock of the last message from it
};

/// The same resource on all ranks, by name. Every rank must have one while any rank locks, since all acknowledge; each
/// has a thread that does so. Destroy them when nobody will lock any more.
class MutualExclusion {
 public:
  /// `plane` is borrowed and outlives it.
  MutualExclusion(ControlPlane& plane, std::string name);
  ~MutualExclusion();
  MutualExclusion(const MutualExclusion&) = delete;
  MutualExclusion& operator=(const MutualExclusion&) = delete;

  /// Until this rank is the only one inside. CommError that names the ranks it waits for when that takes longer than
  /// `timeout`: a rank that is gone, or has no such lock, never acknowledges. The request stays, as messages cannot be
  /// taken back: the lock is of no use from then on.
  void lock(std::chrono::milliseconds timeout);
  void unlock();

  std::int64_t messages_sent() const;
  std::int64_t entries() const;

 private:
  void serve();
  void send(const ExclusionProcess::Messages& messages);
  std::string box(int rank) const;

  ControlPlane& plane_;
  std::string name_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  ExclusionProcess process_;
  std::int64_t sent_ = 0, entries_ = 0;
  bool stopping_ = false, broken_ = false;
  std::exception_ptr lost_;  // the plane is gone
  std::thread server_;       // last: it uses all of the above
};

}  // namespace trireme::comm
