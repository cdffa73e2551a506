#include "trireme/schedule/replay.h"

#include <algorithm>
#include <map>
#include <memory>
#include <span>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/schedule/interleave.h"
#include "trireme/schedule/passes.h"
#include "trireme/schedule/wiring.h"

namespace trireme::schedule {

double Timing::work() const {
  double sum = 0;
  for (const RankTiming& rank : ranks) sum += rank.busy;
  return sum;
}

double Timing::bubble() const { return makespan > 0 ? 1 - work() / (static_cast<double>(ranks.size()) * makespan) : 0; }

double steady_bubble(const Timing& shorter, const Timing& longer) {
  const double period = longer.makespan - shorter.makespan;
  return 1 - (longer.work() - shorter.work()) / (static_cast<double>(longer.ranks.size()) * period);
}

namespace {

constexpr int kNoEvent = -1;

/// What happened, and what it waited for last: only kept where the critical path is asked for.
struct Event {
  PathStep step;
  int cause;
};

/// One reduction of one chunk: over when its last holder has posted it, and the time it takes has passed.
struct Reduction {
  int missing = 0;
  double end = 0;
  int event = kNoEvent;
};

class Replay {
 public:
  Replay(const Schedule& schedule, const ReplayOptions& options)
      : schedule_(schedule), options_(options), wiring_(wire(schedule)), channels_(wiring_.channels.size()) {
    timing_.ranks.resize(schedule.ranks.size());
    ranks_.resize(schedule.ranks.size());
    reductions_.resize(static_cast<std::size_t>(schedule.chunks()));
    for (int chunk = 0; chunk < schedule.chunks(); ++chunk) holders_.push_back(holders_of(schedule, chunk));
    if (has_parts(schedule)) exchanges_.resize(ranks_.size(), RankExchanges{.open = OpenPasses(schedule)});
    for (std::size_t channel = 0; channel < channels_.size(); ++channel)
      channels_[channel].arrivals.reserve(wiring_.channels[channel].sends.size());
  }

  Timing run() {
    for (std::size_t rank = ranks_.size(); rank-- > 0;) ready_.push_back(rank);
    while (!ready_.empty()) {
      const std::size_t rank = ready_.back();
      ready_.pop_back();
      while (ranks_[rank].at < schedule_.ranks[rank].size() && step(rank)) ++ranks_[rank].at;
    }
    std::size_t last = 0;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      TRIREME_CHECK(ranks_[rank].at == schedule_.ranks[rank].size(),
                    "schedule {}: rank {} waits for ever at position {}; check() says why", schedule_.name, rank,
                    ranks_[rank].at);
      if (timing_.ranks[rank].last_end > timing_.ranks[last].last_end) last = rank;
    }
    timing_.makespan = timing_.ranks.empty() ? 0 : timing_.ranks[last].last_end;
    if (options_.keep_path && !ranks_.empty()) trace_back(ranks_[last].last_computation);
    if (options_.sizes) timing_.peak_memory = peak_memory(schedule_, *options_.sizes);
    return std::move(timing_);
  }

 private:
  struct RankState {
    std::size_t at = 0;
    double now = 0;
    int event = kNoEvent;  // whose end `now` is
    int last_computation = kNoEvent;
    std::vector<Reduction*> posted = {};  // since the last optimizer step
    std::size_t updates = 0;              // begun, where all begin together
    bool arrived = false;                 // at the next one
  };
  struct ChannelState {
    std::vector<double> arrivals = {};  // of each message sent so far
    std::vector<int> events = {};       // likewise, where the path is asked for
    bool waiting = false;               // its receiver stands at a message that is not sent yet
  };
  /// Rows of mixtures that are on their way: one exchange of a rank after the other.
  struct RankExchanges {
    OpenPasses open;
    std::map<std::pair<int, int>, double> arrivals = {};  // by chunk and micro
    double free = 0;
  };
  struct Meeting {
    std::size_t present = 0;
    double time = 0;
    int event = kNoEvent;
  };
  struct ChunkReductions {
    std::vector<int> posted = {};  // by holder: how many
    std::vector<std::unique_ptr<Reduction>> items = {};
  };

  /// False when the rank must wait for something that has not been posted yet. When it is, its end is known at once,
  /// as it depends on nothing but what was posted before: so nothing is ever looked at twice, but for such waits.
  bool step(std::size_t rank) {
    const Instruction& it = schedule_.ranks[rank][ranks_[rank].at];
    const TransferId& message = wiring_.messages[rank][ranks_[rank].at];
    if (message.channel >= 0) {
      if (is_send(it.op)) send(rank, it, static_cast<std::size_t>(message.channel));
      if (is_wait(it.op) && !wait(rank, message)) return false;
      if (options_.transfer_of) ranks_[rank].now += options_.transfer_of(static_cast<int>(rank), it);
      return true;
    }
    if (it.op == Op::kReduceGradients) {
      reduce(rank, it);
      return true;
    }
    if (it.op == Op::kOptimizerStep && !(reductions_are_over(rank) && others_are_there(rank))) return false;
    if (is_begin(it.op) || is_part(it.op)) {
      part(rank, it);
    } else {
      compute(rank, it, time_of(rank, it) + exposed(rank, it));
    }
    return true;
  }

