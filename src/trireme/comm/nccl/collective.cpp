#include "trireme/comm/nccl/collective.h"

#include <cstring>

#include "trireme/base/error.h"

namespace trireme::comm {
namespace {

std::vector<std::byte> bytes_of(const auto& value) {
  std::vector<std::byte> bytes(sizeof value);
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

void larger(std::byte* mine, const std::byte* theirs, std::size_t) {
  std::uint64_t a = 0, b = 0;
  std::memcpy(&a, mine, sizeof a);
  std::memcpy(&b, theirs, sizeof b);
  if (b > a) std::memcpy(mine, &b, sizeof b);
}

/// Only one rank brings something that is not all zero.
void whatever_is_there(std::byte* mine, const std::byte* theirs, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) mine[i] |= theirs[i];
}

}  // namespace

NcclCollective::NcclCollective(NcclEndpoint& endpoint, const GpuCallSite& site, const Call& call)
    : NcclCall(endpoint, site, call), alone_(site.members.ranks.size() == 1) {
  if (!alone_) {
    note_stream();
    return;
  }
  for (const NcclStep& step : nccl_steps(call_, 0, 1)) {
    check_gpu(endpoint_.cuda().memcpy_async(step.out, step.in, step.count * call_.element(),
                                            endpoint_.cuda().current_stream()),
              "a copy");
  }
  skip();
}

Rounds::Context NcclCollective::round_context() const { return {site_.host, site_.members, call_.key, site_.tag}; }

Progress NcclCollective::agree(Effort effort) {
  Progress progress = Progress::kDone;
  switch (agreeing_) {
    case Agreeing::kArrive: {
      progress = arrive(effort);
      if (progress != Progress::kDone) return progress;
      const bool unknown_sizes = call_.key.op == Op::kAllToAll && call_.blocks.offsets != nullptr;
      agreeing_ = unknown_sizes ? Agreeing::kLetters : Agreeing::kStamp;
      return Progress::kDone;
    }
    case Agreeing::kLetters:
      progress = letters(effort);
      if (progress != Progress::kDone) return progress;
      agreeing_ = Agreeing::kStamp;
      return Progress::kDone;
    case Agreeing::kStamp:
      break;
  }
  return stamp(effort);
}

Communicator& NcclCollective::find_communicator() {
  return endpoint_.communicator(site_.members.ranks, site_.members.me);
}

void NcclCollective::launch(device::CudaEventHandle after) {
  const auto steps = nccl_steps(call_, site_.members.me, static_cast<int>(site_.members.ranks.size()));
  if (captured_) endpoint_.order_in_capture(*communicator_);
  communicator_->launch({.steps = steps, .type = call_.key.type, .reduce = call_.key.reduce, .after = after});
}

void NcclCollective::launched() {
  if (captured_) endpoint_.note_captured(*communicator_);
}

Progress NcclCollective::arrive(Effort effort) {
  Board* board = site_.board;
  if (board == nullptr) {
    if (!rounds_) rounds_.emplace(round_context(), std::vector<std::byte>{}, nullptr);
    const Progress progress = rounds_->advance(*this, effort);
    if (progress == Progress::kDone) rounds_.reset();
    return progress;
  }
  bool moved = false;
  if (!entered_) {
    if (!board->may_enter(site_.board_sequence)) return Progress::kStuck;
    board->post(site_.board_sequence, call_.key, nullptr, nullptr, nullptr);
    entered_ = on_board_ = moved = true;
  }
  for (; next_rank_ < board->ranks(); ++next_rank_, moved = true) {
    if (!board->has_arrived(next_rank_, site_.board_sequence)) return moved ? Progress::kMoved : Progress::kStuck;
    const CallKey& theirs = board->slot(next_rank_, site_.board_sequence).key;
    if (theirs != call_.key) group_of(*this).raise_mismatch(*this, next_rank_, theirs);
  }
  next_rank_ = 0;
  return Progress::kDone;
}

/// Each rank knows only what it itself sends and expects: NCCL would hang, or write past the end, where they differ.
Progress NcclCollective::letters(Effort effort) {
  const int ranks = static_cast<int>(site_.members.ranks.size());
  if (!letters_) {
    std::vector<std::uint64_t> mine;
    mine.reserve(static_cast<std::size_t>(ranks));
    for (int r = 0; r < ranks; ++r) mine.push_back(call_.blocks.count(r));
    letters_.emplace(round_context(), std::move(mine));
  }
  const Progress progress = letters_->advance(*this, effort);
  if (progress != Progress::kDone) return progress;
  for (int r = 0; r < ranks; ++r) {
    const std::uint64_t theirs = letters_->received()[static_cast<std::size_t>(r)];
    if (theirs == call_.recv_blocks.count(r)) continue;
    group_of(*this).raise_size_mismatch(*this, r, theirs * call_.element(),
                                        call_.recv_blocks.count(r) * call_.element());
  }
  letters_.reset();
  return Progress::kDone;
}

Progress NcclCollective::stamp(Effort effort) {
  Board* board = site_.board;
  std::uint64_t stamp = 0;
  const bool first = !has_proposed();
  if (first) {
    proposal_ = propose({.channel = site_.members.channel, .number = site_.tag});
    if (board != nullptr) {
      board->put_word(site_.board_sequence, proposal_);
    } else {
      rounds_.emplace(round_context(), bytes_of(proposal_), &larger);
    }
  }
  if (board != nullptr) {
    for (int r = 0; r < board->ranks(); ++r) {
      const auto theirs = board->word_of(r, site_.board_sequence);
      if (!theirs) return first ? Progress::kMoved : Progress::kStuck;
      stamp = std::max(stamp, *theirs);
    }
    board->complete(site_.board_sequence);
    on_board_ = false;
  } else {
    const Progress progress = rounds_->advance(*this, effort);
    if (progress != Progress::kDone) return progress;
    std::memcpy(&stamp, rounds_->data(), sizeof stamp);
    rounds_.reset();
  }
  settle(stamp);
  agreed();
  return Progress::kDone;
}

/// The first rank's id reaches all.
Progress NcclCollective::share_id(Effort effort, nccl::UniqueId& id) {
  if (!rounds_) {
    const nccl::UniqueId mine = site_.members.me == 0 ? communicator_->make_id() : nccl::UniqueId{};
    rounds_.emplace(round_context(), bytes_of(mine), &whatever_is_there);
  }
  const Progress progress = rounds_->advance(*this, effort);
  if (progress != Progress::kDone) return progress;
  std::memcpy(&id, rounds_->data(), sizeof id);
  rounds_.reset();
  return Progress::kDone;
}

void NcclCollective::after_wait() {
  if (!alone_) NcclCall::after_wait();
}

void NcclCollective::abandon() noexcept {
  if (on_board_) site_.board->break_off();
  if (rounds_) rounds_->abandon();
  if (letters_) letters_->abandon();
  NcclCall::abandon();
}

}  // namespace trireme::comm
