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
  Branching(const SearchProblem& problem, const LimitedOptions& options) : problem_(problem), options_(options) {
    if (!problem.memory.empty()) rows_.push_back(&problem.memory);
    for (const MemoryRow& row : problem.rows) rows_.push_back(&row);
  }

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

  /// The least and the most of a node's choices that are still allowed, in a row.
  std::pair<double, double> range(const Allowed& allowed, const MemoryRow& row, std::size_t node) const {
    double low = kInfinite, high = 0;
    for (std::size_t c = 0; c < row[node].size(); ++c) {
      if (!allowed[node][c]) continue;
      low = std::min(low, row[node][c]);
      high = std::max(high, row[node][c]);
    }
    return {low, high};
  }

  /// The node whose choices differ most in memory gets them divided into those below and above the middle.
  void branch(const Subproblem& top, std::priority_queue<Subproblem>& open) {
    std::size_t node = 0;
    const MemoryRow* by = nullptr;
    double most = -1;
    for (const MemoryRow* row : rows_) {
      for (std::size_t i = 0; i < top.relaxed.size(); ++i) {
        const auto [low, high] = range(top.allowed, *row, i);
        if (std::ranges::count(top.allowed[i], true) > 1 && high - low > most) most = high - low, node = i, by = row;
      }
    }
    if (most < 0) return;  // one assignment is left, and it was looked at
    const auto chosen = static_cast<std::size_t>(top.relaxed[node]);
    Allowed only = top.allowed, others = top.allowed;
    if (most > 0) {
      // Memory tells choices apart: one half of the range, and the other.
      const auto [low, high] = range(top.allowed, *by, node);
      const double middle = (low + high) / 2;
      for (std::size_t c = 0; c < only[node].size(); ++c) {
        only[node][c] = only[node][c] && (*by)[node][c] <= middle;
        others[node][c] = others[node][c] && (*by)[node][c] > middle;
      }
    } else {
      for (std::size_t c = 0; c < only[node].size(); ++c) only[node][c] = c == chosen;
      others[node][chosen] = false;
    }
    for (Allowed* half : {&only, &others}) {
      if (auto next = relax(std::move(*half)); next && is_better(next->bound)) open.push(std::move(*next));
    }
  }

  /// The best bound over multipliers. Every assignment on the way that fits is a candidate.
  std::optional<Subproblem> relax(Allowed allowed) {
    ++result_.subproblems;
    for (const MemoryRow* row : rows_) {
      double least = 0;
      for (std::size_t i = 0; i < allowed.size(); ++i) least += range(allowed, *row, i).first;
      if (!(least <= options_.memory_bytes)) return std::nullopt;  // also where a node has no choice left
    }
    if (enumerate(allowed)) return std::nullopt;
    Subproblem sub{.bound = -kInfinite, .allowed = std::move(allowed), .relaxed = {}};
    const auto at = [&](const std::vector<double>& multipliers) {
      auto [assignment, value] = solve(sub.allowed, multipliers);
      if (value > sub.bound) sub.bound = value, sub.relaxed = assignment;
      const double cost = cost_of(problem_, assignment);
      if (memory_of(problem_, assignment) <= options_.memory_bytes && cost < result_.cost)
        result_.cost = cost, result_.assignment = assignment;
      return std::pair(std::move(assignment), value);
    };
    std::vector<double> multipliers(rows_.size(), 0.0);
    const Assignment free = at(multipliers).first;
    const auto over = [&](const MemoryRow& row, const Assignment& of) {
      return memory_of(row, of) - options_.memory_bytes;
    };
    const auto goes_on = [&] { return is_better(sub.bound) && seconds_since(start_) < options_.seconds; };
    std::size_t worst = 0;
    for (std::size_t r = 1; r < rows_.size(); ++r) {
      if (over(*rows_[r], free) > over(*rows_[worst], free)) worst = r;
    }
    if (rows_.empty() || over(*rows_[worst], free) <= 0) return sub;  // the limit does not bind
    const double scale = std::max(1e-30, sub.bound) / std::max(1.0, options_.memory_bytes);
    double low = 0, high = scale, best = 0, best_bound = sub.bound;
    const auto fits_at = [&](double multiplier) {
      multipliers[worst] = multiplier;
      const auto [assignment, value] = at(multipliers);
      if (value > best_bound) best_bound = value, best = multiplier;
      return over(*rows_[worst], assignment) <= 0;
    };
    while (!fits_at(high) && high < scale * 1e12) low = high, high *= 8;
    for (int i = 0; i < 16 && goes_on(); ++i) {
      const double middle = (low + high) / 2;
      (fits_at(middle) ? high : low) = middle;
    }
    if (rows_.size() > 1) multipliers[worst] = best, ascend(multipliers, at, over, goes_on);
    return sub;
  }

  /// Several rows: multipliers follow what each row has too much of, in Polyak's steps towards the best known cost.
  void ascend(std::vector<double>& multipliers, const auto& at, const auto& over, const auto& goes_on) {
    constexpr int kSteps = 24;
    for (int i = 0; i < kSteps && goes_on(); ++i) {
      const auto [assignment, value] = at(multipliers);
      const double target = result_.assignment ? result_.cost : value + 0.05 * std::abs(value);
      std::vector<double> direction;
      double norm = 0;
      for (std::size_t r = 0; r < rows_.size(); ++r) {
        direction.push_back(over(*rows_[r], assignment));
        norm += direction[r] * direction[r];
      }
      if (norm <= 0 || target <= value) return;
      for (std::size_t r = 0; r < rows_.size(); ++r)
        multipliers[r] = std::max(0.0, multipliers[r] + (target - value) / (norm * (1 + 0.2 * i)) * direction[r]);
    }
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

  std::pair<Assignment, double> solve(const Allowed& allowed, const std::vector<double>& multipliers) const {
    SearchProblem priced{.cost = problem_.cost, .memory = {}, .pairs = problem_.pairs};
    double paid = 0;
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      paid += multipliers[r] * options_.memory_bytes;
      for (std::size_t i = 0; i < priced.cost.size() && multipliers[r] > 0; ++i) {
        for (std::size_t c = 0; c < priced.cost[i].size(); ++c) priced.cost[i][c] += multipliers[r] * (*rows_[r])[i][c];
      }
    }
    for (std::size_t i = 0; i < priced.cost.size(); ++i) {
      for (std::size_t c = 0; c < priced.cost[i].size(); ++c) {
        if (!allowed[i][c]) priced.cost[i][c] = kInfinite;
      }
    }
    Elimination found = eliminate(priced);
    return {std::move(found.assignment), found.cost - paid};
  }

  const SearchProblem& problem_;
  const LimitedOptions options_;
  std::vector<const MemoryRow*> rows_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  Limited result_;
};

}  // namespace

Limited solve_limited(const SearchProblem& problem, const LimitedOptions& options) {
  return Branching(problem, options).run();
}

}  // namespace trireme::plan::graph
