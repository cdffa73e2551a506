#include "trireme/plan/graph/search/limited.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <queue>

#include "trireme/base/stopwatch.h"

namespace trireme::plan::graph {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

/// Choices that are still allowed; the rest of a node's choices cost infinitely much.
using Allowed = std::vector<std::vector<bool>>;

struct Subproblem {
  double bound = 0;
  Allowed allowed;
  Assignment relaxed;  // that has the bound: where it does not fit, one of its nodes is branched on
  bool operator<(const Subproblem& other) const { return bound > other.bound; }  // the least bound first
};

class Branching {
 public:
  Branching(const SearchProblem& problem, const LimitedOptions& options) : problem_(problem), options_(options) {}

  Limited run() {
    result_.cost = kInfinite;
    Allowed all;
    for (const auto& costs : problem_.cost) all.emplace_back(costs.size(), true);
    std::priority_queue<Subproblem> open;
    if (auto root = relax(std::move(all))) open.push(std::move(*root));
    while (!open.empty() && seconds_since(start_) < options_.seconds) {
      const Subproblem top = open.top();
      if (!is_better(top.bound)) break;
      open.pop();
      branch(top, open);
    }
    result_.proven = open.empty() || !is_better(open.top().bound);
    result_.bound = result_.proven || open.empty() ? result_.cost : open.top().bound;
    if (!result_.assignment) result_.cost = 0;
    return std::move(result_);
  }

 private:
  bool is_better(double bound) const { return bound < result_.cost * (1 - options_.gap); }

  /// The node whose choices differ most in memory gets them divided into those below and above the middle.
  void branch(const Subproblem& top, std::priority_queue<Subproblem>& open) {
    std::size_t node = 0;
    double most = -1;
    for (std::size_t i = 0; i < top.relaxed.size(); ++i) {
      const auto& memory = problem_.memory[i];
      double low = kInfinite, high = 0;
      int allowed = 0;
      for (std::size_t c = 0; c < memory.size(); ++c) {
        if (!top.allowed[i][c]) continue;
        ++allowed;
        low = std::min(low, memory[c]);
        high = std::max(high, memory[c]);
      }
      if (allowed > 1 && high - low > most) most = high - low, node = i;
    }
    if (most < 0) return;  // one assignment is left, and it was looked at
    const auto& memory = problem_.memory[node];
    const auto chosen = static_cast<std::size_t>(top.relaxed[node]);
    Allowed only = top.allowed, others = top.allowed;
    if (most > 0) {
      // Memory tells choices apart: one half of the range, and the other.
      double low = kInfinite, high = 0;
      for (std::size_t c = 0; c < memory.size(); ++c) {
        if (!top.allowed[node][c]) continue;
        low = std::min(low, memory[c]);
        high = std::max(high, memory[c]);
      }
      const double middle = (low + high) / 2;
      for (std::size_t c = 0; c < memory.size(); ++c) {
        only[node][c] = only[node][c] && memory[c] <= middle;
        others[node][c] = others[node][c] && memory[c] > middle;
      }
    } else {
      for (std::size_t c = 0; c < memory.size(); ++c) only[node][c] = c == chosen;
      others[node][chosen] = false;
    }
    for (Allowed* half : {&only, &others}) {
      if (auto next = relax(std::move(*half)); next && is_better(next->bound)) open.push(std::move(*next));
    }
  }

  /// The best bound over multipliers. Every assignment on the way that fits is a candidate.
  std::optional<Subproblem> relax(Allowed allowed) {
    ++result_.subproblems;
    double least_memory = 0;
    for (std::size_t i = 0; i < allowed.size(); ++i) {
      double least = kInfinite;
      for (std::size_t c = 0; c < allowed[i].size(); ++c) {
        if (allowed[i][c]) least = std::min(least, problem_.memory[i][c]);
      }
      least_memory += least;
    }
    if (!(least_memory <= options_.memory_bytes)) return std::nullopt;  // also where a node has no choice left
    if (enumerate(allowed)) return std::nullopt;
    Subproblem sub{.bound = -kInfinite, .allowed = std::move(allowed), .relaxed = {}};
    double low = 0, high = 0;
    const auto at = [&](double multiplier) {
      const auto [assignment, value] = solve(sub.allowed, multiplier);
      if (value > sub.bound) sub.bound = value, sub.relaxed = assignment;
      const bool fits = memory_of(problem_, assignment) <= options_.memory_bytes;
      const double cost = cost_of(problem_, assignment);
      if (fits && cost < result_.cost) result_.cost = cost, result_.assignment = assignment;
      return fits;
    };
    if (at(0)) return sub;  // the limit does not bind
    const double scale = std::max(1e-30, sub.bound) / std::max(1.0, options_.memory_bytes);
    for (high = scale; !at(high) && high < scale * 1e12; high *= 8) low = high;
    for (int i = 0; i < 16 && is_better(sub.bound) && seconds_since(start_) < options_.seconds; ++i) {
      const double middle = (low + high) / 2;
      (at(middle) ? high : low) = middle;
    }
    return sub;
  }

  /// Looks at every assignment where there are few; false where there are many.
  bool enumerate(const Allowed& allowed) {
    double assignments = 1;
    std::vector<std::vector<int>> choices;
    for (const auto& node : allowed) {
      choices.emplace_back();
      for (std::size_t c = 0; c < node.size(); ++c) {
        if (node[c]) choices.back().push_back(static_cast<int>(c));
      }
      assignments *= static_cast<double>(choices.back().size());
    }
    if (assignments > options_.enumerate_below) return false;
    std::vector<std::size_t> at(choices.size(), 0);
    Assignment tried;
    for (const auto& node : choices) tried.push_back(node[0]);
    for (bool more = true; more;) {
      const double cost = cost_of(problem_, tried);
      if (cost < result_.cost && memory_of(problem_, tried) <= options_.memory_bytes)
        result_.cost = cost, result_.assignment = tried;
      more = false;
      for (std::size_t i = choices.size(); i-- > 0 && !more;) {
        more = ++at[i] < choices[i].size();
        if (!more) at[i] = 0;
        tried[i] = choices[i][at[i]];
      }
    }
    return true;
  }

  std::pair<Assignment, double> solve(const Allowed& allowed, double multiplier) const {
    SearchProblem priced{.cost = problem_.cost, .memory = {}, .pairs = problem_.pairs};
    for (std::size_t i = 0; i < priced.cost.size(); ++i) {
      for (std::size_t c = 0; c < priced.cost[i].size(); ++c)
        priced.cost[i][c] = allowed[i][c] ? priced.cost[i][c] + multiplier * problem_.memory[i][c] : kInfinite;
    }
    Elimination found = eliminate(priced);
    return {std::move(found.assignment), found.cost - multiplier * options_.memory_bytes};
  }

  const SearchProblem& problem_;
  const LimitedOptions options_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  Limited result_;
};

}  // namespace

Limited solve_limited(const SearchProblem& problem, const LimitedOptions& options) {
  return Branching(problem, options).run();
}

}  // namespace trireme::plan::graph
