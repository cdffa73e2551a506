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
    : endpoint_(endpoint),
      site_(site),
      call_(call),
      alone_(site.members.ranks.size() == 1),
      ready_(endpoint.cuda(), endpoint.events()),
      over_(endpoint.cuda(), endpoint.events()) {
  const device::CudaRuntime& cuda = endpoint_.cuda();
  const device::CudaStream stream = cuda.current_stream();
  if (alone_) {
    for (const NcclStep& step : nccl_steps(call_, 0, 1)) {
      check_gpu(cuda.memcpy_async(step.out, step.in, step.count * call_.element(), stream), "a copy");
    }
    phase_ = Phase::kDone;
    return;
  }
  captured_ = endpoint_.is_capturing(stream);
  check_gpu(cuda.record_event(ready_.get(), stream), "recording the event of a call's data");
}

NcclCollective::~NcclCollective() {
  if (ordered_) endpoint_.order().leave(id());
}

Rounds::Context NcclCollective::round_context() const { return {site_.host, site_.members, call_.key, site_.tag}; }

Progress NcclCollective::advance(Effort effort) {
  bool moved = false;
  while (phase_ != Phase::kDone) {
    const Progress progress = step(effort);
    if (progress != Progress::kDone) return moved ? Progress::kMoved : progress;
    moved = true;
  }
  return Progress::kDone;
}

/// One phase; kDone: the next may begin.
Progress NcclCollective::step(Effort effort) {
  Progress progress = Progress::kDone;
  switch (phase_) {
    case Phase::kArrive:
      progress = arrive(effort);
      if (progress == Progress::kDone) {
        const bool unknown_sizes = call_.key.op == Op::kAllToAll && call_.blocks.offsets != nullptr;
        phase_ = unknown_sizes ? Phase::kLetters : Phase::kStamp;
      }
      return progress;
    case Phase::kLetters:
      progress = letters(effort);
      if (progress == Progress::kDone) phase_ = Phase::kStamp;
      return progress;
    case Phase::kStamp:
      progress = stamp(effort);
      if (progress == Progress::kDone) phase_ = Phase::kTurn;
      return progress;
    case Phase::kTurn:
      if (!endpoint_.order().may_launch(id())) return Progress::kStuck;
      communicator_ = &endpoint_.communicator(site_.members.ranks, site_.members.me);
      if (captured_ && communicator_->is_new()) {
        throw CommError(
            fmt::format("{} cannot be captured: these ranks have made no call on their GPUs yet", describe(*this)),
            "make one before capturing a CUDA graph");
      }
      phase_ = communicator_->is_new() ? Phase::kMeet : Phase::kLaunch;
      return Progress::kDone;
    case Phase::kMeet:
      return meet(effort);
    case Phase::kConnect:
      if (!communicator_->has_connected()) return Progress::kStuck;
      phase_ = Phase::kLaunch;
      return Progress::kDone;
    case Phase::kLaunch: {
      const auto steps = nccl_steps(call_, site_.members.me, static_cast<int>(site_.members.ranks.size()));
      if (captured_) endpoint_.order_in_capture(*communicator_);
      communicator_->launch(
          {.steps = steps, .type = call_.key.type, .reduce = call_.key.reduce, .after = ready_.get()});
      phase_ = Phase::kGiven;
      return Progress::kDone;
    }
    case Phase::kGiven:
      if (!communicator_->has_launched(over_.get())) return Progress::kStuck;
      if (captured_) endpoint_.note_captured(*communicator_);
      endpoint_.order().leave(id());
      ordered_ = false;
      endpoint_.launched(*this, *communicator_, captured_);
      phase_ = Phase::kDone;
      return Progress::kDone;
    case Phase::kDone:
      break;
  }
  return Progress::kDone;
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
  const bool first = !ordered_;
  if (first) {
    proposal_ = endpoint_.order().propose(id());
    ordered_ = true;
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
  endpoint_.order().settle(id(), stamp);
  return Progress::kDone;
}

/// The first rank's id reaches all; each then begins to connect.
Progress NcclCollective::meet(Effort effort) {
  if (!rounds_) {
    const nccl::UniqueId mine = site_.members.me == 0 ? communicator_->make_id() : nccl::UniqueId{};
    rounds_.emplace(round_context(), bytes_of(mine), &whatever_is_there);
  }
  const Progress progress = rounds_->advance(*this, effort);
  if (progress != Progress::kDone) return progress;
  nccl::UniqueId id{};
  std::memcpy(&id, rounds_->data(), sizeof id);
  rounds_.reset();
  communicator_->connect(id);
  phase_ = Phase::kConnect;
  return Progress::kDone;
}

void NcclCollective::after_wait() {
  if (alone_) return;
  check_gpu(endpoint_.cuda().stream_wait_event(endpoint_.cuda().current_stream(), over_.get()),
            "waiting for a call's result");
}

void NcclCollective::abandon() noexcept {
  if (on_board_) site_.board->break_off();
  if (rounds_) rounds_->abandon();
  if (letters_) letters_->abandon();
  if (phase_ == Phase::kConnect || phase_ == Phase::kGiven) communicator_->abort("a call was given up");
  if (ordered_) endpoint_.order().leave(id());
  ordered_ = false;
}

std::string_view NcclCollective::waits_for() const {
  switch (phase_) {
    case Phase::kTurn:
      return "its turn behind calls of other groups";
    case Phase::kMeet:
    case Phase::kConnect:
      return "NCCL to connect the ranks";
    case Phase::kGiven:
      return "NCCL to take the call";
    default:
      return {};
  }
}

}  // namespace trireme::comm
