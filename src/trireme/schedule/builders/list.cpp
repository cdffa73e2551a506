// A list scheduler: whenever a rank is free it takes the most urgent pass that is ready, for given times and a limit on
// what a rank may hold. Several rules of urgency are tried; the shortest result is kept.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>

#include "trireme/base/error.h"
#include "trireme/schedule/builders.h"

namespace trireme::schedule {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

/// What a rank prefers among what is ready.
struct Rule {
  bool forward_first;  // else backwards of inputs
  bool deep_first;     // of forwards through several chunks, the one nearer to the loss
  bool staggered;      // a rank runs ahead of its backwards by no more than the distance to the last rank, as in 1F1B
  bool early_weights;  // weight gradients at once, but for the last micros that a rank holds: those fill the end
  double patience;     // how much of a weight gradient's time a rank rather waits than starts one
};

/// In-flight chunks that a rank may hold.
int limit_of(const Shape& shape) {
  return shape.most_in_flight > 0 ? shape.most_in_flight : shape.ranks * shape.chunks_per_rank;
}

class ListRun {
 public:
  ListRun(const Shape& shape, const Rule& rule)
      : shape_(shape),
        rule_(rule),
        limit_(limit_of(shape)),
        chunks_(shape.ranks * shape.chunks_per_rank),
        schedule_(looped("list", shape)),
        passes_(static_cast<std::size_t>(chunks_)),
        ranks_(static_cast<std::size_t>(shape.ranks)) {
    for (Chunk& chunk : passes_) {
      chunk.forward_ready.assign(static_cast<std::size_t>(shape.micros), kNever);
      chunk.input_ready.assign(static_cast<std::size_t>(shape.micros), kNever);
    }
    passes_.front().forward_ready.assign(static_cast<std::size_t>(shape.micros), 0);
  }

  /// When the last rank ends.
  double run() {
    for (int rank = 0; rank < shape_.ranks; ++rank) wake(rank);
    double end = 0;
    while (!queue_.empty()) {
      const auto [now, rank] = *queue_.begin();
      queue_.erase(queue_.begin());
      ranks_[static_cast<std::size_t>(rank)].queued = kNever;
      const Choice choice = choose(rank, now);
      if (!choice.is_now) {
        enqueue(rank, choice.start);
        continue;
      }
      end = std::max(end, take(rank, choice));
    }
    TRIREME_CHECK(is_complete(), "the list scheduler stopped before all micros were through");
    return end;
  }

  Schedule take_schedule() { return std::move(schedule_); }

 private:
  struct Chunk {
    std::vector<double> forward_ready, input_ready;  // by micro
    int forwards = 0, inputs = 0, weights = 0;       // taken so far; micros go through a chunk in order
  };
  struct Rank {
    double free = 0;
    int reserved = 0;        // chunks that micros which came in will hold, and hold
    double queued = kNever;  // its key in the queue
  };
  struct Choice {
    Op op = Op::kForward;
    int chunk = -1;
    double start = kNever;
    bool is_now = false;  // else nothing is to be done before `start`
  };

  Chunk& chunk(int index) { return passes_[static_cast<std::size_t>(index)]; }

  void enqueue(int rank, double start) {
    double& queued = ranks_[static_cast<std::size_t>(rank)].queued;
    if (start >= queued) return;
    if (queued != kNever) queue_.erase({queued, rank});
    queued = start;
    queue_.insert({start, rank});
  }

  void wake(int rank) {
    if (const Choice choice = choose(rank, 0); choice.start != kNever) enqueue(rank, choice.start);
  }

  /// A micro comes to a rank only when there is room for all of its passes there: else it might never get out again.
  bool may_enter(int rank, int index) const {
    if (index >= shape_.ranks) return true;
    const Chunk& first = passes_[static_cast<std::size_t>(index)];
    const int ahead = std::max(1, limit_ / shape_.chunks_per_rank - rank);
    if (rule_.staggered && first.forwards - first.inputs >= ahead) return false;
    return ranks_[static_cast<std::size_t>(rank)].reserved + shape_.chunks_per_rank <= limit_;
  }

  /// Smaller is more urgent.
  int urgency(Op op) const {
    if (op == Op::kBackwardWeight) return -1;  // only an early one is compared
    return (op == Op::kForward) == rule_.forward_first ? 0 : 1;
  }

