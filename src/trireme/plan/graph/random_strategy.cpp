#include "trireme/plan/graph/random_strategy.h"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/random.h"

namespace trireme::plan::graph {
namespace {

class RandomStrategy {
 public:
  RandomStrategy(const Graph& both, const layout::Mesh& mesh, std::uint64_t seed, int wholeness)
      : both_(both), random_(seed, "strategy"), wholeness_(wholeness), strategy_(replicated(both, mesh)) {
    for (const Op& op : both.ops) spaces_.push_back(iteration_space(both, op));
    derived_.resize(strategy_.splits.size());
    for (std::size_t i = 0; i < both.ops.size(); ++i) {
      const int forward = both.ops[i].forward;
      derived_[forward >= 0 ? static_cast<std::size_t>(forward) : i].push_back(i);
    }
  }

  Strategy run() {
    const Uses uses = uses_of(both_);
    for (std::size_t op = 0; op < strategy_.splits.size(); ++op) {
      int leader = -1;  // an earlier operator with one of its parameters
      for (const int input : both_.ops[op].inputs) {
        if (both_.tensor(input).role != Role::kParameter) continue;
        const int first = uses.consumers[static_cast<std::size_t>(input)][0];
        if (first < static_cast<int>(op)) leader = first;
      }
      if (leader >= 0) {
        follow(op, static_cast<std::size_t>(leader));
      } else {
        draw(op);
      }
    }
    // Readers of one parameter whose gradients would lie differently: both stay whole, which always goes.
    for (int round = 0; round < 64; ++round) {
      const std::vector<int> clashing = clashes(uses);
      if (clashing.empty()) return std::move(strategy_);
      for (const int op : clashing) std::ranges::fill(strategy_.splits[static_cast<std::size_t>(op)], -1);
    }
    return replicated(both_, strategy_.mesh);
  }

 private:
  bool is_legal(std::size_t op, const Split& split) const {
    return std::ranges::all_of(derived_[op], [&](std::size_t i) {
      return why_not(both_, strategy_.mesh, both_.ops[i], spaces_[i], split).empty();
    });
  }

  void draw(std::size_t op) {
    const auto& dims = spaces_[op].dims;
    Split& split = strategy_.splits[op];
    for (int& at : split) {
      if (random_.below(10, draw_++) < static_cast<std::uint64_t>(wholeness_)) continue;
      const auto first = static_cast<std::size_t>(random_.below(dims.size() + 1, draw_++));
      for (std::size_t i = 0; i < dims.size() && at < 0; ++i) {
        const IterationDim& dim = dims[(first + i) % dims.size()];
        if (dim.kind == DimKind::kWhole || dim.size == 1) continue;
        at = dim.dim;
        if (!is_legal(op, split)) at = -1;
      }
    }
  }

  void follow(std::size_t op, std::size_t leader) {
    Split& split = strategy_.splits[op];
    split = strategy_.splits[leader];
    for (int& at : split) {
      if (at >= 0 && spaces_[op].find(at) < 0) at = -1;
    }
    if (!is_legal(op, split)) std::ranges::fill(split, -1);
  }

  /// Operators whose parts of one parameter's gradient do not lie alike.
  std::vector<int> clashes(const Uses& uses) const {
    std::vector<int> found;
    for (const Op& op : both_.ops) {
      if (!is_parameter_sum(both_, op)) continue;
      std::vector<std::pair<int, Sharding>> made;
      for (const int piece : op.inputs) {
        const int producer = uses.producer[static_cast<std::size_t>(piece)], forward = both_.op(producer).forward;
        const auto output = static_cast<std::size_t>(std::ranges::find(both_.op(producer).outputs, piece) -
                                                     both_.op(producer).outputs.begin());
        made.emplace_back(forward, output_sharding(spaces_[static_cast<std::size_t>(producer)],
                                                   strategy_.splits[static_cast<std::size_t>(forward)], output));
      }
      if (std::ranges::all_of(made, [&](const auto& one) { return one.second == made[0].second; })) continue;
      for (const auto& one : made) found.push_back(one.first);
    }
    return found;
  }

  const Graph& both_;
  const Random random_;
  const int wholeness_;
  std::uint64_t draw_ = 0;
  std::vector<IterationSpace> spaces_;
  std::vector<std::vector<std::size_t>> derived_;  // [forward operator] itself and its gradients
  Strategy strategy_;
};

}  // namespace

Strategy random_strategy(const Graph& both, const layout::Mesh& mesh, std::uint64_t seed, int wholeness) {
  return RandomStrategy(both, mesh, seed, wholeness).run();
}

}  // namespace trireme::plan::graph
