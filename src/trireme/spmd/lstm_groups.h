// spmd/lstm_groups.h -- cells of an LSTM that share their weights, so that one GEMM serves all time steps.
//
// The gates of a cell are sums over its input and over the state before it. Only the second waits for the cell before;
// where the inputs of many time steps are there already, as in the layers of a language model, their share is made at
// once, and in backward the gradients of all of these inputs are made when the first of them is read. The weight is
// then read once and not once a time step. Cells whose inputs must first be converted go one by one.
// Depends on: plan/graph.
#pragma once

#include <vector>

#include "trireme/plan/graph/strategy.h"

namespace trireme::spmd {

namespace pg = plan::graph;

struct LstmGroups {
  std::vector<int> of;                  ///< [forward operator] its group; -1: it goes by itself
  std::vector<std::vector<int>> cells;  ///< [group] forward operators in order
  std::vector<bool> odd;                ///< [forward operator] every second one of its group
};

inline LstmGroups lstm_groups_of(const pg::Graph& both, const std::vector<pg::IterationSpace>& spaces,
                                 const std::vector<pg::Link>& links, const pg::Strategy& strategy) {
  LstmGroups groups{
      .of = std::vector<int>(both.ops.size(), -1), .cells = {}, .odd = std::vector<bool>(both.ops.size(), false)};
  std::vector<int> group_of_weight(both.tensors.size(), -1);
  for (const pg::Link& link : links) {
    const pg::Op& op = both.op(link.consumer);
    if (op.kind != pg::OpKind::kLstmCell || op.part != pg::Part::kForward || link.is_update || link.input != 0)
      continue;
    const pg::LinkEnds ends = ends_of(both, spaces, link, strategy);
    if (!convert(strategy.mesh, both.bytes(both.tensor(link.tensor)), ends.from, ends.to).empty()) continue;
    int& group = group_of_weight[static_cast<std::size_t>(op.inputs[3])];
    if (group < 0) {
      group = static_cast<int>(groups.cells.size());
      groups.cells.emplace_back();
    }
    groups.of[static_cast<std::size_t>(link.consumer)] = group;
  }
  for (std::size_t i = 0; i < groups.of.size(); ++i) {
    if (groups.of[i] < 0) continue;
    std::vector<int>& cells = groups.cells[static_cast<std::size_t>(groups.of[i])];
    groups.odd[i] = cells.size() % 2 == 1;
    cells.push_back(static_cast<int>(i));
  }
  return groups;
}

}  // namespace trireme::spmd