  double exchange(std::size_t rank, int chunk) const {
    return options_.exchange_of ? options_.exchange_of(static_cast<int>(rank), chunk) : options_.times.exchange;
  }

  /// What a whole pass waits for rows of its mixtures: they go and come back.
  double exposed(std::size_t rank, const Instruction& it) const {
    if (schedule_.mixtures.empty() || options_.time_of) return 0;
    const auto of = [&](int chunk) { return 2 * mixtures_of(schedule_, chunk) * exchange(rank, chunk); };
    double waits = 0;
    if (does_forward(it) || it.op == Op::kRecompute) waits += std::max(1, forward_count(it)) * of(it.chunk);
    if (does_input_gradient(it)) waits += of(backward_chunk(it));
    return waits;
  }

  /// A part of a pass: what it waits for, computes and posts.
  void part(std::size_t rank, const Instruction& it) {
    RankExchanges& mine = exchanges_[rank];
    const OpenPasses::Open* pass = mine.open.find(it);
    const bool backward = is_begin(it.op) ? it.op == Op::kBeginBackward : pass->backward;
    double& arrival = mine.arrivals[{it.chunk, it.micro}];
    if (it.op == Op::kExpert || it.op == Op::kCombine) advance(ranks_[rank], arrival, ranks_[rank].event);
    double takes = 0;
    if (options_.part_of) {
      takes = options_.part_of(static_cast<int>(rank), it, backward);
    } else if (options_.time_of) {
      takes = options_.time_of(static_cast<int>(rank), it);
    } else {
      const double whole = backward ? options_.times.backward() : options_.times.forward;
      takes = part_time(it.op, whole, options_.times.experts, mixtures_of(schedule_, it.chunk));
    }
    compute(rank, it, takes);
    if (it.op == Op::kDispatch || it.op == Op::kExpert) {
      mine.free = std::max(mine.free, ranks_[rank].now) + exchange(rank, it.chunk);
      arrival = mine.free;
    }
    mine.open.step(it);
  }

  int record(std::size_t rank, const Instruction& it, double start, double end, int cause) {
    if (!options_.keep_path) return kNoEvent;
    events_.push_back({{static_cast<int>(rank), it, start, end}, cause});
    return static_cast<int>(events_.size()) - 1;
  }

  void send(std::size_t rank, const Instruction& it, std::size_t index) {
    ChannelState& channel = channels_[index];
    const RankState& sender = ranks_[rank];
    const int to = wiring_.channels[index].to;
    const double free = channel.arrivals.empty() ? 0 : channel.arrivals.back();
    const double start = std::max(sender.now, free);
    const double takes = options_.link_of ? options_.link_of(static_cast<int>(rank), to, it) : options_.times.link;
    const int cause = free > sender.now && options_.keep_path ? channel.events.back() : sender.event;
    channel.arrivals.push_back(start + takes);
    if (options_.keep_path) channel.events.push_back(record(rank, it, start, start + takes, cause));
    if (channel.waiting) {
      channel.waiting = false;
      ready_.push_back(static_cast<std::size_t>(to));
    }
  }

  bool wait(std::size_t rank, const TransferId& message) {
    ChannelState& channel = channels_[static_cast<std::size_t>(message.channel)];
    const auto sequence = static_cast<std::size_t>(message.sequence);
    if (sequence >= channel.arrivals.size()) {
      channel.waiting = true;
      return false;
    }
    advance(ranks_[rank], channel.arrivals[sequence], options_.keep_path ? channel.events[sequence] : kNoEvent);
    return true;
  }

  static void advance(RankState& state, double time, int event) {
    if (time <= state.now) return;
    state.now = time;
    state.event = event;
  }

  double time_of(std::size_t rank, const Instruction& it) const {
    return options_.time_of ? options_.time_of(static_cast<int>(rank), it) : options_.times.of(it.op);
  }

