// plan/graph/search/liveness.h -- the memory of an assignment, as sums over nodes: what limits a search.
//
// What a device holds at an operator of a step are the tensors that live there, each as its node's choice divides it,
// and parameters with their moments. So at every operator memory is a sum over nodes, a row of an integer program, and
// the largest row of an assignment is what price() says of its lowering; a test holds them against each other.
// Depends on: cost_table.
#pragma once

#include <utility>
#include <vector>

#include "trireme/plan/graph/search/cost_table.h"

namespace trireme::plan::graph {

class LivenessRows {
 public:
  LivenessRows(const Graph& both, const std::vector<std::vector<int>>& nodes,
               const std::vector<std::vector<Split>>& choices, const layout::Mesh& mesh);

  /// [node][choice] bytes that a device holds at an operator.
  MemoryRow row(std::size_t op) const;
  /// The operator at which an assignment holds most, and how much that is.
  std::pair<std::size_t, double> peak(const Assignment& assignment) const;
  /// The operator at which one device alone would hold most.
  std::size_t peak_of_one_device() const { return whole_peak_; }

 private:
  struct Held {
    int node = 0;
    std::size_t first = 0, last = 0;
    std::vector<double> bytes;  // [choice]
  };

  std::vector<std::size_t> choices_;  // [node]
  std::size_t ops_ = 0, whole_peak_ = 0;
  std::vector<Held> held_;
};

}  // namespace trireme::plan::graph
