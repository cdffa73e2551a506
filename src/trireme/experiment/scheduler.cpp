#include "trireme/experiment/scheduler.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>

#include "trireme/base/error.h"

namespace trireme::experiment {
namespace {

int slots_of(const Grants& grants) {
  int slots = 0;
  for (const Grant& grant : grants) slots += grant.slots;
  return slots;
}

void take(std::vector<int>& free, const Grants& grants, int sign) {
  for (const Grant& grant : grants) free[static_cast<std::size_t>(grant.node)] -= sign * grant.slots;
}

class Scheduling {
 public:
  explicit Scheduling(const SchedulerState& state) : state_(state), free_(state.nodes), used_(state.weights.size()) {}

  Decision decide();

 private:
  void take_account();
  std::vector<const Task*> queue() const;
  void start(const Task& task, Grants grants, bool backfilled);
  void reserve(const Task& head);
  bool delays_head(const Task& task, const Grants& grants) const;
  void preempt_for(const Task& head);
  std::vector<double> shares() const;

  struct Release {
    double at = 0;
    int task = 0;
    const Grants* grants = nullptr;
  };
  bool is_preempted(int task) const { return std::ranges::find(decision_.preempt, task) != decision_.preempt.end(); }
  /// At a time that nobody knows even a short task may be in the way.
  bool ends_before_head(const Task& task) const { return head_start_ != kUnknownTime && task.seconds <= head_start_; }