  /// Of what can start from `now` on.
  Choice choose(int rank, double now) {
    const double free = std::max(now, ranks_[static_cast<std::size_t>(rank)].free);
    Choice best, weight;
    const auto offer = [&](Choice& to, Op op, int index, double ready) {
      const double start = std::max(free, ready);
      const bool better =
          start < to.start || (start == to.start && to.chunk >= 0 && start != kNever && urgency(op) < urgency(to.op));
      if (better) to = {op, index, start, true};
    };
    for (int turn = 0; turn < shape_.chunks_per_rank; ++turn) {
      const int index = (rule_.deep_first ? shape_.chunks_per_rank - 1 - turn : turn) * shape_.ranks + rank;
      const Chunk& it = chunk(index);
      if (it.inputs < shape_.micros)
        offer(best, Op::kBackwardInput, index, it.input_ready[static_cast<std::size_t>(it.inputs)]);
      if (it.forwards < shape_.micros && may_enter(rank, index))
        offer(best, Op::kForward, index, it.forward_ready[static_cast<std::size_t>(it.forwards)]);
      const bool early = rule_.early_weights && it.weights < shape_.micros - limit_ / shape_.chunks_per_rank;
      if (it.weights < it.inputs) offer(early ? best : weight, Op::kBackwardWeight, index, 0);
    }
    if (weight.start == kNever) return best;
    // A weight gradient is done when nothing else is ready, or soon will be.
    if (best.start > weight.start + rule_.patience * shape_.times.backward_weight) return weight;
    best.is_now = best.start <= weight.start;
    return best;
  }

  double take(int rank, const Choice& choice) {
    Rank& mine = ranks_[static_cast<std::size_t>(rank)];
    Chunk& it = chunk(choice.chunk);
    const double end = choice.start + shape_.times.of(choice.op);
    mine.free = end;
    int micro = 0;
    if (choice.op == Op::kForward) {
      micro = it.forwards++;
      if (choice.chunk < shape_.ranks) mine.reserved += shape_.chunks_per_rank;
      if (choice.chunk + 1 < chunks_)
        arrive(chunk(choice.chunk + 1).forward_ready, choice.chunk + 1, micro, rank, end);
      else
        it.input_ready[static_cast<std::size_t>(micro)] = end;
    } else if (choice.op == Op::kBackwardInput) {
      micro = it.inputs++;
      if (choice.chunk > 0) arrive(chunk(choice.chunk - 1).input_ready, choice.chunk - 1, micro, rank, end);
    } else {
      micro = it.weights++;
      --mine.reserved;
    }
    schedule_.ranks[static_cast<std::size_t>(rank)].push_back(make(choice.op, choice.chunk, micro));
    wake(rank);
    return end;
  }

  void arrive(std::vector<double>& ready, int at_chunk, int micro, int from, double end) {
    const int to = at_chunk % shape_.ranks;
    ready[static_cast<std::size_t>(micro)] = end + (to == from ? 0 : shape_.times.link);
    if (to != from) wake(to);
  }

  bool is_complete() const {
    return std::ranges::all_of(passes_, [&](const Chunk& it) { return it.weights == shape_.micros; });
  }

  const Shape& shape_;
  Rule rule_;
  int limit_, chunks_;
  Schedule schedule_;
  std::vector<Chunk> passes_;
  std::vector<Rank> ranks_;
  std::set<std::pair<double, int>> queue_;  // when each rank next has something to do
};

std::vector<Rule> rules(bool several_chunks) {
  std::vector<Rule> all;
  for (const bool forward_first : {false, true}) {
    for (const bool deep_first : {true, false}) {
      for (const bool staggered : {true, false}) {
        for (const bool early_weights : {true, false}) {
          for (const double patience : {0.0, 0.5, 1.0})
            all.push_back({forward_first, deep_first, staggered, early_weights, patience});
        }
      }
    }
  }
  // Turns are for several chunks, staggering is for one.
  std::erase_if(all, [&](const Rule& rule) { return several_chunks ? rule.staggered : !rule.deep_first; });
  return all;
}

Schedule build_list(const Shape& shape) {
  Schedule best;
  double least = kNever;
  for (const Rule& rule : rules(shape.chunks_per_rank > 1)) {
    ListRun run(shape, rule);
    const double end = run.run();
    if (end >= least * (1 - 1e-12)) continue;
    least = end;
    best = run.take_schedule();
  }
  return best;
}

std::string list_schedule_refuses(const Shape& shape) {
  if (limit_of(shape) >= shape.chunks_per_rank) return "";
  return fmt::format("a rank may hold {} chunks, but a micro needs {} of it", limit_of(shape), shape.chunks_per_rank);
}

}  // namespace

Kind list_scheduled() {
  return {.name = "list",
          .what = "made for the given times and memory by a list scheduler",
          .from = "ours; rules as in 2401.10241, section 3.1",
          .build = build_list,
          .refuses = list_schedule_refuses};
}

}  // namespace trireme::schedule
