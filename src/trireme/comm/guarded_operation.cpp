#include "trireme/comm/guarded_operation.h"

#include "trireme/comm/group.h"

namespace trireme::comm {

Progress GuardedOperation::advance(Effort effort) {
  bool moved = false;
  if (board_ != nullptr) {
    if (!entered_) {
      if (!board_->may_enter(board_sequence_)) return Progress::kStuck;
      board_->post(board_sequence_, call_.key, nullptr, nullptr, nullptr);
      entered_ = moved = true;
    }
    for (; next_rank_ < board_->ranks(); ++next_rank_) {
      if (!board_->has_arrived(next_rank_, board_sequence_)) return moved ? Progress::kMoved : Progress::kStuck;
      const CallKey& theirs = board_->slot(next_rank_, board_sequence_).key;
      if (theirs != call_.key) group_of(*this).raise_mismatch(*this, next_rank_, theirs);
      moved = true;
    }
  }
  if (!inner_) {
    if (order_.started != number_) return moved ? Progress::kMoved : Progress::kStuck;
    if (board_ != nullptr) board_->complete(board_sequence_);
    inner_ = transport_.make_native(members_, call_, board_ != nullptr);
    inner_->group_ = group_;
    moved = true;
  }
  const Progress progress = inner_->advance(effort);
  if (order_.started == number_ && inner_->has_started()) ++order_.started;
  return progress == Progress::kStuck && moved ? Progress::kMoved : progress;
}

void GuardedOperation::abandon() noexcept {
  if (entered_) board_->break_off();
  if (inner_) inner_->abandon();
}

std::uint64_t GuardedOperation::sent_bytes() const { return group_of(*this).least_sent_bytes(call_); }

}  // namespace trireme::comm
