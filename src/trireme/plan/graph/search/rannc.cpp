#include "trireme/plan/graph/search/rannc.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "trireme/base/error.h"

namespace trireme::plan::graph {
namespace {

/// Blocks as nodes of a graph of their own, while they are joined.
class Coarsening {
 public:
  Coarsening(const std::vector<RanncComponent>& components, int blocks) : components_(components), wanted_(blocks) {
    const std::size_t n = components.size();
    block_.resize(n);
    std::iota(block_.begin(), block_.end(), 0);
    out_.resize(n);
    in_.resize(n);
    seconds_.resize(n);
    for (std::size_t i = 0; i < n; ++i) {
      seconds_[i] = components[i].seconds;
      for (std::size_t e = 0; e < components[i].next.size(); ++e) {
        out_[i][components[i].next[e]] += components[i].next_bytes[e];
        in_[static_cast<std::size_t>(components[i].next[e])].insert(static_cast<int>(i));
      }
    }
    alive_.assign(n, true);
    left_ = static_cast<int>(n);
  }

  std::vector<int> run() {
    const double share = std::accumulate(seconds_.begin(), seconds_.end(), 0.0) / std::max(1, std::min(wanted_, left_));
    while (left_ > wanted_ && join_cheapest(share)) {
    }
    uncoarsen(share);
    return numbered();
  }

 private:
  /// Whether there is a way from a to b that is not the edge between them.
  bool has_other_way(int a, int b) const {
    std::vector<int> stack;
    std::set<int> seen;
    for (const auto& [next, bytes] : out_[static_cast<std::size_t>(a)]) {
      if (next != b && seen.insert(next).second) stack.push_back(next);
    }
    while (!stack.empty()) {
      const int at = stack.back();
      stack.pop_back();
      for (const auto& [next, bytes] : out_[static_cast<std::size_t>(at)]) {
        if (next == b) return true;
        if (seen.insert(next).second) stack.push_back(next);
      }
    }
    return false;
  }

  void join(int a, int b) {
    const auto keep = static_cast<std::size_t>(a), gone = static_cast<std::size_t>(b);
    for (int& block : block_) {
      if (block == b) block = a;
    }
    seconds_[keep] += seconds_[gone];
    out_[keep].erase(b);
    for (const auto& [next, bytes] : out_[gone]) {
      in_[static_cast<std::size_t>(next)].erase(b);
      if (next == a) continue;
      out_[keep][next] += bytes;
      in_[static_cast<std::size_t>(next)].insert(a);
    }
    for (const int last : in_[gone]) {
      if (last == a) continue;
      auto& edges = out_[static_cast<std::size_t>(last)];
      const double bytes = edges.at(b);
      edges.erase(b);
      edges[a] += bytes;
      in_[keep].insert(last);
    }
    in_[keep].erase(b);
    out_[gone].clear();
    in_[gone].clear();
    alive_[gone] = false;
    --left_;
  }

  /// The lightest block with the neighbour to which most bytes go, as long as both stay below a share and a half;
  /// where nobody has such a neighbour, with the lightest one.
  bool join_cheapest(double share) {
    std::vector<int> by_weight;
    for (std::size_t i = 0; i < alive_.size(); ++i) {
      if (alive_[i]) by_weight.push_back(static_cast<int>(i));
    }
    std::ranges::stable_sort(by_weight,
                             [&](int a, int b) { return seconds_[std::size_t(a)] < seconds_[std::size_t(b)]; });
    for (const bool balanced : {true, false}) {
      for (const int block : by_weight) {
        struct Candidate {
          double bytes, seconds;
          int from, to;
        };
        std::vector<Candidate> candidates;
        for (const auto& [next, bytes] : out_[static_cast<std::size_t>(block)])
          candidates.push_back({bytes, seconds_[static_cast<std::size_t>(next)], block, next});
        for (const int last : in_[static_cast<std::size_t>(block)])
          candidates.push_back(
              {out_[static_cast<std::size_t>(last)].at(block), seconds_[static_cast<std::size_t>(last)], last, block});
        std::ranges::stable_sort(candidates, [&](const Candidate& a, const Candidate& b) {
          return balanced ? a.bytes > b.bytes : a.seconds < b.seconds;
        });
        for (const Candidate& one : candidates) {
          const double together =
              seconds_[static_cast<std::size_t>(one.from)] + seconds_[static_cast<std::size_t>(one.to)];
          if ((balanced && together > 1.5 * share) || has_other_way(one.from, one.to)) continue;
          join(one.from, one.to);
          return true;
        }
      }
    }
    // Parts that nothing joins: any two of them.
    for (std::size_t i = 0; i + 1 < by_weight.size(); ++i) {
      const int a = by_weight[i], b = by_weight[i + 1];
      if (has_other_way(a, b) || has_other_way(b, a)) continue;
      join(a, b);
      return true;
    }
    return false;
  }

