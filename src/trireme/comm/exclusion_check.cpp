#include "trireme/comm/exclusion_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "trireme/base/error.h"

namespace trireme::comm {
namespace {

struct ExclusionWorld {
  std::vector<ExclusionProcess> processes;
  std::vector<int> left;                                // entries, of each rank
  std::vector<std::vector<ExclusionMessage>> channels;  // [from * ranks + to], oldest first
  ClockStamp last;                                      // of the last entry
  std::int64_t sent = 0;
};

/// 128 bits of hash of a state: millions of them fit into memory, and that two of them collide is less likely than a
/// fault of the machine.
using StateHash = std::pair<std::uint64_t, std::uint64_t>;
struct FirstHalf {
  std::size_t operator()(const StateHash& hash) const { return static_cast<std::size_t>(hash.first); }
};

std::uint64_t mixed(std::uint64_t value) {  // the finaliser of MurmurHash3
  value = (value ^ (value >> 33)) * 0xFF51AFD7ED558CCDULL;
  value = (value ^ (value >> 33)) * 0xC4CEB9FE1A85EC53ULL;
  return value ^ (value >> 33);
}

/// Of all that decides what can happen from here.
StateHash hash_of(const ExclusionWorld& world) {
  StateHash hash{1, 2};
  const auto put = [&hash](std::int64_t value) {
    hash.first = mixed(hash.first * 31 + static_cast<std::uint64_t>(value));
    hash.second = mixed(hash.second * 37 + static_cast<std::uint64_t>(value) + 0x9E3779B97F4A7C15ULL);
  };
  const int ranks = static_cast<int>(world.processes.size());
  for (const ExclusionProcess& process : world.processes) {
    put(process.clock());
    put(process.inside() ? 1 : 0);
    for (int other = 0; other < ranks; ++other) {
      put(process.request_of(other));
      put(process.heard_of(other));
    }
  }
  for (const int left : world.left) put(left);
  for (const auto& channel : world.channels) {
    put(static_cast<std::int64_t>(channel.size()));
    for (const ExclusionMessage& message : channel) {
      put(static_cast<int>(message.kind));
      put(message.clock);
    }
  }
  put(world.last.clock);
  put(world.last.rank);
  return hash;
}

struct ExclusionStep {
  enum class Kind : std::uint8_t { kRequest, kEnter, kRelease, kArrive } kind;
  int rank = 0;
  std::size_t channel = 0, place = 0;
};

std::string step_text(const ExclusionWorld& world, const ExclusionStep& step) {
  switch (step.kind) {
    case ExclusionStep::Kind::kRequest:
      return fmt::format("rank {} requests", step.rank);
    case ExclusionStep::Kind::kEnter:
      return fmt::format("rank {} enters", step.rank);
    case ExclusionStep::Kind::kRelease:
      return fmt::format("rank {} releases", step.rank);
    case ExclusionStep::Kind::kArrive:
      break;
  }
  constexpr const char* kNames[] = {"request", "acknowledgement", "release"};
  const ExclusionMessage& message = world.channels[step.channel][step.place];
  return fmt::format("the {} of rank {} with clock {} reaches rank {}", kNames[static_cast<int>(message.kind)],
                     message.from, message.clock, message.to);
}

class ExclusionExplorer {
 public:
  explicit ExclusionExplorer(const ExclusionSearch& search)
      : search_(search), ranks_(static_cast<int>(search.entries.size())) {}

  ExclusionReport run() {
    ExclusionWorld start;
    for (int rank = 0; rank < ranks_; ++rank) start.processes.emplace_back(rank, ranks_);
    start.left = search_.entries;
    start.channels.resize(static_cast<std::size_t>(ranks_ * ranks_));
    // Depth first with the worlds of the way kept: they are few, and stepping back needs no inverse of a step.
    struct Frame {
      ExclusionWorld world;
      std::vector<ExclusionStep> steps;
      std::size_t next = 0;
    };
    std::vector<Frame> way;
    const auto visit = [&](ExclusionWorld world) {
      if (!seen_.insert(hash_of(world)).second) return;
      ++report_.states;
      Frame frame{.world = std::move(world), .steps = {}};
      frame.steps = steps_of(frame.world);
      if (frame.steps.empty()) look_at_end(frame.world);
      way.push_back(std::move(frame));
    };
    visit(std::move(start));
    while (!way.empty() && report_.problem.empty()) {
      if (report_.states > search_.most_states) return report_;
      Frame& top = way.back();
      if (top.next == top.steps.size()) {
        way.pop_back();
        continue;
      }
      const ExclusionStep step = top.steps[top.next++];
      ExclusionWorld world = top.world;
      take(world, step);
      if (report_.problem.empty()) visit(std::move(world));
    }
    if (!report_.problem.empty()) {
      for (const Frame& frame : way) {
        if (frame.next > 0) report_.steps.push_back(step_text(frame.world, frame.steps[frame.next - 1]));
      }
    }
    report_.complete = report_.problem.empty();
    return report_;
  }

