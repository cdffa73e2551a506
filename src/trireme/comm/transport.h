// comm/transport.h -- what a transport gives: sends and receives between ranks, and whatever it can do better than
// those.
//
// One object a rank. Algorithms made of sends and receives run on any transport; a transport may also offer a board
// (shared memory) and its library's own collectives. Safeguards (deadlines, matching, counters, recording) live in
// Group and Engine, so that no transport can lack them. All calls come from one thread at a time: the engine holds its
// lock.
// Depends on: call.h, operation.h, board.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string_view>
#include <vector>

#include "trireme/comm/board.h"
#include "trireme/comm/call.h"
#include "trireme/comm/event_count.h"
#include "trireme/comm/operation.h"

namespace trireme::comm {

/// Which messages match: same channel (group), same tag, in the order posted.
struct Envelope {
  int peer = 0;                          // rank in the world
  std::uint32_t channel = 0, tag = 0;    // of the tag, bits 29 and 31 are never set
  CallKey key = {};                      // compared with the other side's
  DeviceKind memory = DeviceKind::kCpu;  // of the data; a call on GPUs has messages between hosts too
};

/// Where what arrives goes: to = arrived, or to = from (+) arrived.
struct Sink {
  void* to = nullptr;
  const void* from = nullptr;  // null: plain receive
  std::size_t count = 0;
  DType type = DType::kU8;
  Reduce reduce = Reduce::kSum;
  std::size_t bytes() const { return count * size_of(type); }
};

/// A posted send or receive. Destroying one that is not done gives it up first.
class Transfer {
 public:
  virtual ~Transfer() = default;
  virtual Progress advance(Effort effort) = 0;
  /// After this nobody touches the caller's memory.
  virtual void abandon() noexcept = 0;

  /// A receive is also done when what came does not match; then this says what the other side had called.
  bool mismatched = false;
  CallKey theirs;
  std::size_t their_bytes = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string_view name() const = 0;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;
  /// Whether ranks are processes, each with a GPU of its own to use; threads share one.
  virtual bool has_processes() const { return false; }
  /// Whether sends and receives take memory of this kind; boards then do too.
  virtual bool moves(DeviceKind kind) const { return kind == DeviceKind::kCpu; }
  /// The node each rank of the world runs on, numbered from 0.
  virtual std::vector<int> node_of() const = 0;

  virtual std::unique_ptr<Transfer> post_send(const Envelope& envelope, const void* data, std::size_t bytes) = 0;
  virtual std::unique_ptr<Transfer> post_recv(const Envelope& envelope, const Sink& sink) = 0;

  /// A new group; all its members are known to be in this call or past it.
  virtual void join(const Members&) {}
  virtual void leave(const Members&) noexcept {}
  /// Shared memory for these ranks; null when they have none in common. Kept by the group.
  virtual std::unique_ptr<Board> make_board(const Members&) { return nullptr; }
  /// The library's own collective; only asked for where has_native(). `agreed`: the ranks have compared their calls
  /// already; otherwise the operation must do so first.
  virtual bool has_native(Op) const { return false; }
  virtual std::unique_ptr<Operation> make_native(const Members&, const Call&, [[maybe_unused]] bool agreed) {
    return nullptr;
  }
  /// This rank failed: what needs the others' cooperation (an orderly end) must not be waited for any more.
  virtual void give_up() noexcept {}

  /// Pushes on what the transport itself has in hand (delayed messages); returns whether anything moved.
  virtual bool progress() { return false; }
  /// Rung when another rank did something for this one; null: progress can only be found by asking again.
  virtual EventCount* event_count() { return nullptr; }
  /// Whether the event count is notified of everything that is pending now, so that one may sleep until it does.
  virtual bool event_count_suffices() const { return true; }
  /// Asked last before a thread sleeps: whether the event count is notified of whatever comes from now on. False:
  /// something has come meanwhile.
  virtual bool may_sleep() { return true; }
  /// When something of this rank falls due by itself (steady clock); for transports that keep time.
  virtual std::int64_t next_event_ns() const { return std::numeric_limits<std::int64_t>::max(); }
};

}  // namespace trireme::comm
