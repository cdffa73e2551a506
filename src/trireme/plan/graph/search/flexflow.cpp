#include "trireme/plan/graph/search/flexflow.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/base/stopwatch.h"

namespace trireme::plan::graph {

TaskSimulator::TaskSimulator(std::vector<Task> tasks) : tasks_(std::move(tasks)), then_(tasks_.size()) {
  for (std::size_t i = 0; i < tasks_.size(); ++i) {
    for (const int before : tasks_[i].after) then_[static_cast<std::size_t>(before)].push_back(static_cast<int>(i));
  }
  for (Run* run : {&accepted_, &tried_}) {
    run->end.resize(tasks_.size());
    run->order.resize(tasks_.size());
    run->position.resize(tasks_.size());
    run->free.resize(tasks_.size() + 1);
  }
  waiting_.resize(tasks_.size());
  ready_.resize(tasks_.size());
}

double TaskSimulator::replay(const std::vector<double>& seconds, Run& run, std::size_t from, double at_most) {
  // What was started before `from` stands; the others wait for those among them that they come after.
  struct Entry {
    double ready;
    int task;
    bool operator>(const Entry& other) const { return ready != other.ready ? ready > other.ready : task > other.task; }
  };
  std::vector<Entry> open;
  double left = 0;  // seconds that the device still has to compute
  for (std::size_t i = 0; i < tasks_.size(); ++i) {
    if (run.position[i] < static_cast<int>(from)) continue;
    waiting_[i] = 0;
    ready_[i] = 0;
    for (const int before : tasks_[i].after) {
      if (run.position[static_cast<std::size_t>(before)] >= static_cast<int>(from)) {
        ++waiting_[i];
      } else {
        ready_[i] = std::max(ready_[i], run.end[static_cast<std::size_t>(before)]);
      }
    }
    if (waiting_[i] == 0) open.push_back({ready_[i], static_cast<int>(i)});
    if (!tasks_[i].on_network) left += seconds[i];
  }
  std::make_heap(open.begin(), open.end(), std::greater<>{});
  double makespan = 0;
  for (std::size_t i = 0; i < from; ++i) makespan = std::max(makespan, run.end[static_cast<std::size_t>(run.order[i])]);
  std::array<double, 2> free = run.free[from];
  for (std::size_t at = from; at < tasks_.size(); ++at) {
    TRIREME_CHECK(!open.empty(), "tasks wait for each other in a circle");
    std::pop_heap(open.begin(), open.end(), std::greater<>{});
    const Entry next = open.back();
    open.pop_back();
    const auto task = static_cast<std::size_t>(next.task);
    double& queue = free[tasks_[task].on_network ? 1 : 0];
    const double end = std::max(next.ready, queue) + seconds[task];
    queue = end;
    run.end[task] = end;
    run.order[at] = next.task;
    run.position[task] = static_cast<int>(at);
    run.free[at + 1] = free;
    makespan = std::max(makespan, end);
    if (!tasks_[task].on_network) left -= seconds[task];
    if ((free[0] + left) * (1 - 1e-9) > at_most) return std::numeric_limits<double>::infinity();
    for (const int later : then_[task]) {
      const auto waits = static_cast<std::size_t>(later);
      ready_[waits] = std::max(ready_[waits], end);
      if (--waiting_[waits] > 0) continue;
      open.push_back({ready_[waits], later});
      std::push_heap(open.begin(), open.end(), std::greater<>{});
    }
  }
  run.makespan = makespan;
  return makespan;
}

double TaskSimulator::full(const std::vector<double>& seconds) {
  std::iota(accepted_.position.begin(), accepted_.position.end(), 0);
  return replay(seconds, accepted_, 0, std::numeric_limits<double>::infinity());
}

double TaskSimulator::delta(const std::vector<double>& seconds, const std::vector<int>& changed, double at_most) {
  from_ = tasks_.size();
  for (const int task : changed)
    from_ = std::min(from_, static_cast<std::size_t>(accepted_.position[static_cast<std::size_t>(task)]));
  tried_ = accepted_;
  if (from_ == tasks_.size()) return accepted_.makespan;
  return replay(seconds, tried_, from_, at_most);
}

void TaskSimulator::accept() { std::swap(accepted_, tried_); }

class FlexFlow::Impl {
 public:
  Impl(const Graph& both, const Pricing& pricing, const GraphProblem& problem)
      : both_(both), pricing_(pricing), problem_(problem), prices_(pricing) {
    for (const Op& op : both.ops) spaces_.push_back(iteration_space(both, op));
    make_groups();
    make_links();
    make_tasks();
    simulator_ = std::make_unique<TaskSimulator>(tasks_);
  }

