#include "trireme/comm/routine_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/comm/routine_matching.h"
#include "trireme/comm/routine_symbols.h"

namespace trireme::comm {

namespace {

constexpr std::size_t kMostFaults = 20;  // more would only bury the first

bool is_receive(Act act) { return act == Act::kRecv || act == Act::kRecvReduce; }
bool is_post(Act act) { return act == Act::kSend || is_receive(act); }
bool reads(Act act) { return act != Act::kRecv && act != Act::kWait && act != Act::kFinish; }
bool writes(Act act) { return act != Act::kSend && act != Act::kWait; }
bool reduces(Collective op) {
  return op == Collective::kAllReduce || op == Collective::kReduce || op == Collective::kReduceScatter;
}

/// Where the three spaces of one rank lie in its memory. In place, input and output overlap.
struct Memory {
  std::size_t begin[3] = {}, count[3] = {};  // by Space
  std::size_t cells = 0;

  Memory(const Shape& shape, int rank, std::size_t scratch, bool in_place) {
    auto& [input, output, own_scratch] = count;
    const auto sum = [](const std::vector<std::size_t>& counts, int first) {
      return std::accumulate(counts.begin(), counts.begin() + first, std::size_t{0});
    };
    const bool root = rank == shape.root;
    const std::size_t block = shape.counts.empty() ? 0 : shape.counts[at(rank)];
    const std::size_t all = shape.counts.empty() ? 0 : sum(shape.counts, shape.ranks);
    std::size_t in_shift = 0, out_shift = 0;
    bool shared = in_place;
    switch (shape.op) {
      case Collective::kAllReduce:
        input = output = shape.count;
        break;
      case Collective::kReduce:
        input = shape.count;
        output = root ? shape.count : 0;
        break;
      case Collective::kBroadcast:
        output = shape.count;
        break;
      case Collective::kReduceScatter:
        input = all, output = block, out_shift = sum(shape.counts, rank);
        break;
      case Collective::kScatter:
        input = root ? all : 0, output = block, out_shift = sum(shape.counts, rank);
        shared = in_place && root;
        break;
      case Collective::kAllGather:
        input = block, output = all, in_shift = sum(shape.counts, rank);
        break;
      case Collective::kGather:
        input = block, output = root ? all : 0, in_shift = sum(shape.counts, rank);
        shared = in_place && root;
        break;
      case Collective::kAllToAll:
        input = all, output = sum(shape.recv_counts, shape.ranks);
        shared = false;
        break;
      case Collective::kBarrier:
        break;
    }
    own_scratch = scratch;
    begin[0] = shared ? in_shift : 0;
    begin[1] = shared ? out_shift : input;
    begin[2] = std::max(begin[0] + input, begin[1] + output);
    cells = begin[2] + scratch;
  }

  std::size_t first(const Slice& slice) const { return begin[at(static_cast<int>(slice.space))] + slice.begin; }
  bool holds(const Slice& slice) const { return slice.begin + slice.count <= count[at(static_cast<int>(slice.space))]; }
};

/// What can be said of one rank's routine alone.
void check_form(int rank, int ranks, const Routine& routine, const Memory& memory, std::vector<std::string>& faults) {
  std::vector<bool> waited(routine.steps.size());
  for (int index = 0; index < static_cast<int>(routine.steps.size()); ++index) {
    const Step& step = routine.steps[at(index)];
    const auto fault = [&](std::string_view why) {
      faults.push_back(fmt::format("{}: {}", place(rank, index, step), why));
    };
    if (step.act == Act::kWait) {
      if (step.on < 0 || step.on >= index || !is_post(routine.steps[at(step.on)].act))
        fault("waits for a step that was not posted before");
      else if (waited[at(step.on)])
        fault("waits for the same step a second time");
      else
        waited[at(step.on)] = true;
      continue;
    }
    if (is_post(step.act) && (step.peer < 0 || step.peer >= ranks || step.peer == rank))
      fault("the peer is no other rank of the group");
    if ((reads(step.act) && !memory.holds(step.from)) || (writes(step.act) && !memory.holds(step.to)))
      fault("outside of the memory this rank has");
    if (writes(step.act) && step.to.space == Space::kInput) fault("writes to the input");
    if (reads(step.act) && writes(step.act) && step.from.count != step.to.count) fault("the slices differ in length");
  }
  for (int index = 0; index < static_cast<int>(routine.steps.size()); ++index)
    if (is_post(routine.steps[at(index)].act) && !waited[at(index)])
      faults.push_back(fmt::format("{}: is never waited for", place(rank, index, routine.steps[at(index)])));
}

/// Runs all ranks on symbols. The order of delivery does not matter: what is in flight is not touched (that is checked)
/// and a wait that can go on can still go on later, so one order stands for all.
class Execution {
 public:
  Execution(std::span<const Shape> shapes, std::span<const Routine> routines, const Matching& matching, bool in_place)
      : shapes_(shapes), routines_(routines), matching_(matching), symbols_(shapes.front().ranks) {
    for (int rank = 0; rank < ranks(); ++rank) {
      const Shape& shape = shapes[at(rank)];
      Rank& state = ranks_.emplace_back(Memory(shape, rank, routines[at(rank)].scratch, in_place));
      state.heard.assign(at(ranks()), false);
      state.heard[at(rank)] = true;
      state.carried.resize(routines[at(rank)].steps.size());
      const bool from_output = shape.op == Collective::kBroadcast;
      if (from_output && rank != shape.root) continue;
      const std::size_t first = state.memory.begin[from_output ? 1 : 0];
      for (std::size_t element = 0; element < state.memory.count[from_output ? 1 : 0]; ++element)
        state.cells[first + element] = symbols_.input(rank, element);
    }
  }

