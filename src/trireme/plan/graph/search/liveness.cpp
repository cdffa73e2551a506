#include "trireme/plan/graph/search/liveness.h"

#include <algorithm>

#include "trireme/plan/graph/count.h"

namespace trireme::plan::graph {

LivenessRows::LivenessRows(const Graph& both, const std::vector<std::vector<int>>& nodes,
                           const std::vector<std::vector<Split>>& choices, const layout::Mesh& mesh)
    : ops_(both.ops.size()) {
  std::vector<int> node_of(both.ops.size(), 0);
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    choices_.push_back(choices[node].size());
    for (const int op : nodes[node]) node_of[static_cast<std::size_t>(op)] = static_cast<int>(node);
  }
  // Who says how a tensor lies: what makes it, or, of inputs and parameters, what reads it first.
  struct Owner {
    int op = -1;
    const std::vector<int>* places = nullptr;
  };
  std::vector<Owner> owners(both.tensors.size());
  std::vector<IterationSpace> spaces;
  for (const Op& op : both.ops) spaces.push_back(iteration_space(both, op));
  for (std::size_t i = 0; i < both.ops.size(); ++i) {
    const Op& op = both.ops[i];
    for (std::size_t k = 0; k < op.inputs.size(); ++k) {
      Owner& owner = owners[static_cast<std::size_t>(op.inputs[k])];
      if (both.tensor(op.inputs[k]).role != Role::kActivation && owner.op < 0)
        owner = {static_cast<int>(i), &spaces[i].inputs[k]};
    }
    for (std::size_t k = 0; k < op.outputs.size(); ++k)
      owners[static_cast<std::size_t>(op.outputs[k])] = {static_cast<int>(i), &spaces[i].outputs[k]};
  }
  const auto add = [&](int tensor, std::size_t first, std::size_t last, double times) {
    const Owner& owner = owners[static_cast<std::size_t>(tensor)];
    const double whole = times * both.bytes(both.tensor(tensor));
    Held held{.first = first, .last = last, .bytes = {}};
    if (owner.op < 0) {  // nobody reads it: it is the same whatever is chosen
      if (choices_.empty()) return;
      held.bytes.assign(choices_[0], whole);
      held_.push_back(std::move(held));
      return;
    }
    const auto op = static_cast<std::size_t>(owner.op);
    held.node = node_of[both.ops[op].forward >= 0 ? static_cast<std::size_t>(both.ops[op].forward) : op];
    for (const Split& split : choices[static_cast<std::size_t>(held.node)]) {
      const std::vector<int> degrees = degrees_of(mesh, spaces[op], split);
      double bytes = whole;
      for (const int place : *owner.places) bytes /= degrees[static_cast<std::size_t>(place)];
      held.bytes.push_back(bytes);
    }
    held_.push_back(std::move(held));
  };
  for (const Lifetime& one : memory_lifetimes(both)) add(one.tensor, one.first, one.last, 1);
  for (std::size_t i = 0; i < both.tensors.size() && ops_ > 0; ++i) {
    if (both.tensors[i].role == Role::kParameter) add(static_cast<int>(i), 0, ops_ - 1, kMoments);
  }
  const std::vector<double> live = live_bytes(both, [&](int tensor) { return both.bytes(both.tensor(tensor)); });
  whole_peak_ = static_cast<std::size_t>(std::ranges::max_element(live) - live.begin());
}

MemoryRow LivenessRows::row(std::size_t op) const {
  MemoryRow row;
  for (const std::size_t choices : choices_) row.emplace_back(choices, 0.0);
  for (const Held& held : held_) {
    if (op < held.first || op > held.last) continue;
    for (std::size_t c = 0; c < held.bytes.size(); ++c) row[static_cast<std::size_t>(held.node)][c] += held.bytes[c];
  }
  return row;
}

std::pair<std::size_t, double> LivenessRows::peak(const Assignment& assignment) const {
  std::vector<double> change(ops_ + 1, 0);
  for (const Held& held : held_) {
    const double bytes = held.bytes[static_cast<std::size_t>(assignment[static_cast<std::size_t>(held.node)])];
    change[held.first] += bytes;
    change[held.last + 1] -= bytes;
  }
  std::pair<std::size_t, double> most{0, 0};
  double live = 0;
  for (std::size_t op = 0; op < ops_; ++op) {
    live += change[op];
    if (live > most.second) most = {op, live};
  }
  return most;
}

}  // namespace trireme::plan::graph