  double simulate(const Assignment& assignment) {
    TaskSimulator fresh(tasks_);
    std::vector<double> seconds(tasks_.size());
    for (std::size_t task = 0; task < tasks_.size(); ++task) seconds[task] = duration(task, assignment);
    return fresh.full(seconds);
  }

  double start(const Assignment& assignment) {
    proposed_.first = -1;
    changed_.clear();
    assignment_ = assignment;
    seconds_.resize(tasks_.size());
    for (std::size_t task = 0; task < tasks_.size(); ++task) seconds_[task] = duration(task, assignment_);
    return simulator_->full(seconds_);
  }

  double propose(int node, int choice, double at_most) {
    undo();
    proposed_ = {node, assignment_[static_cast<std::size_t>(node)]};
    assignment_[static_cast<std::size_t>(node)] = choice;
    changed_.clear();
    before_.clear();
    for (const int task : tasks_of_node_[static_cast<std::size_t>(node)]) {
      double& now = seconds_[static_cast<std::size_t>(task)];
      const double next = duration(static_cast<std::size_t>(task), assignment_);
      if (next == now) continue;
      changed_.push_back(task);
      before_.push_back(now);
      now = next;
    }
    return simulator_->delta(seconds_, changed_, at_most);
  }

  void accept() {
    simulator_->accept();
    proposed_.first = -1;
    changed_.clear();
  }
  /// Takes back a proposal that was not accepted.
  void undo() {
    if (proposed_.first < 0) return;
    assignment_[static_cast<std::size_t>(proposed_.first)] = proposed_.second;
    for (std::size_t i = 0; i < changed_.size(); ++i) seconds_[static_cast<std::size_t>(changed_[i])] = before_[i];
    proposed_.first = -1;
    changed_.clear();
  }
  const Assignment& assignment() {
    undo();
    return assignment_;
  }

  FlexFlowResult search(const std::vector<Assignment>& starts, const FlexFlowOptions& options) {
    const auto begin = std::chrono::steady_clock::now();
    FlexFlowResult result{.simulated = std::numeric_limits<double>::infinity()};
    const Random random(options.seed, "flexflow");
    std::uint64_t draw = 0;
    for (const Assignment& from : starts) {
      const double seconds = simulate(from);
      const bool fits = options.memory_bytes <= 0 || memory_of(problem_.problem, from) <= options.memory_bytes;
      if (seconds < result.simulated && (fits || result.assignment.empty()))
        result.simulated = result.start = seconds, result.assignment = from;
    }
    std::vector<int> free;  // nodes that have a choice
    for (std::size_t i = 0; i < problem_.choices.size(); ++i) {
      if (problem_.choices[i].size() > 1) free.push_back(static_cast<int>(i));
    }
    double now = start(result.assignment);
    double memory = memory_of(problem_.problem, assignment_);
    const int restart = std::clamp(options.proposals / 100, 1, 1000);
    while (!free.empty() && result.proposals < options.proposals && seconds_since(begin) < options.seconds) {
      if (result.proposals % restart == 0 && now > result.simulated) {
        undo();
        now = start(result.assignment);
        memory = memory_of(problem_.problem, assignment_);
      }
      ++result.proposals;
      undo();
      const int node = free[random.below(free.size(), draw++)];
      const int choice = proposal(random, draw, node);
      const auto& bytes = problem_.problem.memory[static_cast<std::size_t>(node)];
      const double more = bytes[static_cast<std::size_t>(choice)] -
                          bytes[static_cast<std::size_t>(assignment_[static_cast<std::size_t>(node)])];
      const double luck = random.uniform(draw++);
      if (options.memory_bytes > 0 && memory + more > options.memory_bytes && more > 0) continue;
      const double at_most = now - std::log(std::max(luck, 1e-300)) * options.temperature * result.simulated;
      const double seconds = propose(node, choice, at_most);
      if (seconds > at_most) continue;
      accept();
      ++result.accepted;
      now = seconds;
      memory += more;
      const bool fits = options.memory_bytes <= 0 || memory <= options.memory_bytes;
      if (fits && now < result.simulated) result.simulated = now, result.assignment = assignment_;
    }
    result.seconds = seconds_since(begin);
    return result;
  }

