#include "trireme/comm/nccl/rounds.h"

#include "trireme/comm/group.h"

namespace trireme::comm {
namespace {

Envelope envelope_to(const Rounds::Context& context, int peer) {
  return {.peer = context.members.ranks[static_cast<std::size_t>(peer)],
          .channel = context.members.channel,
          .tag = context.tag,
          .key = context.key};
}

/// Whether the transfer is through, and matched.
bool is_over(std::unique_ptr<Transfer>& transfer, const Operation& owner, int peer, Effort effort, bool& moved) {
  if (!transfer) return true;
  const Progress progress = transfer->advance(effort);
  moved |= progress != Progress::kStuck;
  if (progress != Progress::kDone) return false;
  if (transfer->mismatched) group_of(owner).raise_mismatch(owner, peer, transfer->theirs);
  transfer.reset();
  return true;
}

}  // namespace

Rounds::Rounds(const Context& context, std::vector<std::byte> mine, Combine combine)
    : context_(context), mine_(std::move(mine)), received_(mine_.size()), combine_(combine) {}

Progress Rounds::advance(const Operation& owner, Effort effort) {
  const int ranks = static_cast<int>(context_.members.ranks.size()), me = context_.members.me;
  bool moved = false;
  while (distance_ < ranks) {
    const int to = (me + distance_) % ranks, from = (me + ranks - distance_) % ranks;
    if (!send_ && !recv_) {
      sent_ = mine_;
      recv_ = context_.host.post_recv(envelope_to(context_, from), {.to = received_.data(), .count = received_.size()});
      send_ = context_.host.post_send(envelope_to(context_, to), sent_.data(), sent_.size());
      moved = true;
    }
    const bool received = is_over(recv_, owner, from, effort, moved), sent = is_over(send_, owner, to, effort, moved);
    if (!received || !sent) return moved ? Progress::kMoved : Progress::kStuck;
    if (combine_ != nullptr) combine_(mine_.data(), received_.data(), mine_.size());
    distance_ *= 2;
  }
  return Progress::kDone;
}

void Rounds::abandon() noexcept {
  if (send_) send_->abandon();
  if (recv_) recv_->abandon();
}

Letters::Letters(const Rounds::Context& context, std::vector<std::uint64_t> mine)
    : context_(context), mine_(std::move(mine)), received_(mine_.size(), 0) {}

Progress Letters::advance(const Operation& owner, Effort effort) {
  const auto me = static_cast<std::size_t>(context_.members.me);
  bool moved = false;
  if (!posted_) {
    posted_ = moved = true;
    received_[me] = mine_[me];
    for (std::size_t i = 1; i < mine_.size(); ++i) {  // everyone starts with the next one
      const std::size_t to = (me + i) % mine_.size(), from = (me + mine_.size() - i) % mine_.size();
      open_.push_back(context_.host.post_recv(envelope_to(context_, static_cast<int>(from)),
                                              {.to = &received_[from], .count = sizeof(std::uint64_t)}));
      open_.push_back(
          context_.host.post_send(envelope_to(context_, static_cast<int>(to)), &mine_[to], sizeof(std::uint64_t)));
      peers_.push_back(static_cast<int>(from));
      peers_.push_back(static_cast<int>(to));
    }
  }
  bool all = true;
  for (std::size_t i = 0; i < open_.size(); ++i) all &= is_over(open_[i], owner, peers_[i], effort, moved);
  return all ? Progress::kDone : moved ? Progress::kMoved : Progress::kStuck;
}

void Letters::abandon() noexcept {
  for (auto& transfer : open_) {
    if (transfer) transfer->abandon();
  }
}

}  // namespace trireme::comm