  double cut_bytes() const {
    double sum = 0;
    for (std::size_t i = 0; i < components_.size(); ++i) {
      for (std::size_t e = 0; e < components_[i].next.size(); ++e) {
        if (block_[i] != block_[static_cast<std::size_t>(components_[i].next[e])]) sum += components_[i].next_bytes[e];
      }
    }
    return sum;
  }

  /// A component at a border goes to the neighbouring block where that carries fewer bytes, keeps blocks convex and
  /// none above a share and a half that was not so before.
  void uncoarsen(double share) {
    double now = cut_bytes();
    for (int round = 0; round < 2; ++round) {
      bool moved = false;
      for (std::size_t i = 0; i < components_.size(); ++i) {
        for (const int next : components_[i].next) {
          const int from = block_[i], to = block_[static_cast<std::size_t>(next)];
          if (from == to || seconds_[std::size_t(from)] <= components_[i].seconds) continue;
          if (seconds_[static_cast<std::size_t>(to)] + components_[i].seconds > 1.5 * share) continue;
          block_[i] = to;
          const double then = cut_bytes();
          if (then < now && is_convex(components_, block_)) {
            seconds_[static_cast<std::size_t>(from)] -= components_[i].seconds;
            seconds_[static_cast<std::size_t>(to)] += components_[i].seconds;
            now = then;
            moved = true;
          } else {
            block_[i] = from;
          }
        }
      }
      if (!moved) return;
    }
  }

  /// In a topological order; of those that may come next, the one with the least component.
  std::vector<int> numbered() const {
    std::map<int, std::set<int>> before, after;
    std::map<int, int> first;
    for (std::size_t i = 0; i < components_.size(); ++i) {
      first.try_emplace(block_[i], static_cast<int>(i));
      before.try_emplace(block_[i]);
    }
    for (std::size_t i = 0; i < components_.size(); ++i) {
      for (const int next : components_[i].next) {
        const int to = block_[static_cast<std::size_t>(next)];
        if (to == block_[i]) continue;
        before[to].insert(block_[i]);
        after[block_[i]].insert(to);
      }
    }
    std::set<std::pair<int, int>> open;
    for (const auto& [block, earlier] : before) {
      if (earlier.empty()) open.insert({first.at(block), block});
    }
    std::map<int, int> number;
    while (!open.empty()) {
      const int block = open.begin()->second;
      open.erase(open.begin());
      number.emplace(block, static_cast<int>(number.size()));
      for (const int next : after[block]) {
        before.at(next).erase(block);
        if (before.at(next).empty()) open.insert({first.at(next), next});
      }
    }
    TRIREME_CHECK(number.size() == first.size(), "blocks depend on each other in a circle");
    std::vector<int> result;
    for (const int block : block_) result.push_back(number.at(block));
    return result;
  }