 private:
  struct GroupLink {
    int from = -1, to = -1;  // nodes
    double bytes = 0;
    bool is_update = false;
    std::vector<int> from_ids, to_ids;  // [choice] shardings
  };

  int forward_op(int op) const { return both_.op(op).forward >= 0 ? both_.op(op).forward : op; }

  /// Half of the proposals are any choice; the others take a neighbour's split, which moves plans through chains.
  int proposal(const Random& random, std::uint64_t& draw, int node) {
    const auto& choices = problem_.choices[static_cast<std::size_t>(node)];
    const auto& near = neighbours_[static_cast<std::size_t>(node)];
    if (!near.empty() && random.below(2, draw++) == 0) {
      const int other = near[random.below(near.size(), draw++)];
      const Split& split = problem_.choices[static_cast<std::size_t>(other)]
                                           [static_cast<std::size_t>(assignment_[static_cast<std::size_t>(other)])];
      if (const int same = problem_.choice_of(node, split); same >= 0) return same;
    }
    return static_cast<int>(random.below(choices.size(), draw++));
  }

  /// An operator and what follows it run as one task. Only a tree of followers is joined, so tasks make no circle.
  void make_groups() {
    forward_ops_ =
        static_cast<std::size_t>(std::ranges::count_if(both_.ops, [](const Op& op) { return op.forward < 0; }));
    std::vector<int> node_of_op(forward_ops_);
    for (std::size_t node = 0; node < problem_.nodes.size(); ++node) {
      for (const int op : problem_.nodes[node]) node_of_op[static_cast<std::size_t>(op)] = static_cast<int>(node);
    }
    const Uses uses = uses_of(both_);
    group_of_.resize(forward_ops_);
    for (std::size_t i = 0; i < forward_ops_; ++i) {
      int from = -1, made = 0;
      for (const int input : both_.ops[i].inputs) {
        const int producer = uses.producer[static_cast<std::size_t>(input)];
        if (producer >= 0) ++made, from = producer;
      }
      if (follows(both_.ops[i]) && made == 1 && node_of_op[static_cast<std::size_t>(from)] == node_of_op[i]) {
        group_of_[i] = group_of_[static_cast<std::size_t>(from)];
      } else {
        group_of_[i] = static_cast<int>(node_of_group_.size());
        node_of_group_.push_back(node_of_op[i]);
      }
    }
    // Seconds of a group for each choice: its operators, with the halos and statistics they wait for.
    forward_.resize(node_of_group_.size());
    backward_.resize(node_of_group_.size());
    for (std::size_t group = 0; group < node_of_group_.size(); ++group) {
      const std::size_t choices = problem_.choices[static_cast<std::size_t>(node_of_group_[group])].size();
      forward_[group].assign(choices, 0);
      backward_[group].assign(choices, 0);
    }
    for (std::size_t i = 0; i < both_.ops.size(); ++i) {
      const auto group = static_cast<std::size_t>(group_of_[static_cast<std::size_t>(forward_op(int(i)))]);
      const auto& choices = problem_.choices[static_cast<std::size_t>(node_of_group_[group])];
      auto& seconds = both_.ops[i].forward >= 0 ? backward_[group] : forward_[group];
      for (std::size_t c = 0; c < choices.size(); ++c) {
        seconds[c] +=
            pricing_.seconds(both_, both_.ops[i], spaces_[i], degrees_of(pricing_.mesh(), spaces_[i], choices[c]));
        for (const Exchange& exchange : exchanges_of(both_, pricing_.mesh(), both_.ops[i], spaces_[i], choices[c])) {
          const bool kept = exchange.tensor >= 0 && both_.ops[i].part == Part::kBackwardWeight;
          if (!kept) seconds[c] += pricing_.seconds(exchange.step);
        }
      }
    }
  }

