#include "trireme/plan/makespan.h"

#include <algorithm>
#include <array>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/schedule/interleave.h"
#include "trireme/schedule/passes.h"
#include "trireme/schedule/replay.h"

namespace trireme::plan {
namespace {

using schedule::Instruction;
using schedule::Op;

constexpr double kNotSent = -1;
constexpr std::size_t kPasses = static_cast<std::size_t>(Op::kForwardBackward) + 1;

/// A rank runs its list in order and waits for what other ranks send it. At most one message from a rank to another is
/// under way: the next leaves when that has arrived (schedule/passes.h).
class MakespanWalk {
 public:
  MakespanWalk(const schedule::Schedule& table, const std::vector<schedule::Times>& chunks, double link)
      : table_(table),
        link_(link),
        micros_(static_cast<std::size_t>(table.micros)),
        ranks_(table.ranks.size()),
        activations_(micros_ * chunks.size(), kNotSent),
        gradients_(micros_ * chunks.size(), kNotSent) {
    for (const schedule::Times& times : chunks) {
      auto& row = seconds_.emplace_back();
      for (std::size_t op = 0; op < kPasses; ++op) row[op] = times.of(static_cast<Op>(op));
    }
  }

  double run() {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) ready_.push_back(static_cast<int>(rank));
    while (!ready_.empty()) {
      const int rank = ready_.back();
      ready_.pop_back();
      go_on(rank);
    }
    double last = 0;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      TRIREME_CHECK(ranks_[rank].at == table_.ranks[rank].size(), "schedule {}: rank {} waits for ever at position {}",
                    table_.name, rank, ranks_[rank].at);
      last = std::max(last, ranks_[rank].last_end);
    }
    return last;
  }

 private:
  struct RankClock {
    std::size_t at = 0;
    double now = 0, last_end = 0;
    const double* waits_for = nullptr;
    std::vector<std::pair<int, double>> sent = {};  ///< to whom, and when the last message arrived there
  };

  std::size_t cell(int chunk, int micro) const {
    return static_cast<std::size_t>(chunk) * micros_ + static_cast<std::size_t>(micro);
  }

  /// Until the list ends or a message is missing.
  void go_on(int rank) {
    RankClock& clock = ranks_[static_cast<std::size_t>(rank)];
    const std::vector<Instruction>& list = table_.ranks[static_cast<std::size_t>(rank)];
    for (; clock.at < list.size(); ++clock.at) {
      const Instruction& it = list[clock.at];
      if (it.op == Op::kOptimizerStep) clock.last_end = clock.now;
      if (it.op > Op::kForwardBackward) continue;  // takes no time
      const bool pair = it.op == Op::kForwardBackward;
      const bool forward = pair || it.op == Op::kForward || it.op == Op::kForwardDoubled;
      const bool backward = pair || it.op == Op::kBackward || it.op == Op::kBackwardInput;
      const int back_chunk = pair ? it.back_chunk : it.chunk, back_micro = pair ? it.back_micro : it.micro;
      if (forward && it.chunk > 0 && !receive(rank, clock, it.chunk - 1, it.micro, activations_)) return;
      if (backward && back_chunk < table_.last_chunk() && !receive(rank, clock, back_chunk + 1, back_micro, gradients_))
        return;
      if (const double takes = seconds(it); takes > 0) clock.last_end = clock.now += takes;
      if (forward && it.chunk < table_.last_chunk()) send(rank, clock, it.chunk, it.chunk + 1, it.micro, activations_);
      if (backward && back_chunk > 0) send(rank, clock, back_chunk, back_chunk - 1, back_micro, gradients_);
    }
  }

  double seconds(const Instruction& it) const {
    const auto& row = seconds_[static_cast<std::size_t>(it.chunk)];
    if (it.op != Op::kForwardBackward) return row[static_cast<std::size_t>(it.op)];
    return row[static_cast<std::size_t>(Op::kForward)] +
           seconds_[static_cast<std::size_t>(it.back_chunk)][static_cast<std::size_t>(Op::kBackward)];
  }

