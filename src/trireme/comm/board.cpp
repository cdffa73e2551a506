#include "trireme/comm/board.h"

#include <chrono>
#include <new>
#include <thread>

namespace trireme::comm {

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

void Board::put_up(std::uint64_t sequence, const CallKey& key, const void* in, void* out, const std::size_t* offsets) {
  BoardSlot& mine = slot(parts_.me, sequence);
  mine.completed = completed_;
  mine.key = key;
  mine.in = in;
  mine.out = out;
  mine.offsets = offsets;
  mine.arrived.store(sequence + 1, std::memory_order_release);
  ring_others();
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
  ring_others();
}

std::optional<std::uint64_t> Board::word_of(int r, std::uint64_t sequence) {
  BoardSlot& theirs = slot(r, sequence);
  if (theirs.worded.load(std::memory_order_acquire) != sequence + 1) return std::nullopt;
  return theirs.word;
}

void Board::set_done(std::uint64_t sequence) {
  slot(parts_.me, sequence).done.store(sequence + 1, std::memory_order_release);
  ring_others();
}

bool Board::is_done(int r, std::uint64_t sequence) {
  return slot(r, sequence).done.load(std::memory_order_acquire) == sequence + 1;
}

void Board::ring_others() { EventCount::ring_all(parts_.bells, parts_.me); }

bool Board::begin_touching() {
  // Either this rank sees `broken`, or the rank that breaks off sees this rank touching: both are in one total order.
  parts_.memory.rank(parts_.me).touching.store(1, std::memory_order_seq_cst);
  if (parts_.memory.broken.load(std::memory_order_seq_cst) == 0) return true;
  end_touching();
  return false;
}

void Board::end_touching() { parts_.memory.rank(parts_.me).touching.store(0, std::memory_order_release); }

void Board::break_off() noexcept {
  parts_.memory.broken.store(1, std::memory_order_seq_cst);
  for (int r = 0; r < parts_.ranks; ++r) {
    if (r == parts_.me) continue;
    // A touch is a copy of at most a piece: it ends soon, unless its process was killed in the middle of it.
    const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(2);
    while (parts_.memory.rank(r).touching.load(std::memory_order_seq_cst) != 0 &&
           (parts_.remote == std::nullopt || std::chrono::steady_clock::now() < patience)) {
      std::this_thread::yield();
    }
  }
  ring_others();
}

}  // namespace trireme::comm
