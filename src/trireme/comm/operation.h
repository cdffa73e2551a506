// comm/operation.h -- a call in progress: a state machine that the engine pushes on, never a thread that blocks.
//
// Board operations (shared memory), routines (sends and receives) and a transport library's own collectives are its
// kinds.
// Depends on: call.h.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/comm/call.h"

namespace trireme::comm {

class Group;
struct CallFacts;

enum class Progress : std::uint8_t {
  kStuck,  ///< nothing could be done: others have to act first
  kMoved,  ///< something was done, there is more
  kDone,
};

/// How much an advance() may do. Posting a large call must not keep the caller from its computing.
enum class Effort : std::uint8_t { kPost, kWork };

/// A call among those that a GPU was given for the same ranks, counted from 1.
struct GpuPosition {
  std::string ranks;  // "0,1,3", of the world
  std::uint64_t number = 0;
};

class Operation {
 public:
  enum class Status : std::uint8_t { kPending, kDone, kFailed };
  virtual ~Operation() = default;

  /// As far as it goes without waiting for others. Called by one thread at a time. Throws CommError.
  virtual Progress advance(Effort effort) = 0;
  /// Gives up: when it returns, nobody touches the caller's memory any more.
  virtual void abandon() noexcept = 0;
  /// Whether it must go on while its caller does not wait for it, for others' sake or for overlap.
  virtual bool needs_background() const { return true; }
  /// Whether a library has been told of it, so that it may be told of the next one.
  virtual bool has_started() const { return true; }
  /// Bytes this rank has sent to others for it; known once done.
  virtual std::uint64_t sent_bytes() const = 0;
  /// In the thread that waited for it, once it is done: the last thing before wait() returns.
  virtual void after_wait() {}
  /// Whether nobody notifies this rank when it can go on: then it is asked again and again.
  virtual bool needs_polling() const { return false; }
  /// Whether the caller goes on only when it is done here: nobody else may then touch what the caller captures.
  virtual bool blocks_caller() const { return false; }
  /// Whether the GPU still has to carry it out when it is done here: another operation follows it there.
  virtual bool continues_on_gpu() const { return false; }
  /// What it waits for once all ranks have arrived, for people; empty: only for them.
  virtual std::string_view waits_for() const { return {}; }
  /// For one that follows a call on the GPU: where it is there.
  virtual std::optional<GpuPosition> gpu_position() const { return std::nullopt; }

  Status status() const { return status_.load(std::memory_order_acquire); }

 private:
  friend class ProgressEngine;
  friend class GuardedOperation;
  friend class Rank;
  friend class Group;
  friend class Work;
  friend Group& group_of(const Operation& operation);
  friend CallFacts facts_of(const Operation& operation);
  friend std::string describe(const Operation& operation);

  std::atomic<Status> status_{Status::kPending};
  bool follows_ = false;      // goes on with a call that has been counted already
  bool queued_ = false;       // in the engine's list
  bool adopted_ = false;      // the engine's own: no Work points here
  std::exception_ptr error_;  // read after status() said kFailed
  Group* group_ = nullptr;    // outlives the operation
  CallKey key_;
  std::uint64_t sequence_ = 0;
  std::uint64_t record_ = 0;  // in the flight recorder
  int peer_ = -1;             // send, recv: the other rank
  std::int64_t started_ns_ = 0, ended_ns_ = 0, deadline_ns_ = 0;
  std::vector<std::size_t> offsets_, recv_offsets_;  // of uneven blocks; the call's Blocks point here
};

/// "all_reduce of 8 x f32 (sum), number 3 of group 'world'".
std::string describe(const Operation& operation);

}  // namespace trireme::comm
