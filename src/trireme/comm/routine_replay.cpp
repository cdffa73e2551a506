#include <algorithm>
#include <limits>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/comm/routine_check.h"
#include "trireme/comm/routine_matching.h"

namespace trireme::comm {

namespace {

/// Always moves the message that can start first. A rank that is held up waits for one of those not yet moved, so
/// whatever it posts later starts later, too: no earlier message can turn up afterwards.
class Replay {
 public:
  Replay(std::span<const Routine> routines, std::size_t element_bytes, const LinkBetween& link)
      : routines_(routines),
        bytes_(static_cast<double>(element_bytes)),
        link_(link),
        matching_(match_messages(routines)) {
    TRIREME_CHECK(matching_.faults.empty(), "these routines cannot run: {}", matching_.faults.front());
    for (const Routine& routine : routines) {
      Rank& rank = ranks_.emplace_back();
      rank.posted.assign(routine.steps.size(), kNever);
      rank.done.assign(routine.steps.size(), kNever);
    }
  }

  double run() {
    for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) advance(rank);
    while (!ready_.empty()) {
      std::size_t best = 0;
      for (std::size_t message = 1; message < ready_.size(); ++message)
        if (goes_before(ready_[message], ready_[best])) best = message;
      const Message message = ready_[best];
      ready_.erase(ready_.begin() + static_cast<std::ptrdiff_t>(best));
      move(message);
      advance(message.from);
      advance(message.to);
    }
    double last = 0;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      TRIREME_CHECK(ranks_[rank].next == static_cast<int>(routines_[rank].steps.size()),
                    "these routines deadlock: rank {} cannot leave step {}", rank, ranks_[rank].next);
      last = std::max(last, ranks_[rank].now);
    }
    return last;
  }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();
  struct Rank {
    double now = 0, way_out = 0, way_in = 0, arithmetic = 0;  // when each is free
    int next = 0;
    std::vector<double> posted, done;  // by step
  };
  struct Message {
    int from, to, sent, received;  // ranks; steps
  };

  double start(const Message& message) const {
    const Rank &from = ranks_[at(message.from)], &to = ranks_[at(message.to)];
    return std::max({from.posted[at(message.sent)], to.posted[at(message.received)], from.way_out, to.way_in});
  }

  /// Among messages that can start at once, those posted first go first.
  bool goes_before(const Message& a, const Message& b) const {
    return std::pair(start(a), a.sent) < std::pair(start(b), b.sent);
  }

  void move(const Message& message) {
    Rank &from = ranks_[at(message.from)], &to = ranks_[at(message.to)];
    const Step& receive = routines_[at(message.to)].steps[at(message.received)];
    const cost::LinkCost link = link_(message.from, message.to);
    const double bytes = bytes_ * static_cast<double>(receive.to.count);
    const double end = start(message) + link.alpha + link.beta * bytes;
    from.way_out = to.way_in = from.done[at(message.sent)] = to.done[at(message.received)] = end;
    if (receive.act == Act::kRecvReduce)
      to.done[at(message.received)] = to.arithmetic = std::max(end, to.arithmetic) + link.gamma * bytes;
  }

  void advance(int index) {
    Rank& rank = ranks_[at(index)];
    const auto& steps = routines_[at(index)].steps;
    for (; rank.next < static_cast<int>(steps.size()); ++rank.next) {
      const Step& step = steps[at(rank.next)];
      if (step.act == Act::kWait) {
        if (rank.done[at(step.on)] == kNever) return;
        rank.now = std::max(rank.now, rank.done[at(step.on)]);
      } else if (step.act == Act::kReduce) {
        rank.now = rank.arithmetic = std::max(rank.now, rank.arithmetic) +
                                     link_(index, index).gamma * bytes_ * static_cast<double>(step.to.count);
      } else if (step.act == Act::kSend || step.act == Act::kRecv || step.act == Act::kRecvReduce) {
        rank.posted[at(rank.next)] = rank.now;
        const int partner = matching_.partner[at(index)][at(rank.next)];
        if (ranks_[at(step.peer)].posted[at(partner)] == kNever) continue;
        ready_.push_back(step.act == Act::kSend ? Message{index, step.peer, rank.next, partner}
                                                : Message{step.peer, index, partner, rank.next});
      }
    }
  }

  std::span<const Routine> routines_;
  double bytes_;
  const LinkBetween& link_;
  Matching matching_;
  std::vector<Rank> ranks_;
  std::vector<Message> ready_;
};

}  // namespace

double replay(std::span<const Routine> routines, std::size_t element_bytes, const LinkBetween& link) {
  return Replay(routines, element_bytes, link).run();
}

double replay(std::span<const Routine> routines, std::size_t element_bytes, const cost::LinkCost& link) {
  return replay(routines, element_bytes, [&](int, int) { return link; });
}

}  // namespace trireme::comm