 private:
  std::vector<ExclusionStep> steps_of(const ExclusionWorld& world) const {
    std::vector<ExclusionStep> steps;
    for (int rank = 0; rank < ranks_; ++rank) {
      const ExclusionProcess& process = world.processes[static_cast<std::size_t>(rank)];
      if (process.inside()) {
        steps.push_back({.kind = ExclusionStep::Kind::kRelease, .rank = rank});
      } else if (!process.requested()) {
        if (world.left[static_cast<std::size_t>(rank)] > 0) {
          steps.push_back({.kind = ExclusionStep::Kind::kRequest, .rank = rank});
        }
      } else if (search_.may_enter(process)) {
        steps.push_back({.kind = ExclusionStep::Kind::kEnter, .rank = rank});
      }
    }
    for (std::size_t channel = 0; channel < world.channels.size(); ++channel) {
      const std::size_t arrivals =
          search_.ordered ? std::min<std::size_t>(1, world.channels[channel].size()) : world.channels[channel].size();
      for (std::size_t place = 0; place < arrivals; ++place) {
        steps.push_back({.kind = ExclusionStep::Kind::kArrive, .channel = channel, .place = place});
      }
    }
    return steps;
  }

  void take(ExclusionWorld& world, const ExclusionStep& step) {
    const auto at = static_cast<std::size_t>(step.rank);
    switch (step.kind) {
      case ExclusionStep::Kind::kRequest:
        --world.left[at];
        send(world, world.processes[at].request());
        break;
      case ExclusionStep::Kind::kEnter:
        look_at_entry(world, step.rank);
        world.last = *world.processes[at].requested();
        world.processes[at].enter();
        break;
      case ExclusionStep::Kind::kRelease:
        send(world, world.processes[at].release());
        break;
      case ExclusionStep::Kind::kArrive: {
        auto& channel = world.channels[step.channel];
        const ExclusionMessage message = channel[step.place];
        channel.erase(channel.begin() + static_cast<std::ptrdiff_t>(step.place));
        send(world, world.processes[static_cast<std::size_t>(message.to)].receive(message));
        break;
      }
    }
  }

  void send(ExclusionWorld& world, const ExclusionProcess::Messages& messages) const {
    for (const ExclusionMessage& message : messages) {
      world.channels[static_cast<std::size_t>(message.from * ranks_ + message.to)].push_back(message);
      ++world.sent;
    }
  }

  void look_at_entry(const ExclusionWorld& world, int rank) {
    const ClockStamp mine = *world.processes[static_cast<std::size_t>(rank)].requested();
    for (const ExclusionProcess& other : world.processes) {
      if (other.inside()) {
        report_.problem = fmt::format("rank {} enters while rank {} is inside", rank, other.rank());
        return;
      }
      if (other.requested() && *other.requested() < mine) {
        report_.problem = fmt::format("rank {} enters with clock {} before rank {} with clock {}", rank, mine.clock,
                                      other.rank(), other.requested()->clock);
        return;
      }
    }
    if (mine < world.last) {
      report_.problem = fmt::format("rank {} enters with clock {} after clock {} of rank {}", rank, mine.clock,
                                    world.last.clock, world.last.rank);
    }
  }

  void look_at_end(const ExclusionWorld& world) {
    ++report_.ends;
    for (const ExclusionProcess& process : world.processes) {
      if (process.requested()) {
        report_.problem = fmt::format("nothing can happen any more, and rank {} still waits", process.rank());
        return;
      }
    }
    if (report_.ends == 1) report_.messages = world.sent;
    TRIREME_CHECK(report_.messages == world.sent, "runs with {} and {} messages", report_.messages, world.sent);
  }

  const ExclusionSearch& search_;
  const int ranks_;
  ExclusionReport report_;
  std::unordered_set<StateHash, FirstHalf> seen_;
};

}  // namespace

ExclusionReport explore_exclusion(const ExclusionSearch& search) { return ExclusionExplorer(search).run(); }

}  // namespace trireme::comm
