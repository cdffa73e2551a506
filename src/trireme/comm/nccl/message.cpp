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
    : NcclCall(endpoint, site, call),
      is_send_(is_send),
      peer_(peer),
      lane_{.channel = site.members.channel, .tag = site.tag, .peer = peer, .is_send = is_send} {
  note_stream();
  endpoint_.lane(lane_).push_back(this);
  number_ = call.sequence;  // the receiver learns the sender's
  post(kHello, &number_, sizeof number_, is_send_);
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

Progress NcclMessage::agree(Effort effort) {
  switch (handshake_) {
    case Handshake::kHello:
      // The receiver: the hello says that the sender is there. The sender: goes on to wait for the answer.
      if (!is_over(kHello, effort) && !is_send_) return Progress::kStuck;
      if (!is_first_in_lane()) return Progress::kStuck;
      if (is_send_) {
        post(kAnswer, &answer_, sizeof answer_, /*send=*/false);
      } else {
        answer_ = propose(id());
        post(kAnswer, &answer_, sizeof answer_, /*send=*/true);
        post(kVerdict, &verdict_, sizeof verdict_, /*send=*/false);
      }
      handshake_ = Handshake::kAnswer;
      return Progress::kDone;
    case Handshake::kAnswer:
      if (!is_over(kAnswer, effort) && is_send_) return Progress::kStuck;
      if (is_send_) {
        verdict_ = std::max(propose(id()), answer_);
        settle(verdict_);
        post(kVerdict, &verdict_, sizeof verdict_, /*send=*/true);
      }
      handshake_ = Handshake::kVerdict;
      return Progress::kDone;
    case Handshake::kVerdict:
      if (!is_over(kVerdict, effort) && !is_send_) return Progress::kStuck;
      if (!is_send_) settle(verdict_);
      leave_lane();
      agreed();
      break;
  }
  return Progress::kDone;
}

Communicator& NcclMessage::find_communicator() {
  const std::vector<int> ranks = pair_of(my_rank(), peer_rank());
  return endpoint_.communicator(ranks, ranks[0] == my_rank() ? 0 : 1);
}

Progress NcclMessage::share_id(Effort effort, nccl::UniqueId& id) {
  const bool makes_id = my_rank() < peer_rank();
  if (makes_id) {
    nccl_id_ = communicator_->make_id();
    post(kId, &nccl_id_, sizeof nccl_id_, /*send=*/true);
  } else {
    if (!letters_[kId]) post(kId, &nccl_id_, sizeof nccl_id_, /*send=*/false);
    if (!is_over(kId, effort)) return Progress::kStuck;
  }
  id = nccl_id_;
  return Progress::kDone;
}

void NcclMessage::launch(device::CudaEventHandle after) {
  std::vector<NcclStep> steps;
  const int other = my_rank() < peer_rank() ? 1 : 0;
  if (call_.key.count != 0) {
    steps.push_back({.act = is_send_ ? NcclStep::Act::kSend : NcclStep::Act::kRecv,
                     .in = call_.in,
                     .out = call_.out,
                     .count = call_.key.count,
                     .peer = other});
  }
  communicator_->launch({.steps = steps, .type = call_.key.type, .after = after});
}

/// Letters lie in this operation.
Progress NcclMessage::finish(Effort effort) {
  for (const Letter letter : {kHello, kAnswer, kVerdict, kId}) {
    if (!is_over(letter, effort)) return Progress::kStuck;
  }
  return Progress::kDone;
}

void NcclMessage::abandon() noexcept {
  for (auto& letter : letters_) {
    if (letter) letter->abandon();
  }
  leave_lane();
  NcclCall::abandon();
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
