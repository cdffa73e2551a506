#include "trireme/plan/graph/search/elimination.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>

#include "trireme/base/error.h"

namespace trireme::plan::graph {
namespace {

/// A cost of several nodes together; the last one varies fastest.
struct Factor {
  std::vector<int> nodes;
  std::vector<double> cost;
};

/// A node that is gone: its best choice for each choice of its neighbours.
struct Eliminated {
  int node = -1;
  std::vector<int> neighbours;
  std::vector<int> best;
};

class BucketElimination {
 public:
  BucketElimination(const SearchProblem& problem, std::size_t most_entries)
      : problem_(problem),
        most_entries_(most_entries),
        neighbours_(problem.cost.size()),
        left_(problem.cost.size(), true) {
    for (std::size_t node = 0; node < problem.cost.size(); ++node)
      factors_.push_back({{static_cast<int>(node)}, problem.cost[node]});
    for (const PairCost& pair : problem.pairs) {
      factors_.push_back({{pair.a, pair.b}, pair.cost});
      neighbours_[static_cast<std::size_t>(pair.a)].insert(pair.b);
      neighbours_[static_cast<std::size_t>(pair.b)].insert(pair.a);
    }
  }

  Elimination run(const std::vector<int>& order) {
    for (std::size_t i = 0; i < problem_.cost.size(); ++i) remove(order.empty() ? next() : order[i]);
    result_.assignment.assign(problem_.cost.size(), 0);
    for (std::size_t i = gone_.size(); i-- > 0;) {
      std::size_t at = 0;
      for (const int neighbour : gone_[i].neighbours)
        at =
            at * choices(neighbour) + static_cast<std::size_t>(result_.assignment[static_cast<std::size_t>(neighbour)]);
      result_.assignment[static_cast<std::size_t>(gone_[i].node)] = gone_[i].best[at];
    }
    result_.cost = cost_of(problem_, result_.assignment);
    return std::move(result_);
  }

 private:
  std::size_t choices(int node) const { return problem_.cost[static_cast<std::size_t>(node)].size(); }

  double table_size(int node) const {
    double size = static_cast<double>(choices(node));
    for (const int neighbour : neighbours_[static_cast<std::size_t>(node)])
      size *= static_cast<double>(choices(neighbour));
    return size;
  }

  int next() const {
    int best = -1;
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t node = 0; node < left_.size(); ++node) {
      if (!left_[node]) continue;
      const double size = table_size(static_cast<int>(node));
      if (size < least) least = size, best = static_cast<int>(node);
    }
    return best;
  }

  void remove(int node) {
    const auto& around = neighbours_[static_cast<std::size_t>(node)];
    const double size = table_size(node);
    if (size > static_cast<double>(most_entries_))
      throw ConfigError(
          fmt::format("elimination needs a table of {:.3g} entries for {} neighbours", size, around.size()),
          "search with fewer choices a node: without halos, or on fewer devices");
    const std::vector<int> kept(around.begin(), around.end());
    result_.width = std::max(result_.width, static_cast<int>(kept.size()));
    result_.entries += static_cast<std::size_t>(size);
    Factor joined{kept, {}};
    Eliminated gone{node, kept, {}};
    combine(node, kept, joined.cost, gone.best);
    std::erase_if(factors_,
                  [&](const Factor& factor) { return std::ranges::find(factor.nodes, node) != factor.nodes.end(); });
    factors_.push_back(std::move(joined));
    gone_.push_back(std::move(gone));
    left_[static_cast<std::size_t>(node)] = false;
    for (const int a : kept) {
      auto& of = neighbours_[static_cast<std::size_t>(a)];
      of.erase(node);
      for (const int b : kept) {
        if (a != b) of.insert(b);
      }
    }
  }

  /// The least sum of all factors with `node`, for each choice of the kept ones.
  void combine(int node, const std::vector<int>& kept, std::vector<double>& cost, std::vector<int>& best) const {
    struct Cursor {
      const double* cost;
      std::vector<std::size_t> strides;  // of the kept nodes
      std::size_t own = 0;               // of the node that goes
      std::size_t at = 0;
    };
    std::vector<Cursor> cursors;
    for (const Factor& factor : factors_) {
      if (std::ranges::find(factor.nodes, node) == factor.nodes.end()) continue;
      Cursor cursor{factor.cost.data(), std::vector<std::size_t>(kept.size(), 0)};
      std::size_t stride = 1;
      for (std::size_t i = factor.nodes.size(); i-- > 0;) {
        if (factor.nodes[i] == node) {
          cursor.own = stride;
        } else {
          cursor.strides[static_cast<std::size_t>(std::ranges::find(kept, factor.nodes[i]) - kept.begin())] = stride;
        }
        stride *= choices(factor.nodes[i]);
      }
      cursors.push_back(std::move(cursor));
    }
    std::size_t size = 1;
    for (const int neighbour : kept) size *= choices(neighbour);
    cost.resize(size);
    best.resize(size);
    std::vector<std::size_t> place(kept.size(), 0);
    const std::size_t own_choices = choices(node);
    for (std::size_t entry = 0; entry < size; ++entry) {
      double least = std::numeric_limits<double>::infinity();
      int chosen = 0;
      for (std::size_t choice = 0; choice < own_choices; ++choice) {
        double sum = 0;
        for (const Cursor& cursor : cursors) sum += cursor.cost[cursor.at + choice * cursor.own];
        if (sum < least) least = sum, chosen = static_cast<int>(choice);
      }
      cost[entry] = least;
      best[entry] = chosen;
      for (std::size_t i = kept.size(); i-- > 0;) {
        const bool wraps = ++place[i] == choices(kept[i]);
        for (Cursor& cursor : cursors) {
          cursor.at += cursor.strides[i];
          if (wraps) cursor.at -= cursor.strides[i] * choices(kept[i]);
        }
        if (!wraps) break;
        place[i] = 0;
      }
    }
  }

  const SearchProblem& problem_;
  const std::size_t most_entries_;
  std::vector<Factor> factors_;
  std::vector<std::set<int>> neighbours_;
  std::vector<bool> left_;
  std::vector<Eliminated> gone_;
  Elimination result_;
};

}  // namespace

Elimination eliminate(const SearchProblem& problem, const std::vector<int>& order, std::size_t most_entries) {
  for (const auto& costs : problem.cost) {
    if (costs.empty()) throw ConfigError("a node of the search has no choice at all", "allow more kinds of splits");
  }
  return BucketElimination(problem, most_entries).run(order);
}

std::optional<Elimination> brute_force(const SearchProblem& problem, double most) {
  double assignments = 1;
  for (const auto& costs : problem.cost) assignments *= static_cast<double>(costs.size());
  if (assignments > most || assignments < 1) return std::nullopt;
  const std::size_t nodes = problem.cost.size();
  Elimination best{.assignment = Assignment(nodes, 0), .cost = std::numeric_limits<double>::infinity()};
  Assignment tried(nodes, 0);
  for (bool more = true; more;) {
    const double cost = cost_of(problem, tried);
    ++best.entries;
    if (cost < best.cost) best.cost = cost, best.assignment = tried;
    std::size_t i = nodes;
    while (i > 0 && ++tried[i - 1] == static_cast<int>(problem.cost[i - 1].size())) tried[--i] = 0;
    more = i > 0;
  }
  return best;
}

}  // namespace trireme::plan::graph