  std::vector<std::string> run() {
    for (bool moved = true; moved && faults_.empty();) {
      moved = false;
      for (int rank = 0; rank < ranks(); ++rank) moved |= advance(rank);
    }
    if (faults_.empty()) find_stuck();
    if (faults_.empty()) check_results();
    return std::move(faults_);
  }

 private:
  struct Use {  // memory that a posted step needs undisturbed
    int step;
    std::size_t begin, end;
    bool writes;
  };
  struct Message {
    std::vector<Symbol> values;
    std::vector<bool> heard;  // for barriers: whom the sender knew to have arrived
  };
  struct Rank {
    explicit Rank(const Memory& memory_) : memory(memory_), cells(memory_.cells, kUnwritten) {}
    Memory memory;
    std::vector<Symbol> cells;
    std::vector<bool> heard;
    std::vector<Use> uses;
    std::vector<Message> carried;  // by step, for sends
    int next = 0;
  };

  int ranks() const { return static_cast<int>(routines_.size()); }
  const Step& step_of(int rank, int index) const { return routines_[at(rank)].steps[at(index)]; }
  void fault(int rank, int index, std::string_view why) {
    if (faults_.size() < kMostFaults)
      faults_.push_back(fmt::format("{}: {}", place(rank, index, step_of(rank, index)), why));
  }

  bool advance(int rank) {
    Rank& state = ranks_[at(rank)];
    const int before = state.next;
    while (state.next < static_cast<int>(routines_[at(rank)].steps.size()) && take(rank, state.next)) ++state.next;
    return state.next > before;
  }

  /// False when the step has to wait for another rank.
  bool take(int rank, int index) {
    Rank& state = ranks_[at(rank)];
    const Step& step = step_of(rank, index);
    if (step.act == Act::kWait) {
      const Step& posted = step_of(rank, step.on);
      if (ranks_[at(posted.peer)].next <= matching_.partner[at(rank)][at(step.on)]) return false;
      std::erase_if(state.uses, [&](const Use& use) { return use.step == step.on; });
      if (is_receive(posted.act)) deliver(rank, step.on);
      return true;
    }
    if (reads(step.act)) touch(rank, index, step.from, false);
    if (writes(step.act)) touch(rank, index, step.to, true);
    if (reads(step.act) && writes(step.act)) check_overlap(rank, index);
    if (is_post(step.act)) {
      if (reads(step.act)) use(rank, index, step.from, false);
      if (writes(step.act)) use(rank, index, step.to, true);
    }
    if (step.act == Act::kSend) state.carried[at(index)] = {read(rank, index, step.from), state.heard};
    if (step.act == Act::kCopy) write(rank, step.to, read(rank, index, step.from));
    if (step.act == Act::kReduce)
      write(rank, step.to, combine(rank, index, read(rank, index, step.to), read(rank, index, step.from)));
    if (step.act == Act::kFinish) write(rank, step.to, finish(rank, index, read(rank, index, step.to)));
    return true;
  }

