#include <fmt/format.h>

#include <algorithm>
#include <deque>

#include "trireme/schedule/check_parts.h"
#include "trireme/schedule/wiring.h"

namespace trireme::schedule {

namespace {

constexpr std::size_t kTransferKinds = 4;
struct TransferCell {
  bool forward = false, backward = false;
  bool posted[kTransferKinds] = {}, waited[kTransferKinds] = {};
};

/// Posts and waits against the passes they serve, rank by rank.
class Posts : public TableWalk<Posts, TransferCell> {
 public:
  using TableWalk::TableWalk;

 private:
  friend TableWalk;
  using Cell = TransferCell;

  static std::size_t kind(Op post) {
    return static_cast<std::size_t>(post) - static_cast<std::size_t>(Op::kSendActivation);
  }

  void visit() {
    if (is_transfer(now_->op)) transfer();
    if (does_forward(*now_)) forward(now_->chunk, now_->micro);
    if (does_input_gradient(*now_)) backward(backward_chunk(*now_), backward_micro(*now_));
  }

  void forward(int chunk, int micro) {
    Cell& mine = cell(chunk, micro);
    const bool from_far = chunk > 0 && schedule_.rank_of(chunk - 1, micro) != rank_;
    if (from_far && !mine.waited[kind(Op::kRecvActivation)])
      fault(fmt::format("the activation of micro {} was not waited for", micro));
    mine.forward = true;  // of a doubled one: its one message has the number of the first
  }

  void backward(int chunk, int micro) {
    Cell& mine = cell(chunk, micro);
    const bool from_far = chunk < schedule_.last_chunk() && schedule_.rank_of(chunk + 1, micro) != rank_;
    if (from_far && !mine.waited[kind(Op::kRecvGradient)])
      fault(fmt::format("the gradient of micro {} was not waited for", micro));
    mine.backward = true;
  }

  void transfer() {
    const bool wait = is_wait(now_->op);
    const Op post = wait ? waited_for(now_->op) : now_->op;
    const int peer = peer_of(schedule_, *now_);
    if (peer < 0) return fault("the model ends here");
    if (peer == rank_) return fault("both chunks are on this rank, nothing moves");
    Cell& mine = cell(now_->chunk, now_->micro);
    bool& done = (wait ? mine.waited : mine.posted)[kind(post)];
    if (done) return fault("it is there twice");
    if (wait && !mine.posted[kind(post)]) fault("nothing was posted before");
    if (now_->op == Op::kSendActivation && !mine.forward) fault("the forward has not run");
    if (now_->op == Op::kSendGradient && !mine.backward) fault("the backward has not run");
    done = true;
  }

  void complete(int chunk, int micro) {
    const Cell& mine = cell(chunk, micro);
    for (std::size_t i = 0; i < kTransferKinds; ++i) {
      if (mine.posted[i] && !mine.waited[i])
        faults_.add(
            fmt::format("rank {}: the {} of micro {} at chunk {} is never waited for", schedule_.rank_of(chunk, micro),
                        info(static_cast<Op>(static_cast<std::size_t>(Op::kSendActivation) + i)).words, micro, chunk));
    }
  }
};

void check_matching(const Wiring& wiring, Faults& faults) {
  for (const Channel& channel : wiring.channels) {
    const std::size_t most = std::max(channel.sends.size(), channel.receives.size());
    for (std::size_t i = 0; i < most; ++i) {
      const bool sent = i < channel.sends.size(), received = i < channel.receives.size();
      const int step = sent && channel.sends[i].op == Op::kSendActivation ? 1 : -1;
      const bool same = sent && received && channel.sends[i].micro == channel.receives[i].micro &&
                        channel.sends[i].chunk + step == channel.receives[i].chunk &&
                        (channel.sends[i].op == Op::kSendActivation) == (channel.receives[i].op == Op::kRecvActivation);
      if (same) continue;
      faults.add(fmt::format("message {} from rank {} to rank {}: sent is {}, received is {}", i, channel.from,
                             channel.to, sent ? to_text(channel.sends[i], true) : "nothing",
                             received ? to_text(channel.receives[i], true) : "nothing"));
      break;  // all later ones are shifted too
    }
  }
}

/// Lets every rank go as far as it can, with `slots` places in each channel for messages nobody has asked for.
class TransferReplay {
 public:
  TransferReplay(const Schedule& schedule, const Wiring& wiring, int slots)
      : schedule_(schedule),
        wiring_(wiring),
        slots_(slots),
        sent_(wiring.channels.size(), 0),
        received_(wiring.channels.size(), 0),
        at_(schedule.ranks.size(), 0),
        posted_(schedule.ranks.size(), std::vector<int>(static_cast<std::size_t>(schedule.chunks()), 0)),
        updates_(schedule.ranks.size(), 0) {
    for (int chunk = 0; chunk < schedule.chunks(); ++chunk) holders_.push_back(holders_of(schedule, chunk));
    for (std::size_t rank = 0; rank < at_.size(); ++rank) held_.push_back(chunks_of(schedule, static_cast<int>(rank)));
    for (std::size_t rank = 0; rank < at_.size(); ++rank) ready_.push_back(rank);
    while (!ready_.empty()) {
      const std::size_t rank = ready_.front();
      ready_.pop_front();
      while (at_[rank] < schedule.ranks[rank].size() && step(rank)) ++at_[rank];
    }
  }