  void make_links() {
    for (const Link& link : links_of(both_)) {
      const int from_group = group_of_[static_cast<std::size_t>(forward_op(link.producer))],
                to_group = group_of_[static_cast<std::size_t>(forward_op(link.consumer))];
      GroupLink entry{.from = node_of_group_[static_cast<std::size_t>(from_group)],
                      .to = node_of_group_[static_cast<std::size_t>(to_group)],
                      .bytes = both_.bytes(both_.tensor(link.tensor)),
                      .is_update = link.is_update};
      for (const Split& split : problem_.choices[static_cast<std::size_t>(entry.from)])
        entry.from_ids.push_back(prices_.id_of(ends_of(both_, spaces_, link, split, split).from));
      for (const Split& split : problem_.choices[static_cast<std::size_t>(entry.to)])
        entry.to_ids.push_back(prices_.id_of(ends_of(both_, spaces_, link, split, split).to));
      const int number = static_cast<int>(links_.size());
      links_.push_back(std::move(entry));
      if (link.is_update) {
        updates_[links_.back().to].push_back(number);
      } else if (from_group == to_group) {
        inner_[{to_group, both_.op(link.consumer).forward >= 0}].push_back(number);
      } else {
        between_[{from_group, to_group, both_.op(link.consumer).forward >= 0}].push_back(number);
      }
    }
  }

  void make_tasks() {
    const std::size_t groups = node_of_group_.size();
    tasks_of_node_.resize(problem_.nodes.size());
    neighbours_.resize(problem_.nodes.size());
    const auto add = [&](bool on_network, const std::set<int>& nodes) {
      for (const int node : nodes) tasks_of_node_[static_cast<std::size_t>(node)].push_back(int(tasks_.size()));
      tasks_.push_back({.on_network = on_network, .after = {}});
      costs_.emplace_back();
      return static_cast<int>(tasks_.size()) - 1;
    };
    std::vector<int> forward(groups), backward(groups);
    for (const bool is_backward : {false, true}) {
      for (std::size_t g = 0; g < groups; ++g) {
        const int task = add(false, {node_of_group_[g]});
        (is_backward ? backward : forward)[g] = task;
        costs_.back() = {.group = static_cast<int>(g), .is_backward = is_backward, .links = {}};
        if (const auto found = inner_.find({static_cast<int>(g), is_backward}); found != inner_.end())
          costs_.back().links = found->second;
      }
    }
    for (std::size_t g = 0; g < groups; ++g) tasks_[static_cast<std::size_t>(backward[g])].after.push_back(forward[g]);
    for (const auto& [key, numbers] : between_) {
      const auto [from, to, is_backward] = key;
      const int a = node_of_group_[static_cast<std::size_t>(from)], b = node_of_group_[static_cast<std::size_t>(to)];
      const int task = add(true, {a, b});
      costs_.back().links = numbers;
      const auto& made = is_backward ? backward : forward;
      // A tensor of forward that only backward converts comes from forward.
      const bool saved = is_backward && both_group_order(from, to);
      tasks_[static_cast<std::size_t>(task)].after.push_back((saved ? forward : made)[static_cast<std::size_t>(from)]);
      tasks_[static_cast<std::size_t>(made[static_cast<std::size_t>(to)])].after.push_back(task);
      if (a != b) {
        neighbours_[static_cast<std::size_t>(a)].push_back(b);
        neighbours_[static_cast<std::size_t>(b)].push_back(a);
      }
    }
    for (const auto& [node, numbers] : updates_) {
      const int task = add(true, {node});
      costs_.back().links = numbers;
      for (std::size_t g = 0; g < groups; ++g) {
        if (node_of_group_[g] == node) tasks_[static_cast<std::size_t>(task)].after.push_back(backward[g]);
      }
    }
  }
  /// Groups are numbered in the order of the graph.
  static bool both_group_order(int from, int to) { return from < to; }

