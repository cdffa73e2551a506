// comm/board_operation.h -- collectives of ranks that share memory: `direct`.
//
// A small call carries its data in the board's slots. For a large one each rank puts up pointers, then does an equal
// part of the whole, reading and writing the others' memory: threads directly, so that every byte moves once; processes
// through the kernel.
// Depends on: board.h, arithmetic.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "trireme/comm/board.h"
#include "trireme/comm/operation.h"

namespace trireme::comm {

/// Bytes of the largest payload any rank would put into a slot, by what all ranks agree on; too large for small calls:
/// SIZE_MAX.
std::size_t inline_payload_bytes(const Call& call, int ranks);

class BoardOperation final : public Operation {
 public:
  BoardOperation() = default;
  /// Operations are kept and used again: allocating one would cost more than a small call does.
  void prepare(Board& board, const Call& call);

  Progress advance(Effort effort) override;
  void abandon() noexcept override;
  bool needs_background() const override { return !small_; }
  std::uint64_t sent_bytes() const override;

 private:
  enum class Phase : std::uint8_t { kEnter, kArrivals, kPart, kLeave };
  /// Memory of one of the ranks.
  struct Place {
    int rank;
    std::byte* data;
    bool operator==(const Place&) const = default;
  };
  /// Every `to` = combination of all `from`, element by element; a copy when there is one `from`.
  struct Task {
    std::vector<Place> from, to;
    std::size_t count = 0;
  };

  void put_payload();
  void take_payloads();
  /// A broadcast in which every rank takes all from the root, rather than each passing on a share.
  bool pulls_broadcast() const;
  /// A reduce in which the root does all the work, rather than every rank a share.
  bool root_reduces() const;
  /// Whether that rank reads or writes this one's memory.
  bool accesses_mine(int other) const;
  void make_tasks();
  /// Where this rank's share of a whole begins, and its length, in elements.
  std::pair<std::size_t, std::size_t> my_share(std::size_t count, std::size_t line) const;
  Task& new_task(std::size_t count);
  void copy_task(Place from, Place to, std::size_t count);
  bool run_piece();
  bool run_on_gpu();
  bool on_gpu() const { return call_.key.place == DeviceKind::kCuda; }
  void run_near(const Task& task, std::size_t at, std::size_t count);
  void run_far(const Task& task, std::size_t at, std::size_t count);
  void fold(std::vector<void*>& to, std::vector<const void*>& from, std::size_t count, bool stream) const;
  Place in_of(int r, std::size_t element_offset = 0);
  Place out_of(int r, std::size_t element_offset = 0);

  Board* board_ = nullptr;
  Call call_;
  bool small_ = false;
  Phase phase_ = Phase::kEnter;
  int next_rank_ = 0;
  std::vector<Task> tasks_;  // only the first task_count_ are in use
  std::size_t task_count_ = 0, task_ = 0, task_done_ = 0;
  std::vector<const void*> from_;  // of the piece at hand
  std::vector<void*> to_;
  std::vector<std::byte> pulled_;  // other processes' parts of it
};

}  // namespace trireme::comm