  void reduce(std::size_t rank, const Instruction& it) {
    const auto& holders = holders_[static_cast<std::size_t>(it.chunk)];
    auto& of_chunk = reductions_[static_cast<std::size_t>(it.chunk)];
    of_chunk.posted.resize(holders.size(), 0);
    const auto me = static_cast<std::size_t>(std::ranges::find(holders, static_cast<int>(rank)) - holders.begin());
    const auto turn = static_cast<std::size_t>(of_chunk.posted[me]++);
    if (turn == of_chunk.items.size())
      of_chunk.items.push_back(std::make_unique<Reduction>(Reduction{.missing = static_cast<int>(holders.size())}));
    Reduction& reduction = *of_chunk.items[turn];
    ranks_[rank].posted.push_back(&reduction);
    const double end = ranks_[rank].now + time_of(rank, it);
    if (reduction.event == kNoEvent || end > reduction.end)
      reduction.event = record(rank, it, ranks_[rank].now, end, ranks_[rank].event);
    reduction.end = std::max(reduction.end, end);
    if (--reduction.missing > 0) return;
    for (const int holder : holders) {
      if (holder != static_cast<int>(rank)) ready_.push_back(static_cast<std::size_t>(holder));
    }
  }

  bool reductions_are_over(std::size_t rank) {
    RankState& state = ranks_[rank];
    if (schedule_.weights == WeightChoice::kWaves) return oldest_wave_is_over(rank);
    if (std::ranges::any_of(state.posted, [](const Reduction* it) { return it->missing > 0; })) return false;
    for (const Reduction* it : state.posted) advance(state, it->end, it->event);
    state.posted.clear();
    return true;
  }

  /// A wave's update waits for that wave alone: those pushed since are still under way.
  bool oldest_wave_is_over(std::size_t rank) {
    RankState& state = ranks_[rank];
    const auto chunks = static_cast<std::ptrdiff_t>(chunks_of(schedule_, static_cast<int>(rank)).size());
    const auto wave = std::span(state.posted).first(static_cast<std::size_t>(chunks));
    if (std::ranges::any_of(wave, [](const Reduction* it) { return it->missing > 0; })) return false;
    for (const Reduction* it : wave) advance(state, it->end, it->event);
    state.posted.erase(state.posted.begin(), state.posted.begin() + chunks);
    return true;
  }

  /// Whether all ranks have come to this update, where they begin it together.
  bool others_are_there(std::size_t rank) {
    if (!options_.updates_together) return true;
    RankState& state = ranks_[rank];
    if (meetings_.size() <= state.updates) meetings_.resize(state.updates + 1);
    Meeting& meeting = meetings_[state.updates];
    if (!state.arrived) {
      state.arrived = true;
      if (meeting.present == 0 || state.now > meeting.time) meeting = {meeting.present, state.now, state.event};
      if (++meeting.present == ranks_.size()) {
        for (std::size_t other = 0; other < ranks_.size(); ++other) {
          if (other != rank) ready_.push_back(other);
        }
      }
    }
    if (meeting.present < ranks_.size()) return false;
    advance(state, meeting.time, meeting.event);
    state.arrived = false;
    ++state.updates;
    return true;
  }

  void compute(std::size_t rank, const Instruction& it, double takes) {
    const bool always_kept = it.op == Op::kOptimizerStep;
    if (takes <= 0 && !always_kept) return;
    RankTiming& timing = timing_.ranks[rank];
    RankState& state = ranks_[rank];
    const double start = state.now;
    if (timing.busy == 0) timing.first_start = start;
    state.now += takes;
    timing.busy += takes;
    timing.last_end = state.now;
    if (options_.keep_spans) timing.spans.push_back({.instruction = it, .start = start, .end = state.now});
    if (options_.keep_path) state.event = state.last_computation = record(rank, it, start, state.now, state.event);
  }

  void trace_back(int event) {
    for (; event != kNoEvent; event = events_[static_cast<std::size_t>(event)].cause) {
      const PathStep& step = events_[static_cast<std::size_t>(event)].step;
      if (step.end > step.start) timing_.path.push_back(step);
    }
    std::ranges::reverse(timing_.path);
  }

  const Schedule& schedule_;
  const ReplayOptions& options_;
  Wiring wiring_;
  std::vector<ChannelState> channels_;
  std::vector<RankState> ranks_;
  std::vector<ChunkReductions> reductions_;  // by chunk
  std::vector<std::vector<int>> holders_;    // by chunk
  std::vector<RankExchanges> exchanges_;     // by rank, of tables with passes in parts
  std::vector<Meeting> meetings_;            // by update
  std::vector<Event> events_;
  std::vector<std::size_t> ready_;
  Timing timing_;
};

}  // namespace

Timing replay(const Schedule& schedule, const ReplayOptions& options) {
  if (has_transfers(schedule)) return Replay(schedule, options).run();
  const Schedule complete = add_transfers(schedule);
  return Replay(complete, options).run();
}

}  // namespace trireme::schedule