  void touch(int rank, int index, const Slice& slice, bool writing) {
    const Rank& state = ranks_[at(rank)];
    const std::size_t begin = state.memory.first(slice), end = begin + slice.count;
    for (const Use& use : state.uses)
      if (std::max(begin, use.begin) < std::min(end, use.end) && (writing || use.writes))
        fault(rank, index,
              fmt::format("{} memory that step {} ({}) still uses", writing ? "writes to" : "reads", use.step,
                          to_text(step_of(rank, use.step))));
  }

  void use(int rank, int index, const Slice& slice, bool writing) {
    Rank& state = ranks_[at(rank)];
    const std::size_t begin = state.memory.first(slice);
    if (slice.count > 0) state.uses.push_back({index, begin, begin + slice.count, writing});
  }

  void check_overlap(int rank, int index) {
    const Step& step = step_of(rank, index);
    const Memory& memory = ranks_[at(rank)].memory;
    const std::size_t from = memory.first(step.from), to = memory.first(step.to);
    if (from != to && std::max(from, to) < std::min(from, to) + step.to.count)
      fault(rank, index, "the slices overlap without being the same");
    if (from == to && step.to.count > 0 && step.act == Act::kReduce) fault(rank, index, "combines memory with itself");
  }

  std::vector<Symbol> read(int rank, int index, const Slice& slice) {
    const Rank& state = ranks_[at(rank)];
    const auto first = state.cells.begin() + static_cast<std::ptrdiff_t>(state.memory.first(slice));
    std::vector<Symbol> values(first, first + static_cast<std::ptrdiff_t>(slice.count));
    if (std::ranges::find(values, kUnwritten) != values.end()) fault(rank, index, "reads what was never written");
    return values;
  }

  void write(int rank, const Slice& slice, const std::vector<Symbol>& values) {
    Rank& state = ranks_[at(rank)];
    std::ranges::copy(values, state.cells.begin() + static_cast<std::ptrdiff_t>(state.memory.first(slice)));
  }

  std::vector<Symbol> combine(int rank, int index, std::vector<Symbol> values, const std::vector<Symbol>& with) {
    std::string wrong;
    for (std::size_t element = 0; element < values.size(); ++element)
      values[element] = symbols_.combine(values[element], with[element], wrong);
    if (!wrong.empty()) fault(rank, index, wrong);
    return values;
  }

  std::vector<Symbol> finish(int rank, int index, std::vector<Symbol> values) {
    std::string wrong;
    if (!reduces(shapes_[at(rank)].op)) wrong = "finishes a result, but this operation combines nothing";
    for (Symbol& value : values) value = symbols_.finish(value, wrong);
    if (!wrong.empty()) fault(rank, index, wrong);
    return values;
  }

  void deliver(int rank, int index) {
    Rank& state = ranks_[at(rank)];
    const Step& step = step_of(rank, index);
    const int sent = matching_.partner[at(rank)][at(index)];
    const Message& message = ranks_[at(step.peer)].carried[at(sent)];
    for (std::size_t other = 0; other < state.heard.size(); ++other)
      if (message.heard[other]) state.heard[other] = true;
    if (step.act == Act::kRecv)
      write(rank, step.to, message.values);
    else
      write(rank, step.to, combine(rank, index, read(rank, index, step.from), message.values));
  }

  void find_stuck() {
    for (int rank = 0; rank < ranks(); ++rank) {
      const int index = ranks_[at(rank)].next;
      if (index == static_cast<int>(routines_[at(rank)].steps.size())) continue;
      const int on = step_of(rank, index).on, peer = step_of(rank, on).peer;
      fault(rank, index,
            fmt::format("deadlock: waits for \"{}\", but rank {} stands before its step {} and cannot reach step {}",
                        to_text(step_of(rank, on)), peer, ranks_[at(peer)].next, matching_.partner[at(rank)][at(on)]));
    }
  }

