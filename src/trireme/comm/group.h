// comm/group.h -- what ranks say to each other.
//
// Every call is checked, numbered, fingerprinted, recorded, counted and given a deadline here, in one door; what runs
// behind it is a board operation (shared memory), a routine over the transport's sends and receives, or the transport
// library's own collective. One thread at a time uses a group: the order of its calls *is* the protocol. Different
// groups may be used in different relative orders on different ranks.
// Depends on: rank.h for making one.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trireme/comm/call.h"
#include "trireme/comm/types.h"
#include "trireme/comm/work.h"

namespace trireme::comm {

class Board;
class ControlPlane;
class GpuTransport;
class Group;
class Operation;
class Rank;
class RegisteredBuffer;
struct Routine;

/// The group an operation belongs to.
Group& group_of(const Operation& operation);

/// What is known of a call without its memory.
struct CallFacts {
  CallKey key;
  std::uint64_t sequence = 0;
  int peer = -1;
  std::int64_t allowed_ns = 0;  // from the call to its deadline
};
CallFacts facts_of(const Operation& operation);

struct CallOptions {
  Algorithm algorithm = Algorithm::kAuto;             ///< kAuto: the group chooses, the same on all ranks
  std::optional<std::chrono::milliseconds> deadline;  ///< default: the rank's
};

/// What a group has done so far, per operation.
struct Counters {
  std::uint64_t calls = 0;
  std::uint64_t bytes = 0;       ///< of the buffers (the longer one)
  std::uint64_t sent_bytes = 0;  ///< by this rank to other ranks
  std::chrono::nanoseconds time{0};
};

class Group {
 public:
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  const std::string& name() const { return name_; }
  int rank() const { return members_.me; }
  int size() const { return static_cast<int>(members_.ranks.size()); }
  /// The rank in the world of the group's rank r.
  int world_rank(int r) const { return members_.ranks[static_cast<std::size_t>(r)]; }

  /// Whether buffers may lie in memory of this kind, once there are kernels for it (gpu_memory.h). On a GPU calls are
  /// over when the copies and sums have been given to it, in order: what is started there afterwards finds the result.
  bool moves(DeviceKind kind) const;
  /// Whether ranks are processes; then use_gpu() lets them move memory of their GPUs.
  bool has_processes() const;
  /// Of this rank: what works beside collectives.
  ControlPlane& control() const;
  /// PeerFailure when a rank of this group has failed or is lost: for who waits for it elsewhere than in a collective.
  void check_peers() const;
  /// This rank's number among the ranks of the world on its node.
  int local_rank() const;
  /// For all groups of this rank, from now on. Every rank of the world must do so before any makes a call on a GPU.
  void use_gpu(std::unique_ptr<GpuTransport> gpu);
  /// Null: there is none.
  GpuTransport* gpu() const;

  /// This memory will be used in calls of this group again and again: a GPU's library may prepare it. The answer must
  /// go before the memory and the group do. Nothing happens for host memory.
  RegisteredBuffer register_buffer(Buffer memory);

  // Collectives. Input and output may be the same memory for all_reduce and reduce; for reduce_scatter and scatter the
  // output may be this rank's block of the input, for all_gather and gather the input may be this rank's block of the
  // output. They must not overlap otherwise.
  // Blocks are equal, or as `counts` says (elements of each rank's block), which is the same on all ranks.
  Work all_reduce(Buffer data, Reduce reduce, CallOptions options = {});
  Work all_reduce(ConstBuffer in, Buffer out, Reduce reduce, CallOptions options = {});
  Work reduce_scatter(ConstBuffer in, Buffer out, Reduce reduce, CallOptions options = {});
  Work reduce_scatter_v(ConstBuffer in, Buffer out, std::span<const std::size_t> counts, Reduce reduce,
                        CallOptions options = {});
  Work all_gather(ConstBuffer in, Buffer out, CallOptions options = {});
  Work all_gather_v(ConstBuffer in, Buffer out, std::span<const std::size_t> counts, CallOptions options = {});
  Work all_to_all(ConstBuffer in, Buffer out, CallOptions options = {});
  /// Elements to and from each rank; what rank a sends to b must be what b receives from a.
  Work all_to_all_v(ConstBuffer in, Buffer out, std::span<const std::size_t> send_counts,
                    std::span<const std::size_t> recv_counts, CallOptions options = {});
  Work broadcast(Buffer data, int root, CallOptions options = {});
  /// `out` is only used on the root.
  Work reduce(ConstBuffer in, Buffer out, Reduce reduce, int root, CallOptions options = {});
  Work gather(ConstBuffer in, Buffer out, int root, CallOptions options = {});
  Work gather_v(ConstBuffer in, Buffer out, std::span<const std::size_t> counts, int root, CallOptions options = {});
  /// `in` is only used on the root.
  Work scatter(ConstBuffer in, Buffer out, int root, CallOptions options = {});
  Work scatter_v(ConstBuffer in, Buffer out, std::span<const std::size_t> counts, int root, CallOptions options = {});
  Work barrier(CallOptions options = {});

  /// Messages between two ranks with the same tag arrive in the order sent.
  Work send(ConstBuffer data, int to, int tag = 0, CallOptions options = {});
  Work recv(Buffer data, int from, int tag = 0, CallOptions options = {});

  /// Ranks that give the same colour form a new group, in the order of `key` (then of rank). Colour -1: none; returns
  /// null.
  std::unique_ptr<Group> split(int color, int key, const std::string& name);

  /// The algorithm that kAuto takes for this call, and all that could be asked for.
  Algorithm choose(Collective op, std::size_t bytes) const;
  std::vector<Algorithm> algorithms(Collective op) const;
  /// Why this algorithm cannot be asked for here with blocks of one length; empty when it can. The same on all ranks.
  std::string refusal(Collective op, Algorithm algorithm) const;