  double duration(std::size_t task, const Assignment& assignment) {
    const Cost& cost = costs_[task];
    double seconds = 0;
    if (cost.group >= 0) {
      const auto group = static_cast<std::size_t>(cost.group);
      const auto choice = static_cast<std::size_t>(assignment[static_cast<std::size_t>(node_of_group_[group])]);
      seconds = (cost.is_backward ? backward_ : forward_)[group][choice];
    }
    for (const int number : cost.links) {
      const GroupLink& link = links_[static_cast<std::size_t>(number)];
      seconds += prices_.seconds(
          link.bytes, link.from_ids[static_cast<std::size_t>(assignment[static_cast<std::size_t>(link.from)])],
          link.to_ids[static_cast<std::size_t>(assignment[static_cast<std::size_t>(link.to)])], link.is_update);
    }
    return seconds;
  }

  struct Cost {
    int group = -1;  // -1: a task on the network
    bool is_backward = false;
    std::vector<int> links;
  };

  const Graph& both_;
  const Pricing& pricing_;
  const GraphProblem& problem_;
  ConversionPrices prices_;
  std::size_t forward_ops_ = 0;
  std::vector<IterationSpace> spaces_;
  std::vector<int> group_of_, node_of_group_;
  std::vector<std::vector<double>> forward_, backward_;  // [group][choice]
  std::vector<GroupLink> links_;
  std::map<std::tuple<int, int, bool>, std::vector<int>> between_;
  std::map<std::pair<int, bool>, std::vector<int>> inner_;
  std::map<int, std::vector<int>> updates_;  // [node]
  std::vector<TaskSimulator::Task> tasks_;
  std::vector<Cost> costs_;  // [task]
  std::vector<std::vector<int>> tasks_of_node_, neighbours_;
  std::unique_ptr<TaskSimulator> simulator_;
  Assignment assignment_;
  std::vector<double> seconds_;
  std::vector<int> changed_;
  std::vector<double> before_;
  std::pair<int, int> proposed_{-1, 0};  // node and the choice it had
};

FlexFlow::FlexFlow(const Graph& both, const Pricing& pricing, const GraphProblem& problem)
    : impl_(std::make_unique<Impl>(both, pricing, problem)) {}
FlexFlow::~FlexFlow() = default;
double FlexFlow::simulate(const Assignment& assignment) { return impl_->simulate(assignment); }
double FlexFlow::start(const Assignment& assignment) { return impl_->start(assignment); }
double FlexFlow::propose(int node, int choice, double at_most) { return impl_->propose(node, choice, at_most); }
void FlexFlow::accept() { impl_->accept(); }
const Assignment& FlexFlow::assignment() const { return impl_->assignment(); }
FlexFlowResult FlexFlow::search(const std::vector<Assignment>& starts, const FlexFlowOptions& options) {
  return impl_->search(starts, options);
}

}  // namespace trireme::plan::graph