  const std::vector<RanncComponent>& components_;
  const int wanted_;
  std::vector<int> block_;
  std::vector<std::map<int, double>> out_;
  std::vector<std::set<int>> in_;
  std::vector<double> seconds_;
  std::vector<bool> alive_;
  int left_ = 0;
};

void enumerate_rannc(const RanncProblem& problem, int begin, int devices, RanncPlan& plan,
                     std::optional<RanncPlan>& best) {
  if (begin == problem.blocks) {
    if (devices == 0 && (!best || plan.slowest() < best->slowest())) best = plan;
    return;
  }
  for (int end = begin + 1; end <= problem.blocks; ++end) {
    for (int used = 1; used <= devices; ++used) {
      const auto cost = problem.cost(begin, end, used);
      if (!cost) continue;
      RanncPlan next = plan;
      next.stages.push_back({begin, end, used});
      next.forward = std::max(next.forward, cost->forward);
      next.backward = std::max(next.backward, cost->backward);
      enumerate_rannc(problem, end, devices - used, next, best);
    }
  }
}

}  // namespace

std::vector<int> coarsen(const std::vector<RanncComponent>& components, int blocks) {
  if (components.empty()) return {};
  return Coarsening(components, std::max(1, blocks)).run();
}

bool is_convex(const std::vector<RanncComponent>& components, const std::vector<int>& block) {
  // Blocks as nodes: an order exists if and only if there is no circle.
  std::map<int, std::set<int>> before, after;
  for (std::size_t i = 0; i < components.size(); ++i) {
    before.try_emplace(block[i]);
    for (const int next : components[i].next) {
      const int to = block[static_cast<std::size_t>(next)];
      if (to == block[i]) continue;
      before[to].insert(block[i]);
      after[block[i]].insert(to);
    }
  }
  std::vector<int> open;
  for (const auto& [one, earlier] : before) {
    if (earlier.empty()) open.push_back(one);
  }
  std::size_t done = 0;
  while (!open.empty()) {
    const int one = open.back();
    open.pop_back();
    ++done;
    for (const int next : after[one]) {
      before.at(next).erase(one);
      if (before.at(next).empty()) open.push_back(next);
    }
  }
  return done == before.size();
}

std::optional<RanncPlan> rannc_stages(const RanncProblem& problem) {
  // Two maxima do not add up, so a state keeps every pair of which neither is beaten in both.
  struct State {
    double forward, backward;
    int begin, used;   // of the last stage
    std::size_t last;  // of its states
  };
  const auto index = [&](int block, int devices) {
    return static_cast<std::size_t>(block) * static_cast<std::size_t>(problem.devices + 1) +
           static_cast<std::size_t>(devices);
  };
  std::vector<std::vector<State>> states(index(problem.blocks, problem.devices) + 1);
  states[index(0, 0)].push_back({0, 0, 0, 0, 0});
  for (int end = 1; end <= problem.blocks; ++end) {
    for (int devices = 1; devices <= problem.devices; ++devices) {
      std::vector<State>& here = states[index(end, devices)];
      for (int begin = 0; begin < end; ++begin) {
        for (int used = 1; used <= devices; ++used) {
          const auto& before = states[index(begin, devices - used)];
          if (before.empty()) continue;
          const auto cost = problem.cost(begin, end, used);
          if (!cost) continue;
          for (std::size_t i = 0; i < before.size(); ++i)
            here.push_back({std::max(before[i].forward, cost->forward), std::max(before[i].backward, cost->backward),
                            begin, used, i});
        }
      }
      std::ranges::stable_sort(here, [](const State& a, const State& b) {
        return a.forward != b.forward ? a.forward < b.forward : a.backward < b.backward;
      });
      double least = std::numeric_limits<double>::infinity();
      std::erase_if(here, [&](const State& state) {
        if (state.backward >= least) return true;
        least = state.backward;
        return false;
      });
    }
  }
  const auto& ends = states[index(problem.blocks, problem.devices)];
  if (ends.empty()) return std::nullopt;
  const auto best = std::ranges::min_element(
      ends, [](const State& a, const State& b) { return a.forward + a.backward < b.forward + b.backward; });
  RanncPlan plan{.stages = {}, .forward = best->forward, .backward = best->backward};
  for (int end = problem.blocks, devices = problem.devices, at = int(best - ends.begin()); end > 0;) {
    const State& state = states[index(end, devices)][static_cast<std::size_t>(at)];
    plan.stages.insert(plan.stages.begin(), {state.begin, end, state.used});
    devices -= state.used;
    end = state.begin;
    at = static_cast<int>(state.last);
  }
  return plan;
}

std::optional<RanncPlan> brute_force_rannc(const RanncProblem& problem) {
  std::optional<RanncPlan> best;
  RanncPlan plan;
  enumerate_rannc(problem, 0, problem.devices, plan, best);
  return best;
}

}  // namespace trireme::plan::graph