  const SchedulerState& state_;
  std::vector<int> free_;      // slots of each node now
  int free_slots_ = 0;         // of all nodes
  std::vector<double> used_;   // slots of each experiment
  std::vector<Release> ends_;  // of what runs, and of what is started here
  Decision decision_;
  const Task* head_ = nullptr;
  double head_start_ = 0;           // when enough slots will be free for it
  std::vector<int> free_at_start_;  // of each node, then
};

void Scheduling::take_account() {
  for (const Task& task : state_.tasks) {
    if (task.grants.empty()) continue;
    take(free_, task.grants, 1);
    used_[static_cast<std::size_t>(task.experiment)] += slots_of(task.grants);
    ends_.push_back({.at = task.ending ? 0.0 : task.seconds, .task = task.id, .grants = &task.grants});
  }
  for (std::size_t node = 0; node < free_.size(); ++node) {
    TRIREME_CHECK(free_[node] >= 0, "node {} has {} slots and tasks that hold {}", node, state_.nodes[node],
                  state_.nodes[node] - free_[node]);
    free_slots_ += free_[node];
  }
}

/// By priority; within one the experiment that has fewest slots for its weight gives its oldest task next, and is then
/// counted as having it. A heap over experiments, so that a thousand tasks are sorted in a moment.
std::vector<const Task*> Scheduling::queue() const {
  std::vector<const Task*> waiting;
  for (const Task& task : state_.tasks) {
    if (task.grants.empty()) waiting.push_back(&task);
  }
  std::ranges::sort(waiting, [](const Task* a, const Task* b) {
    return std::tuple(-a->priority, a->submitted, a->id) < std::tuple(-b->priority, b->submitted, b->id);
  });
  std::vector<const Task*> order;
  std::vector<double> used = used_;
  for (auto begin = waiting.begin(); begin != waiting.end();) {
    const auto end =
        std::find_if(begin, waiting.end(), [&](const Task* task) { return task->priority != (*begin)->priority; });
    std::vector<std::vector<const Task*>> of_experiment(used.size());
    for (auto task = begin; task != end; ++task) {
      of_experiment[static_cast<std::size_t>((*task)->experiment)].push_back(*task);
    }
    std::vector<std::size_t> next(used.size());
    struct Candidate {
      double share;
      const Task* task;
      bool operator<(const Candidate& other) const {  // the heap's top is the largest
        return std::tuple(share, task->submitted, task->id) >
               std::tuple(other.share, other.task->submitted, other.task->id);
      }
    };
    std::vector<Candidate> heap;
    const auto push = [&](std::size_t experiment) {
      if (next[experiment] == of_experiment[experiment].size()) return;
      heap.push_back({used[experiment] / state_.weights[experiment], of_experiment[experiment][next[experiment]]});
      std::push_heap(heap.begin(), heap.end());
    };
    for (std::size_t experiment = 0; experiment < used.size(); ++experiment) push(experiment);
    while (!heap.empty()) {
      std::pop_heap(heap.begin(), heap.end());
      const Task* task = heap.back().task;
      heap.pop_back();
      order.push_back(task);
      const auto experiment = static_cast<std::size_t>(task->experiment);
      used[experiment] += task->slots;
      ++next[experiment];
      push(experiment);
    }
    begin = end;
  }
  return order;
}

void Scheduling::start(const Task& task, Grants grants, bool backfilled) {
  take(free_, grants, 1);
  used_[static_cast<std::size_t>(task.experiment)] += task.slots;
  free_slots_ -= task.slots;
  if (head_ != nullptr && !ends_before_head(task)) take(free_at_start_, grants, 1);
  decision_.start.push_back({.task = task.id, .grants = std::move(grants), .backfilled = backfilled});
}

/// When the head can start, if what runs ends as told, and which slots are free then.
void Scheduling::reserve(const Task& head) {
  head_ = &head;
  std::vector<Release> ends = ends_;
  for (Release& end : ends) {
    if (is_preempted(end.task)) end.at = 0;
  }
  for (const Decision::Start& started : decision_.start) {
    const auto task = std::ranges::find(state_.tasks, started.task, &Task::id);
    ends.push_back({.at = task->seconds, .task = started.task, .grants = &started.grants});
  }
  std::ranges::stable_sort(ends, {}, &Release::at);
  free_at_start_ = free_;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    take(free_at_start_, *ends[i].grants, -1);
    head_start_ = ends[i].at;
    const bool together = i + 1 < ends.size() && ends[i + 1].at == ends[i].at;
    if (!together && !place_gang(head.slots, free_at_start_, state_.nodes).empty()) return;
  }
}

bool Scheduling::delays_head(const Task& task, const Grants& grants) const {
  if (ends_before_head(task)) return false;
  std::vector<int> left = free_at_start_;
  take(left, grants, 1);
  return place_gang(head_->slots, left, state_.nodes).empty();
}

std::vector<double> Scheduling::shares() const {
  std::vector<double> demands(state_.weights.size());
  for (const Task& task : state_.tasks) demands[static_cast<std::size_t>(task.experiment)] += task.slots;
  const double capacity = std::accumulate(state_.nodes.begin(), state_.nodes.end(), 0.0);
  return fair_shares(capacity, demands, state_.weights);
}

/// Victims are taken lowest priority first, then newest first, until the head fits; none where it never would.
void Scheduling::preempt_for(const Task& head) {
  std::vector<const Task*> running;
  std::vector<int> free = free_;
  for (const Task& task : state_.tasks) {
    if (task.grants.empty()) continue;
    if (task.ending) {
      take(free, task.grants, -1);  // already on its way
    } else {
      running.push_back(&task);
    }
  }
  if (!place_gang(head.slots, free, state_.nodes).empty()) return;
  std::ranges::sort(running, [](const Task* a, const Task* b) {
    return std::tuple(a->priority, -a->submitted, -a->id) < std::tuple(b->priority, -b->submitted, -b->id);
  });
  const std::vector<double> share = shares();
  std::vector<double> used = used_;
  const auto own = static_cast<std::size_t>(head.experiment);
  const bool below_share = used[own] + head.slots <= share[own] + 1e-9;
  std::vector<const Task*> victims;
  for (const Task* task : running) {
    const auto other = static_cast<std::size_t>(task->experiment);
    const bool lower = task->priority < head.priority;
    // Whoever stays at or above its share after giving a task back will not ask for it again: no ping-pong.
    const bool above_share = task->priority == head.priority && other != own && below_share &&
                             used[other] - task->slots >= share[other] - 1e-9;
    if (!lower && !above_share) continue;
    used[other] -= task->slots;
    take(free, task->grants, -1);
    victims.push_back(task);
    if (!place_gang(head.slots, free, state_.nodes).empty()) break;
  }
  if (place_gang(head.slots, free, state_.nodes).empty()) return;
  // Some of the first may not be needed any more: the last ones gave the room.
  std::erase_if(victims, [&](const Task* task) {
    take(free, task->grants, 1);
    if (!place_gang(head.slots, free, state_.nodes).empty()) return true;
    take(free, task->grants, -1);
    return false;
  });
  for (const Task* task : victims) decision_.preempt.push_back(task->id);
}

Decision Scheduling::decide() {
  take_account();
  std::map<int, bool> possible;  // by slots
  for (const Task* task : queue()) {
    const auto known = possible.find(task->slots);
    const bool fits_somewhere =
        known != possible.end() ? known->second : !place_gang(task->slots, state_.nodes, state_.nodes).empty();
    possible[task->slots] = fits_somewhere;
    if (!fits_somewhere) {
      decision_.impossible.push_back(task->id);
      continue;
    }
    Grants grants;
    if (task->slots <= free_slots_) grants = place_gang(task->slots, free_, state_.nodes);
    if (head_ == nullptr) {
      if (!grants.empty()) {
        start(*task, std::move(grants), false);
      } else {
        preempt_for(*task);
        reserve(*task);
      }
    } else if (!grants.empty() && !delays_head(*task, grants)) {
      start(*task, std::move(grants), true);
    }
  }
  return std::move(decision_);
}

}  // namespace

