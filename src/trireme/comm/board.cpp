#include "trireme/comm/board.h"

#include <sys/uio.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <new>
#include <thread>

#include "trireme/base/error.h"

namespace trireme::comm {
namespace {

[[noreturn]] void raise(const char* what, int rank, pid_t process, std::size_t bytes) {
  const int error = errno;
  throw CommError(fmt::format("{} {} bytes of the memory of rank {} (process {}): {}", what, bytes, rank, process,
                              std::strerror(error)),
                  error == ESRCH ? "that process has ended; look at its log"
                                 : "use another algorithm than 'direct' if the system forbids this");
}

}  // namespace

void RemoteMemory::read(int rank, void* local, const void* remote, std::size_t bytes) const {
  const pid_t process = processes_[static_cast<std::size_t>(rank)];
  std::size_t done = 0;
  while (done < bytes) {
    iovec mine{static_cast<std::byte*>(local) + done, bytes - done};
    iovec theirs{const_cast<std::byte*>(static_cast<const std::byte*>(remote)) + done, bytes - done};
    const ssize_t n = process_vm_readv(process, &mine, 1, &theirs, 1, 0);
    if (n <= 0) raise("could not read", rank, process, bytes);
    done += static_cast<std::size_t>(n);
  }
}

void RemoteMemory::write(int rank, const void* local, void* remote, std::size_t bytes) const {
  const pid_t process = processes_[static_cast<std::size_t>(rank)];
  std::size_t done = 0;
  while (done < bytes) {
    iovec mine{const_cast<std::byte*>(static_cast<const std::byte*>(local)) + done, bytes - done};
    iovec theirs{static_cast<std::byte*>(remote) + done, bytes - done};
    const ssize_t n = process_vm_writev(process, &mine, 1, &theirs, 1, 0);
    if (n <= 0) raise("could not write", rank, process, bytes);
    done += static_cast<std::size_t>(n);
  }
}

bool RemoteMemory::permitted(pid_t process, const void* probe, unsigned long expected) {
  unsigned long word = 0;
  iovec mine{&word, sizeof word}, theirs{const_cast<void*>(probe), sizeof word};
  return process_vm_readv(process, &mine, 1, &theirs, 1, 0) == static_cast<ssize_t>(sizeof word) && word == expected;
}

BoardMemory* BoardMemory::construct(void* at, int ranks) {
  auto* memory = new (at) BoardMemory;
  for (int r = 0; r < ranks; ++r) new (&memory->rank(r)) BoardRank;
  return memory;
}

Board::Board(Parts parts) : parts_(std::move(parts)), seen_completed_(static_cast<std::size_t>(parts_.ranks), 0) {}

bool Board::may_enter(std::uint64_t sequence) {
  if (sequence < kBoardSlots) return true;
  const std::uint64_t needed = sequence - kBoardSlots + 1;
  for (int r = 0; r < parts_.ranks; ++r) {
    // Usually known from the last time that rank was seen; only a rank far behind is looked up again.
    auto& seen = seen_completed_[static_cast<std::size_t>(r)];
    if (seen < needed) seen = parts_.memory.rank(r).completed.load(std::memory_order_acquire);
    if (seen < needed) return false;
  }
  return true;
}

void Board::post(std::uint64_t sequence, const CallKey& key, const void* in, void* out, const std::size_t* offsets) {
  BoardSlot& mine = slot(parts_.me, sequence);
  mine.completed = completed_;
  mine.key = key;
  mine.in = in;
  mine.out = out;
  mine.offsets = offsets;
  mine.arrived.store(sequence + 1, std::memory_order_release);
  notify_others();
}

bool Board::has_arrived(int r, std::uint64_t sequence) {
  BoardSlot& theirs = slot(r, sequence);
  if (theirs.arrived.load(std::memory_order_acquire) != sequence + 1) return false;
  auto& seen = seen_completed_[static_cast<std::size_t>(r)];
  if (seen < theirs.completed) seen = theirs.completed;
  return true;
}

void Board::complete(std::uint64_t sequence) {
  completed_ahead_ |= std::uint64_t{1} << (sequence - completed_);
  while (completed_ahead_ & 1) {
    completed_ahead_ >>= 1;
    ++completed_;
  }
  parts_.memory.rank(parts_.me).completed.store(completed_, std::memory_order_release);
}

void Board::put_word(std::uint64_t sequence, std::uint64_t word) {
  BoardSlot& mine = slot(parts_.me, sequence);
  mine.word = word;
  mine.worded.store(sequence + 1, std::memory_order_release);
  notify_others();
}

std::optional<std::uint64_t> Board::word_of(int r, std::uint64_t sequence) {
  BoardSlot& theirs = slot(r, sequence);
  if (theirs.worded.load(std::memory_order_acquire) != sequence + 1) return std::nullopt;
  return theirs.word;
}

void Board::set_done(std::uint64_t sequence) {
  slot(parts_.me, sequence).done.store(sequence + 1, std::memory_order_release);
  notify_others();
}

bool Board::is_done(int r, std::uint64_t sequence) {
  return slot(r, sequence).done.load(std::memory_order_acquire) == sequence + 1;
}

void Board::notify_others() { EventCount::notify_all(parts_.event_counts, parts_.me); }

bool Board::begin_access() {
  // Either this rank sees `broken`, or the rank that breaks off sees this rank accessing: both are in one total order.
  parts_.memory.rank(parts_.me).accessing.store(1, std::memory_order_seq_cst);
  if (parts_.memory.broken.load(std::memory_order_seq_cst) == 0) return true;
  end_access();
  return false;
}

void Board::end_access() { parts_.memory.rank(parts_.me).accessing.store(0, std::memory_order_release); }

void Board::break_off() noexcept {
  parts_.memory.broken.store(1, std::memory_order_seq_cst);
  for (int r = 0; r < parts_.ranks; ++r) {
    if (r == parts_.me) continue;
    // A touch is a copy of at most a piece: it ends soon, unless its process was killed in the middle of it.
    const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(2);
    while (parts_.memory.rank(r).accessing.load(std::memory_order_seq_cst) != 0 &&
           (parts_.remote == std::nullopt || std::chrono::steady_clock::now() < patience)) {
      std::this_thread::yield();
    }
  }
  notify_others();
}

}  // namespace trireme::comm
