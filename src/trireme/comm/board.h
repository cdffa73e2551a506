// comm/board.h -- shared memory in which the ranks of a group put up their calls for each other to see.
//
// Each rank has a few slots; call number s uses slot s mod kSlots. A small call carries its data in the slot: one store
// by each rank, one look at every other rank, and nobody waits twice. A large call puts up pointers, which threads
// follow and processes give to the kernel (RemoteMemory). Every rank sees every other rank's key, so calls that do
// not match fail at once on all of them.
// Depends on: event_count.h, call.h.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "trireme/comm/call.h"
#include "trireme/comm/event_count.h"

namespace trireme::comm {

/// Reading and writing the memory of another process on the same machine, in one copy by the kernel.
class RemoteMemory {
 public:
  /// Process ids of the members of a group, by rank.
  explicit RemoteMemory(std::vector<pid_t> processes) : processes_(std::move(processes)) {}

  /// Both throw CommError naming the rank's process when it is gone or the system forbids the access.
  void read(int rank, void* local, const void* remote, std::size_t bytes) const;
  void write(int rank, const void* local, void* remote, std::size_t bytes) const;
  /// Whether this process may read `probe` (a word holding `expected`) in the given process.
  static bool permitted(pid_t process, const void* probe, unsigned long expected);

 private:
  std::vector<pid_t> processes_;
};

inline constexpr int kBoardSlots = 8;
/// Room for the data of a small call in each slot. Threads read each other's memory as easily as a slot; processes pay
/// the kernel for that, all the more the more of them there are.
inline std::size_t slot_bytes(bool processes, int ranks) {
  if (!processes) return 4 << 10;
  return ranks > 2 && ranks <= 32 ? 32 << 10 : 8 << 10;
}

struct alignas(64) BoardSlot {
  // One cache line, so that seeing an arrival brings the call with it.
  std::atomic<std::uint64_t> arrived{0};  // number of the call + 1, once all below is written
  std::uint64_t completed = 0;            // calls the rank had completed by then
  CallKey key;
  const void* in = nullptr;  // large calls
  void* out = nullptr;

  alignas(64) std::atomic<std::uint64_t> done{0};  // number of the call + 1, once this rank's part is done
  const std::size_t* offsets = nullptr;            // all_to_all: where the blocks this rank sends begin
  // A word that each rank adds once all have arrived, for calls that go on elsewhere: the number of the call + 1.
  std::atomic<std::uint64_t> worded{0};
  std::uint64_t word = 0;
};

struct alignas(64) BoardRank {
  std::atomic<std::uint64_t> completed{0};              // calls completed by this rank, all below this number
  alignas(64) std::atomic<std::uint32_t> accessing{0};  // this rank is reading or writing others' memory
  BoardSlot slots[kBoardSlots];
};

/// What is shared; lives in the heap for threads and in a mapped file for processes.
struct alignas(64) BoardMemory {
  std::atomic<std::uint32_t> broken{0};  // some rank gave up: nobody may touch others' memory any more

  static std::size_t bytes(int ranks, std::size_t slot_bytes) {
    return sizeof(BoardMemory) + (sizeof(BoardRank) + kBoardSlots * slot_bytes) * static_cast<std::size_t>(ranks);
  }
  BoardRank& rank(int r) { return reinterpret_cast<BoardRank*>(this + 1)[r]; }
  static BoardMemory* construct(void* at, int ranks);
};

/// One rank's view.
class Board {
 public:
  struct Parts {
    BoardMemory& memory;
    int me, ranks;
    std::size_t slot_bytes;                 // room for data in each slot
    std::vector<EventCount*> event_counts;  // of all members, by rank
    std::shared_ptr<void> keep_alive;       // owns the memory; shared by all ranks' views of it
    std::optional<RemoteMemory> remote{};   // members are processes, which may read each other's memory
    bool pointers = true;                   // large calls work: members are threads, or `remote` is there
  };
  explicit Board(Parts parts);

  int me() const { return parts_.me; }
  int ranks() const { return parts_.ranks; }
  BoardRank& rank(int r) { return parts_.memory.rank(r); }
  BoardSlot& slot(int r, std::uint64_t sequence) { return parts_.memory.rank(r).slots[sequence % kBoardSlots]; }

  std::size_t slot_bytes() const { return parts_.slot_bytes; }
  /// Where rank r puts the data of a small call.
  std::byte* payload(int r, std::uint64_t sequence) {
    auto* behind_ranks = reinterpret_cast<std::byte*>(&parts_.memory.rank(parts_.ranks));
    const std::size_t slot = static_cast<std::size_t>(r) * kBoardSlots + sequence % kBoardSlots;
    return behind_ranks + slot * parts_.slot_bytes;
  }

  /// Whether the slot of call `sequence` is free: everybody is through with the call that had it before.
  bool may_enter(std::uint64_t sequence);
  /// Puts up this rank's call; the payload must be in the slot already.
  void post(std::uint64_t sequence, const CallKey& key, const void* in, void* out, const std::size_t* offsets);
  bool has_arrived(int r, std::uint64_t sequence);
  /// This rank is through with the call, including looking at others' slots.
  void complete(std::uint64_t sequence);

  /// A second thing that every rank says of the call, once all have arrived.
  void put_word(std::uint64_t sequence, std::uint64_t word);
  /// What rank r said; nothing yet: empty.
  std::optional<std::uint64_t> word_of(int r, std::uint64_t sequence);

  void set_done(std::uint64_t sequence);
  bool is_done(int r, std::uint64_t sequence);

  void notify_others();

  /// Around every access to others' memory. False: some rank gave up and its memory may be gone.
  bool begin_access();
  void end_access();
  /// Nobody touches others' memory once this returns, and never again.
  void break_off() noexcept;
  bool is_broken() const { return parts_.memory.broken.load(std::memory_order_acquire) != 0; }

  /// Whether calls too large for the slots can be made.
  bool takes_large() const { return parts_.pointers; }
  /// Null: members are threads, and pointers can be followed.
  const RemoteMemory* remote() const { return parts_.remote ? &*parts_.remote : nullptr; }

 private:
  Parts parts_;
  std::vector<std::uint64_t> seen_completed_;  // what each rank had completed when last seen
  std::uint64_t completed_ = 0;                // all calls below are complete here
  std::uint64_t completed_ahead_ = 0;          // bit i: call completed_ + i is complete too
};

}  // namespace trireme::comm