std::vector<double> fair_shares(double capacity, const std::vector<double>& demands,
                                const std::vector<double>& weights) {
  std::vector<std::size_t> order(demands.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  // Who asks least for its weight is satisfied first; what is left is shared among the rest.
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return demands[i] / weights[i]; });
  double weight = 0;
  for (const double one : weights) weight += one;
  std::vector<double> shares(demands.size());
  for (const std::size_t i : order) {
    shares[i] = std::min(demands[i], capacity * weights[i] / weight);
    capacity -= shares[i];
    weight -= weights[i];
  }
  return shares;
}

Grants place_gang(int slots, const std::vector<int>& free, const std::vector<int>& nodes) {
  std::optional<std::size_t> best;
  for (std::size_t node = 0; node < free.size(); ++node) {
    if (free[node] < slots || (best && free[node] >= free[*best])) continue;
    best = node;
    if (free[node] == slots) break;
  }
  if (best) return {{.node = static_cast<int>(*best), .slots = slots}};
  // Over several: whole empty nodes of one size that divides the gang, the largest size first.
  std::vector<std::size_t> empty;
  for (std::size_t node = 0; node < free.size(); ++node) {
    if (nodes[node] > 0 && free[node] == nodes[node] && nodes[node] < slots && slots % nodes[node] == 0) {
      empty.push_back(node);
    }
  }
  std::ranges::stable_sort(empty, std::ranges::greater{}, [&](std::size_t node) { return nodes[node]; });
  for (std::size_t begin = 0; begin < empty.size();) {
    const int size = nodes[empty[begin]];
    std::size_t end = begin;
    while (end < empty.size() && nodes[empty[end]] == size) ++end;
    const auto needed = static_cast<std::size_t>(slots / size);
    if (end - begin >= needed) {
      Grants grants;
      for (std::size_t i = begin; i < begin + needed; ++i) {
        grants.push_back({.node = static_cast<int>(empty[i]), .slots = size});
      }
      return grants;
    }
    begin = end;
  }
  return {};
}

Decision decide(const SchedulerState& state) {
  for (const double weight : state.weights) {
    TRIREME_CHECK(weight > 0, "an experiment has the weight {}; weights are above zero", weight);
  }
  return Scheduling(state).decide();
}

}  // namespace trireme::experiment