  /// What `from` made of the micro; false: it has not been sent yet.
  bool receive(int rank, RankClock& clock, int from, int micro, const std::vector<double>& messages) {
    if (table_.rank_of(from, micro) == rank) return true;
    const double& arrival = messages[cell(from, micro)];
    if (arrival == kNotSent) {
      clock.waits_for = &arrival;
      return false;
    }
    clock.now = std::max(clock.now, arrival);
    return true;
  }

  void send(int rank, RankClock& clock, int from, int to, int micro, std::vector<double>& messages) {
    const int peer = table_.rank_of(to, micro);
    if (peer == rank) return;
    double& arrival = messages[cell(from, micro)];
    if (link_ > 0) {
      double& before = last_sent(clock, peer);
      clock.now = std::max(clock.now, before);
      before = clock.now + link_;
    }
    arrival = clock.now + link_;
    RankClock& receiver = ranks_[static_cast<std::size_t>(peer)];
    if (receiver.waits_for != &arrival) return;
    receiver.waits_for = nullptr;
    ready_.push_back(peer);
  }

  /// A rank talks to few others, so that looking through them is quick.
  static double& last_sent(RankClock& clock, int peer) {
    for (auto& [known, arrival] : clock.sent) {
      if (known == peer) return arrival;
    }
    return clock.sent.emplace_back(peer, 0.0).second;
  }

  const schedule::Schedule& table_;
  double link_;
  std::size_t micros_;
  std::vector<std::array<double, kPasses>> seconds_;  // by chunk
  std::vector<RankClock> ranks_;
  std::vector<double> activations_, gradients_;  // when what a chunk made of a micro arrives
  std::vector<int> ready_;
};

}  // namespace

double pass_seconds(const std::vector<schedule::Times>& chunks, const schedule::Instruction& it) {
  if (it.op > Op::kForwardBackward || it.chunk < 0) return 0;
  const schedule::Times& times = chunks[static_cast<std::size_t>(it.chunk)];
  if (it.op != Op::kForwardBackward) return times.of(it.op);
  return times.forward + chunks[static_cast<std::size_t>(it.back_chunk)].backward();
}

double part_seconds(const std::vector<schedule::Times>& chunks, const schedule::Instruction& part, bool backward) {
  const schedule::Times& times = chunks[static_cast<std::size_t>(part.chunk)];
  const double whole = (backward ? times.backward() : times.forward) - 2 * times.mixtures * times.exchange;
  return schedule::part_time(part.op, std::max(0.0, whole), times.experts, times.mixtures);
}

schedule::Schedule pairs_in_parts(const schedule::Schedule& table, const std::vector<schedule::Times>& chunks) {
  const bool pairs = std::ranges::any_of(table.ranks, [](const auto& list) {
    return std::ranges::any_of(list, [](const Instruction& it) { return it.op == Op::kForwardBackward; });
  });
  std::vector<int> mixtures;
  for (const schedule::Times& times : chunks) mixtures.push_back(times.mixtures);
  if (!pairs || std::ranges::count(mixtures, 0) == static_cast<std::ptrdiff_t>(mixtures.size())) return table;
  return schedule::interleave_pairs(schedule::has_transfers(table) ? table : schedule::add_transfers(table),
                                    std::move(mixtures));
}

double makespan(const schedule::Schedule& table, const std::vector<schedule::Times>& chunks, double link) {
  // Between steps ranks wait for updates.
  if (table.steps() <= 1 && !schedule::has_transfers(table)) return MakespanWalk(table, chunks, link).run();
  schedule::ReplayOptions options{.times = {.link = link}};
  options.time_of = [&](int, const Instruction& it) { return pass_seconds(chunks, it); };
  options.part_of = [&](int, const Instruction& it, bool backward) { return part_seconds(chunks, it, backward); };
  options.exchange_of = [&](int, int chunk) { return chunks[static_cast<std::size_t>(chunk)].exchange; };
  return schedule::replay(table, options).makespan;
}

}  // namespace trireme::plan
