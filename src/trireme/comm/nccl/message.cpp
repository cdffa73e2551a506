#include "trireme/comm/nccl/message.h"

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme::comm {
namespace {

constexpr std::uint32_t kLetterShift = 27;

/// The communicator of two ranks: in rising order, whoever sends.
std::vector<int> pair_of(int a, int b) { return {std::min(a, b), std::max(a, b)}; }

}  // namespace

NcclMessage::NcclMessage(NcclEndpoint& endpoint, const GpuCallSite& site, const Call& call, bool is_send, int peer)
    : endpoint_(endpoint),
      site_(site),
      call_(call),
      is_send_(is_send),
      captured_(endpoint.is_capturing(endpoint.cuda().current_stream())),
      peer_(peer),
      lane_{.channel = site.members.channel, .tag = site.tag, .peer = peer, .is_send = is_send},
      ready_(endpoint.cuda(), endpoint.events()),
      over_(endpoint.cuda(), endpoint.events()) {
  check_gpu(endpoint_.cuda().record_event(ready_.get(), endpoint_.cuda().current_stream()),
            "recording a message's event");
  endpoint_.lane(lane_).push_back(this);
  number_ = call.sequence;  // the receiver learns the sender's
  post(kHello, &number_, sizeof number_, is_send_);
}

NcclMessage::~NcclMessage() {
  leave_lane();
  if (ordered_) endpoint_.order().leave(id());
}

LaunchId NcclMessage::id() const {
  return {.channel = site_.members.channel,
          .from = is_send_ ? my_rank() : peer_rank(),
          .to = is_send_ ? peer_rank() : my_rank(),
          .number = number_};
}

Envelope NcclMessage::envelope(Letter letter) const {
  return {.peer = peer_rank(),
          .channel = site_.members.channel,
          .tag = site_.tag | static_cast<std::uint32_t>(letter) << kLetterShift,
          .key = call_.key};
}

void NcclMessage::post(Letter letter, void* data, std::size_t bytes, bool send) {
  letters_[letter] = send ? site_.host.post_send(envelope(letter), data, bytes)
                          : site_.host.post_recv(envelope(letter), {.to = data, .count = bytes});
}

bool NcclMessage::is_over(Letter letter, Effort effort) {
  std::unique_ptr<Transfer>& transfer = letters_[letter];
  if (!transfer) return true;
  if (transfer->advance(effort) != Progress::kDone) return false;
  if (transfer->mismatched) group_of(*this).raise_mismatch(*this, peer_, transfer->theirs);
  transfer.reset();
  return true;
}

bool NcclMessage::is_first_in_lane() const { return endpoint_.lane(lane_).front() == this; }

void NcclMessage::leave_lane() {
  if (in_lane_) std::erase(endpoint_.lane(lane_), this);
  in_lane_ = false;
}

Progress NcclMessage::advance(Effort effort) {
  bool moved = false;
  while (phase_ != Phase::kDone) {
    const Progress progress = step(effort);
    if (progress != Progress::kDone) return moved ? Progress::kMoved : progress;
    moved = true;
  }
  // Letters lie in this operation.
  for (const Letter letter : {kHello, kAnswer, kVerdict, kId}) {
    if (!is_over(letter, effort)) return moved ? Progress::kMoved : Progress::kStuck;
  }
  return Progress::kDone;
}

Progress NcclMessage::shake_hands(Effort effort) {
  switch (phase_) {
    case Phase::kHello:
      // The receiver: the hello says that the sender is there. The sender: goes on to wait for the answer.
      if (!is_over(kHello, effort) && !is_send_) return Progress::kStuck;
      if (!is_first_in_lane()) return Progress::kStuck;
      if (is_send_) {
        post(kAnswer, &answer_, sizeof answer_, /*send=*/false);
      } else {
        answer_ = endpoint_.order().propose(id());
        ordered_ = true;
        post(kAnswer, &answer_, sizeof answer_, /*send=*/true);
        post(kVerdict, &verdict_, sizeof verdict_, /*send=*/false);
      }
      phase_ = Phase::kAnswer;
      return Progress::kDone;
    case Phase::kAnswer:
      if (!is_over(kAnswer, effort) && is_send_) return Progress::kStuck;
      if (is_send_) {
        verdict_ = std::max(endpoint_.order().propose(id()), answer_);
        ordered_ = true;
        endpoint_.order().settle(id(), verdict_);
        post(kVerdict, &verdict_, sizeof verdict_, /*send=*/true);
      }
      phase_ = Phase::kVerdict;
      return Progress::kDone;
    default:
      if (!is_over(kVerdict, effort) && !is_send_) return Progress::kStuck;
      if (!is_send_) endpoint_.order().settle(id(), verdict_);
      leave_lane();
      phase_ = Phase::kTurn;
      return Progress::kDone;
  }
}

/// One phase; kDone: the next may begin.
Progress NcclMessage::step(Effort effort) {
  switch (phase_) {
    case Phase::kHello:
    case Phase::kAnswer:
    case Phase::kVerdict:
      return shake_hands(effort);
    case Phase::kTurn: {
      if (!endpoint_.order().may_launch(id())) return Progress::kStuck;
      const std::vector<int> ranks = pair_of(my_rank(), peer_rank());
      communicator_ = &endpoint_.communicator(ranks, ranks[0] == my_rank() ? 0 : 1);
      if (captured_ && communicator_->is_new()) {
        throw CommError(
            fmt::format("{} cannot be captured: these ranks have sent nothing between their GPUs yet", describe(*this)),
            "send something before capturing a CUDA graph");
      }
      phase_ = communicator_->is_new() ? Phase::kMeet : Phase::kLaunch;
      return Progress::kDone;
    }
    case Phase::kMeet:
      return meet(effort);
    case Phase::kConnect:
      if (!communicator_->has_connected()) return Progress::kStuck;
      phase_ = Phase::kLaunch;
      return Progress::kDone;
    case Phase::kLaunch: {
      std::vector<NcclStep> steps;
      const int other = my_rank() < peer_rank() ? 1 : 0;
      if (call_.key.count != 0) {
        steps.push_back({.act = is_send_ ? NcclStep::Act::kSend : NcclStep::Act::kRecv,
                         .in = call_.in,
                         .out = call_.out,
                         .count = call_.key.count,
                         .peer = other});
      }
      communicator_->launch({.steps = steps, .type = call_.key.type, .after = ready_.get()});
      phase_ = Phase::kGiven;
      return Progress::kDone;
    }
    case Phase::kGiven:
      if (!communicator_->has_launched(over_.get())) return Progress::kStuck;
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

Progress NcclMessage::meet(Effort effort) {
  const bool makes_id = my_rank() < peer_rank();
  if (makes_id) {
    nccl_id_ = communicator_->make_id();
    post(kId, &nccl_id_, sizeof nccl_id_, /*send=*/true);
  } else {
    if (!letters_[kId]) post(kId, &nccl_id_, sizeof nccl_id_, /*send=*/false);
    if (!is_over(kId, effort)) return Progress::kStuck;
  }
  communicator_->connect(nccl_id_);
  phase_ = Phase::kConnect;
  return Progress::kDone;
}

void NcclMessage::after_wait() {
  check_gpu(endpoint_.cuda().stream_wait_event(endpoint_.cuda().current_stream(), over_.get()),
            "waiting for a message");
}

void NcclMessage::abandon() noexcept {
  for (auto& letter : letters_) {
    if (letter) letter->abandon();
  }
  if (phase_ == Phase::kConnect || phase_ == Phase::kGiven) communicator_->abort("a message was given up");
  leave_lane();
  if (ordered_) endpoint_.order().leave(id());
  ordered_ = false;
}

std::string_view NcclMessage::waits_for() const {
  switch (phase_) {
    case Phase::kTurn:
      return "its turn behind other calls";
    case Phase::kMeet:
    case Phase::kConnect:
      return "NCCL to connect the two ranks";
    case Phase::kGiven:
      return "NCCL to take the message";
    default:
      return {};
  }
}

NcclToItself::NcclToItself(NcclEndpoint& endpoint, const GpuCallSite& site, const Call& call, bool is_send)
    : endpoint_(endpoint),
      channel_(site.members.channel),
      tag_(site.tag),
      me_(site.members.me),
      call_(call),
      is_send_(is_send),
      event_(endpoint.cuda(), endpoint.events()) {
  const device::CudaRuntime& cuda = endpoint_.cuda();
  const device::CudaStream stream = cuda.current_stream();
  auto& waiting = endpoint_.waiting_for_itself(channel_, tag_);
  if (waiting.empty() || waiting.front()->is_send_ == is_send_) {
    check_gpu(cuda.record_event(event_.get(), stream), "recording a message's event");
    waiting.push_back(this);
    return;
  }
  NcclToItself& first = *waiting.front();
  waiting.pop_front();
  if (first.call_.key != call_.key) {
    state_ = first.state_ = State::kMismatched;
    theirs_ = first.call_.key;
    first.theirs_ = call_.key;
    return;
  }
  const NcclToItself &from = is_send_ ? *this : first, &to = is_send_ ? first : *this;
  check_gpu(cuda.stream_wait_event(stream, first.event_.get()), "waiting for a message's data");
  if (call_.key.count != 0) {
    check_gpu(cuda.memcpy_async(to.call_.out, from.call_.in, call_.key.count * call_.element(), stream),
              "a message's copy");
  }
  check_gpu(cuda.record_event(event_.get(), stream), "recording a copy's event");
  check_gpu(cuda.record_event(first.event_.get(), stream), "recording a copy's event");
  state_ = first.state_ = State::kCopied;
}

Progress NcclToItself::advance(Effort) {
  if (state_ == State::kMismatched) group_of(*this).raise_mismatch(*this, me_, theirs_);
  return state_ == State::kCopied ? Progress::kDone : Progress::kStuck;
}

void NcclToItself::after_wait() {
  check_gpu(endpoint_.cuda().stream_wait_event(endpoint_.cuda().current_stream(), event_.get()),
            "waiting for a message");
}

void NcclToItself::leave() noexcept {
  if (state_ == State::kAlone) std::erase(endpoint_.waiting_for_itself(channel_, tag_), this);
}

}  // namespace trireme::comm