  void check_results() {
    for (int rank = 0; rank < ranks(); ++rank) {
      const Rank& state = ranks_[at(rank)];
      if (shapes_[at(rank)].op == Collective::kBarrier) {
        const auto missing = std::ranges::find(state.heard, false);
        if (missing != state.heard.end())
          faults_.push_back(fmt::format("rank {}: leaves the barrier without having heard of rank {}", rank,
                                        missing - state.heard.begin()));
        continue;
      }
      for (std::size_t index = 0; index < state.memory.count[1] && faults_.size() < kMostFaults; ++index) {
        const Symbol value = state.cells[state.memory.begin[1] + index];
        if (const std::string wanted = mismatch(rank, index, value); !wanted.empty())
          faults_.push_back(
              fmt::format("rank {}: out[{}] ends as {}, not as {}", rank, index, symbols_.describe(value), wanted));
      }
    }
  }

  /// What the element should be, when `value` is not that.
  std::string mismatch(int rank, std::size_t index, Symbol value) const {
    const Shape& shape = shapes_[at(rank)];
    const auto before = [](const std::vector<std::size_t>& counts, int last) {
      return std::accumulate(counts.begin(), counts.begin() + last, std::size_t{0});
    };
    if (reduces(shape.op)) {
      const std::size_t element = shape.op == Collective::kReduceScatter ? before(shape.counts, rank) + index : index;
      if (!symbols_.is_result(value, element))
        return fmt::format("the finished element {} of all {} ranks", element, shape.ranks);
      const Rank& first = ranks_.front();
      if (shape.op == Collective::kAllReduce && first.cells[first.memory.begin[1] + index] != value)
        return "combined in the order of rank 0, so their bits may differ";
      return "";
    }
    int source = shape.root;
    std::size_t element = index;
    if (shape.op == Collective::kScatter) element = before(shape.counts, rank) + index;
    if (shape.op == Collective::kAllGather || shape.op == Collective::kGather || shape.op == Collective::kAllToAll) {
      const auto& counts = shape.op == Collective::kAllToAll ? shape.recv_counts : shape.counts;
      for (source = 0; element >= counts[at(source)]; ++source) element -= counts[at(source)];
      if (shape.op == Collective::kAllToAll) element += before(shapes_[at(source)].counts, rank);
    }
    if (symbols_.is_input(value, source, element)) return "";
    return fmt::format("element {} of rank {}", element, source);
  }

  std::span<const Shape> shapes_;
  std::span<const Routine> routines_;
  const Matching& matching_;
  Symbols symbols_;
  std::vector<Rank> ranks_;
  std::vector<std::string> faults_;
};

}  // namespace

std::vector<std::string> check_routines(std::span<const Shape> shapes, std::span<const Routine> routines) {
  TRIREME_CHECK(!shapes.empty() && shapes.size() == routines.size() && at(shapes.front().ranks) == shapes.size(),
                "{} shapes and {} routines for {} ranks", shapes.size(), routines.size(), shapes.front().ranks);
  std::vector<std::string> faults;
  for (int rank = 0; rank < shapes.front().ranks; ++rank) {
    const Memory memory(shapes[at(rank)], rank, routines[at(rank)].scratch, false);
    check_form(rank, shapes.front().ranks, routines[at(rank)], memory, faults);
  }
  if (!faults.empty()) return faults;
  Matching matching = match_messages(routines);
  if (!matching.faults.empty()) return std::move(matching.faults);
  faults = Execution(shapes, routines, matching, false).run();
  const Collective op = shapes.front().op;
  const bool in_place = op != Collective::kAllToAll && op != Collective::kBroadcast && op != Collective::kBarrier;
  if (faults.empty() && in_place) {
    faults = Execution(shapes, routines, matching, true).run();
    for (std::string& fault : faults) fault = "in place: " + fault;
  }
  return faults;
}

std::vector<std::string> check_algorithm(const AlgorithmEntry& entry, std::span<const Shape> shapes) {
  std::vector<Routine> routines;
  const std::string refusal = entry.refuses(shapes.front());
  for (int rank = 0; rank < static_cast<int>(shapes.size()); ++rank) {
    if (entry.refuses(shapes[at(rank)]).empty() != refusal.empty())
      return {fmt::format("rank 0 and rank {} disagree on whether the algorithm serves this", rank)};
    if (refusal.empty()) routines.push_back(entry.build(shapes[at(rank)], rank));
  }
  if (!refusal.empty()) return {};
  return check_routines(shapes, routines);
}

}  // namespace trireme::comm