  bool ends() const {
    for (std::size_t rank = 0; rank < at_.size(); ++rank) {
      if (at_[rank] < schedule_.ranks[rank].size()) return false;
    }
    return true;
  }
  /// Where each rank stands.
  const std::vector<std::size_t>& at() const { return at_; }

 private:
  bool step(std::size_t rank) {
    const Instruction& it = schedule_.ranks[rank][at_[rank]];
    const TransferId& message = wiring_.messages[rank][at_[rank]];
    if (message.channel < 0) return update(rank, it);
    const auto channel = static_cast<std::size_t>(message.channel);
    if (is_wait(it.op)) {
      return is_send(waited_for(it.op)) ? received_[channel] > message.sequence - slots_
                                        : sent_[channel] > message.sequence;
    }
    ++(is_send(it.op) ? sent_ : received_)[channel];
    ready_.push_back(
        static_cast<std::size_t>(is_send(it.op) ? wiring_.channels[channel].to : wiring_.channels[channel].from));
    return true;
  }

  bool update(std::size_t rank, const Instruction& it) {
    if (it.op == Op::kReduceGradients) {
      const auto chunk = static_cast<std::size_t>(it.chunk);
      ++posted_[rank][chunk];
      for (const int other : holders_[chunk]) {
        if (other != static_cast<int>(rank)) ready_.push_back(static_cast<std::size_t>(other));
      }
    }
    if (it.op == Op::kOptimizerStep) {
      for (const int chunk : held_[rank]) {
        for (const int other : holders_[static_cast<std::size_t>(chunk)]) {
          if (posted_[static_cast<std::size_t>(other)][static_cast<std::size_t>(chunk)] <= updates_[rank]) return false;
        }
      }
      ++updates_[rank];
    }
    return true;
  }

  const Schedule& schedule_;
  const Wiring& wiring_;
  int slots_;
  std::vector<int> sent_, received_;  // by channel
  std::vector<std::size_t> at_;
  std::vector<std::vector<int>> posted_;  // reductions, by rank and chunk
  std::vector<int> updates_;              // by rank
  std::vector<std::vector<int>> holders_, held_;
  std::deque<std::size_t> ready_;
};

void check_deadlock(const Schedule& schedule, const Wiring& wiring, Report& report) {
  Faults faults(report);
  int enough = 0;
  for (const Channel& channel : wiring.channels) enough = std::max(enough, static_cast<int>(channel.sends.size()));
  if (const TransferReplay run(schedule, wiring, enough); !run.ends()) {
    for (std::size_t rank = 0; rank < run.at().size(); ++rank) {
      const std::size_t at = run.at()[rank];
      if (at < schedule.ranks[rank].size())
        faults.add(fmt::format("deadlock: rank {} waits for ever at {} ({} of micro {})", rank,
                               to_text(schedule.ranks[rank][at], true), info(schedule.ranks[rank][at].op).words,
                               schedule.ranks[rank][at].micro));
    }
    return;
  }
  // More slots never stop anyone, so the least number can be found by doubling, then halving. It is small as a rule.
  int low = 0, high = 0;
  while (!TransferReplay(schedule, wiring, high).ends()) {
    low = high + 1;
    high = std::min(enough, 2 * high + 1);
  }
  while (low < high) {
    const int middle = (low + high) / 2;
    if (TransferReplay(schedule, wiring, middle).ends())
      high = middle;
    else
      low = middle + 1;
  }
  report.slots = high;
}

}  // namespace

void check_transfers(const Schedule& schedule, Report& report) {
  Posts(schedule, report).run();
  if (!report.fine()) return;
  const Wiring wiring = wire(schedule);
  Faults faults(report);
  check_matching(wiring, faults);
  if (report.fine()) check_deadlock(schedule, wiring, report);
}

}  // namespace trireme::schedule