  Counters counters(Op op) const;
  void reset_counters();

  // --- for operations and the engine
  [[noreturn]] void raise_mismatch(const Operation& operation, int other, const CallKey& theirs) const;
  [[noreturn]] void raise_size_mismatch(const Operation& operation, int other, std::size_t theirs,
                                        std::size_t mine) const;
  std::uint64_t least_sent_bytes(const Call& call) const;
  bool is_poisoned() const { return poisoned_.load(std::memory_order_acquire); }
  void poison(const std::exception_ptr& error);
  /// What the group was poisoned with; only once is_poisoned().
  const std::exception_ptr& poison() const { return poison_; }
  void settled(Operation& operation, bool done);
  /// Goes on with a call that has been given to the GPU, in its name. The caller has the engine's lock.
  void follow(const Operation& call, std::unique_ptr<Operation> on_gpu);
  /// The same for a call that a replayed graph recomputes: it gets an entry in the flight recorder and a deadline.
  void follow_replayed(const CallFacts& facts, std::unique_ptr<Operation> on_gpu);
  const Members& members() const { return members_; }
  /// Collectives begun so far, and where the flight recorder lists them; read by the control plane.
  std::uint64_t calls() const { return sequence_.load(std::memory_order_relaxed); }
  std::uint32_t record_group() const { return record_group_; }
  /// Sends to a rank of the group so far; read by the control plane.
  std::uint64_t sends_to(int r) const { return sends_to_[static_cast<std::size_t>(r)].load(std::memory_order_relaxed); }

 private:
  friend class Rank;
  friend class Work;
  friend class RegisteredBuffer;
  friend class CapturedCollectives;

  Group(Rank& owner, Members members, std::string name);

  /// A collective before it has a number.
  struct Request {
    Collective op;
    ConstBuffer in = {};
    Buffer out = {};
    Reduce reduce = Reduce::kSum;
    int root = 0;
    std::span<const std::size_t> counts = {}, recv_counts = {};  // of uneven blocks
    bool uneven = false;
  };

  Work collective(const Request& request, const CallOptions& options);
  Work point(Op op, const void* in, void* out, std::size_t count, DType type, Device device, int peer, int tag,
             const CallOptions& options);
  Work start(std::unique_ptr<Operation> operation, const Call& call, int peer, const CallOptions& options);
  void check_usable() const;
  void check_request(const Request& request) const;
  void check_device(Device device, std::string_view op) const;
  CallKey key_of(const Request& request) const;
  Algorithm settle_algorithm(const Request& request, const CallKey& key, Algorithm asked) const;
  std::shared_ptr<const Routine> routine_for(const Request& request, const CallKey& key);
  std::unique_ptr<Operation> make_operation(const Request& request, Call& call);
  void recycle(Operation& operation) noexcept;
  std::unique_lock<std::mutex> engine_lock() const;

  Rank& owner_;
  Members members_;
  std::string name_;
  std::vector<int> node_of_;  // by rank of the group
  int nodes_ = 1;
  std::uint32_t record_group_ = 0;

  std::atomic<std::uint64_t> sequence_{0};  // collectives so far; read by the control plane
  std::uint64_t history_ = 0;
  struct Internals;  // what operations are made from; group_start.cpp
  std::unique_ptr<Internals> internals_;
  Board* board_ = nullptr;  // of internals_; null: the ranks share no memory
  struct Choice {
    Collective op = Collective::kBarrier;
    std::size_t bytes = 0;
    Algorithm algorithm = Algorithm::kAuto;  // kAuto: empty
  };
  mutable std::array<Choice, 64> recent_choices_;

  std::atomic<bool> poisoned_{false};
  std::exception_ptr poison_;
  struct AtomicCounters {
    std::atomic<std::uint64_t> calls{0}, bytes{0}, sent_bytes{0}, nanoseconds{0};
  };
  std::array<AtomicCounters, kOps> counters_;
  std::unique_ptr<std::atomic<std::uint64_t>[]> sends_to_;
  std::vector<std::uint64_t> receives_from_;
};

/// While it lives, a GPU transport keeps what it has prepared for this memory.
class [[nodiscard]] RegisteredBuffer {
 public:
  RegisteredBuffer() = default;
  RegisteredBuffer(RegisteredBuffer&& other) noexcept;
  RegisteredBuffer& operator=(RegisteredBuffer&& other) noexcept;
  ~RegisteredBuffer();

 private:
  friend class Group;
  RegisteredBuffer(Group& group, std::uint64_t registration) : group_(&group), registered_(registration) {}

  Group* group_ = nullptr;
  std::uint64_t registered_ = 0;
};

/// The calls that one rank's CUDA graph makes. What `body` calls on GPU memory is captured, not run; replay() is told
/// how to launch the graph and follows its calls: they have deadlines and stand in the flight recorder as if made anew.
/// All groups involved outlive it; `any` is one of them. Every group must have made a call on the GPU before.
class CapturedCollectives {
 public:
  CapturedCollectives(Group& any, const std::function<void()>& body);
  ~CapturedCollectives();
  CapturedCollectives(const CapturedCollectives&) = delete;
  CapturedCollectives& operator=(const CapturedCollectives&) = delete;
  void replay(const std::function<void()>& launch);

 private:
  Group& group_;
  std::uint64_t capture_ = 0;
};

/// Several calls as one. Nothing in it waits for anything else in it.
class Batch {
 public:
  void add(Work work) { works_.push_back(std::move(work)); }
  Work commit() { return Work(std::move(works_)); }

 private:
  std::vector<Work> works_;
};

}  // namespace trireme::comm
