#include "trireme/comm/routine_operation.h"

#include <algorithm>
#include <cstring>

#include "trireme/comm/arithmetic/arithmetic.h"
#include "trireme/comm/group.h"

namespace trireme::comm {
namespace {

// Local steps larger than this are not done while the call is being posted.
constexpr std::size_t kBriefBytes = 64 << 10;
constexpr std::size_t kKeptPieces = 4;

}  // namespace

std::unique_ptr<std::byte[]> ScratchPool::take(std::size_t bytes, std::size_t& capacity) {
  for (std::size_t i = 0; i < free_.size(); ++i) {
    if (free_[i].capacity < bytes) continue;
    auto memory = std::move(free_[i].memory);
    capacity = free_[i].capacity;
    free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(i));
    return memory;
  }
  capacity = bytes;
  return std::unique_ptr<std::byte[]>(new std::byte[bytes]);
}

void ScratchPool::give(std::unique_ptr<std::byte[]> memory, std::size_t capacity) {
  if (free_.size() >= kKeptPieces) {
    const auto smallest = std::min_element(free_.begin(), free_.end(),
                                           [](const Piece& a, const Piece& b) { return a.capacity < b.capacity; });
    if (smallest->capacity >= capacity) return;
    free_.erase(smallest);
  }
  free_.push_back({std::move(memory), capacity});
}

RoutineOperation::RoutineOperation(Transport& transport, const Members& members, std::shared_ptr<const Routine> routine,
                                   const Call& call, std::uint32_t tag, ScratchPool& pool)
    : transport_(transport), members_(members), routine_(std::move(routine)), call_(call), tag_(tag), pool_(pool) {
  const std::size_t bytes = routine_->scratch * call_.element();
  if (bytes != 0) scratch_ = pool_.take(bytes, scratch_capacity_);
  transfers_.resize(routine_->steps.size());
}

RoutineOperation::~RoutineOperation() {
  transfers_.clear();
  if (scratch_) pool_.give(std::move(scratch_), scratch_capacity_);
}

std::byte* RoutineOperation::address(const Slice& slice) const {
  std::byte* base = nullptr;
  switch (slice.space) {
    case Space::kInput:
      base = static_cast<std::byte*>(const_cast<void*>(call_.in));  // routines never write to their input
      break;
    case Space::kOutput:
      base = static_cast<std::byte*>(call_.out);
      break;
    case Space::kScratch:
      base = scratch_.get();
      break;
  }
  return slice.count == 0 ? base : base + slice.begin * call_.element();
}

void RoutineOperation::post(const Step& step) {
  const Envelope envelope{.peer = members_.ranks[static_cast<std::size_t>(step.peer)],
                          .channel = members_.channel,
                          .tag = tag_,
                          .key = call_.key,
                          .memory = call_.key.place};
  if (step.act == Act::kSend) {
    const std::size_t bytes = step.from.count * call_.element();
    transfers_[next_] = transport_.post_send(envelope, address(step.from), bytes);
    sent_bytes_ += bytes;
    return;
  }
  Sink sink{.to = address(step.to), .count = step.to.count, .type = call_.key.type, .reduce = call_.key.reduce};
  if (step.act == Act::kRecvReduce) sink.from = address(step.from);
  transfers_[next_] = transport_.post_recv(envelope, sink);
}

Progress RoutineOperation::push(std::size_t posted, Effort effort) {
  auto& transfer = transfers_[posted];
  if (!transfer) return Progress::kDone;
  const Progress progress = transfer->advance(effort);
  if (progress != Progress::kDone) return progress;
  if (transfer->mismatched) {
    const Step& step = routine_->steps[posted];
    if (transfer->theirs != call_.key) group_of(*this).raise_mismatch(*this, step.peer, transfer->theirs);
    group_of(*this).raise_size_mismatch(*this, step.peer, transfer->their_bytes, step.to.count * call_.element());
  }
  transfer.reset();
  return progress;
}

bool RoutineOperation::push_others(std::size_t posted, Effort effort) {
  bool moved = false;
  while (first_open_ < next_ && !transfers_[first_open_]) ++first_open_;
  for (std::size_t i = first_open_; i < next_; ++i) {
    if (i != posted && transfers_[i]) moved |= push(i, effort) != Progress::kStuck;
  }
  return moved;
}

Progress RoutineOperation::advance(Effort effort) {
  bool moved = false;
  const auto& steps = routine_->steps;
  for (; next_ < steps.size(); ++next_, moved = true) {
    const Step& step = steps[next_];
    const bool heavy = effort == Effort::kPost && step.to.count * call_.element() > kBriefBytes;
    switch (step.act) {
      case Act::kSend:
      case Act::kRecv:
      case Act::kRecvReduce:
        post(step);
        break;
      case Act::kWait: {
        const auto posted = static_cast<std::size_t>(step.on);
        const Progress progress = push(posted, effort);
        if (progress == Progress::kDone) break;
        // A rank that waits for its send to be taken must go on taking what others send to it: in a ring all would
        // wait for each other.
        moved |= push_others(posted, effort);
        return moved ? Progress::kMoved : progress;
      }
      case Act::kCopy:
        if (heavy) return Progress::kMoved;
        if (step.to.count != 0 && address(step.to) != address(step.from)) {
          std::memcpy(address(step.to), address(step.from), step.to.count * call_.element());
        }
        break;
      case Act::kReduce:
        if (heavy) return Progress::kMoved;
        arithmetic(call_.key.type, call_.key.reduce)
            .combine(address(step.to), address(step.to), address(step.from), step.to.count);
        break;
      case Act::kFinish:
        if (heavy) return Progress::kMoved;
        if (call_.key.reduce == Reduce::kAvg) {
          arithmetic(call_.key.type, call_.key.reduce)
              .divide(address(step.to), step.to.count, static_cast<int>(members_.ranks.size()));
        }
        break;
    }
  }
  return Progress::kDone;
}

void RoutineOperation::abandon() noexcept {
  for (auto& transfer : transfers_) {
    if (transfer) transfer->abandon();
  }
}

}  // namespace trireme::comm
