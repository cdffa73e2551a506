// dataflow/tasks.h -- tasks whose instances have no common shape, and the graphs that learn them.
//
// List reduction (AMPNet, section 6): an operation and up to ten digits, of which the network says the result; a
// recurrent cell in a loop of Phi, Isu and Cond. Sentiment of trees: random binary trees of words that are good, bad,
// plain, or turn the meaning of what stands beside them; a tree LSTM whose children meet in a Group. Deduction, after
// bAbI 15 (Weston et al. 2015): who is what, what fears what, and the question what somebody fears; a gated graph
// sequence network (Li et al. 2016). All are made from a seed.
// Depends on: graph, run.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trireme/dataflow/graph.h"
#include "trireme/dataflow/run.h"

namespace trireme::dataflow {

struct Sequence {
  std::vector<int> tokens;
  int label = 0;
};
/// The operation (of four) first, then 1 to 10 digits: mean; mean of every second less that of the others; range;
/// length; rounded, modulo 10.
std::vector<Sequence> make_list_reduction(int count, std::uint64_t seed);
inline constexpr int kListTokens = 14, kListClasses = 10;

struct Tree {
  struct Node {
    int parent = -1, place = 0;  ///< which child of its parent
    int children[2] = {-1, -1};
    int word = -1;  ///< of a leaf
  };
  std::vector<Node> nodes;  ///< the root is the first
  int label = 0;
};
std::vector<Tree> make_trees(int count, std::uint64_t seed, int most_leaves = 8);
inline constexpr int kTreeWords = 20, kTreeClasses = 3;

/// Facts as a graph: an edge for each, and one of another type for its inverse. The answer is a vertex.
struct Deduction {
  struct Edge {
    int from = 0, to = 0, type = 0;
  };
  int vertices = 0;
  std::vector<Edge> edges;
  int asked = 0, label = 0;
};
/// Four names, each of one of four kinds, and each kind fears another one; numbers of vertices are drawn anew each
/// time.
std::vector<Deduction> make_deductions(int count, std::uint64_t seed);
inline constexpr int kEdgeTypes = 4, kDeductionVertices = 8;
/// Rounds in which vertices hear from their neighbours.
inline constexpr int kDeductionRounds = 3;

struct ModelOptions {
  int hidden = 16;
  /// Of each cell: a Cond sends an instance to one of them, a Phi joins their ways. Each has a worker of its own and
  /// updates by itself; average_replicas() brings them together.
  int replicas = 1;
  UpdateRule update;
  std::uint64_t seed = 0;
};

/// A graph with its data. Workers: control flow; embedding; cell (leaf and inner cell of a tree apart); head and loss;
/// further replicas.
struct Task {
  Graph graph;
  Source source;
  Loss* loss = nullptr;
  std::vector<Sequence> sequences;                ///< what nodes read, by instance
  std::vector<Tree> trees;                        ///< likewise; instances of trees come after those of sequences
  std::vector<Deduction> deductions;              ///< likewise; never beside the others
  std::vector<std::vector<Transform*>> replicas;  ///< of each cell, where there are several

  Task() = default;
  virtual ~Task() = default;
  Task(const Task&) = delete;  // nodes hold references to the data
  Task& operator=(const Task&) = delete;
  std::size_t instances() const { return sequences.size() + trees.size() + deductions.size(); }
};
std::unique_ptr<Task> make_list_task(std::vector<Sequence> data, const ModelOptions& options);
std::unique_ptr<Task> make_tree_task(std::vector<Tree> data, const ModelOptions& options);
/// Both in one graph: a Cond sends each instance its way, and one embedding serves both.
std::unique_ptr<Task> make_mixed_task(std::vector<Sequence> sequences, std::vector<Tree> trees,
                                      const ModelOptions& options);

/// Vertices send to their neighbours through a matrix for each type of edge, sums meet each vertex's state in a gated
/// recurrent unit, and after some rounds a score of each vertex says which one is the answer. Cells have no replicas.
std::unique_ptr<Task> make_deduction_task(std::vector<Deduction> data, const ModelOptions& options);

struct Scores {
  double loss = 0, accuracy = 0;
};
/// Each replica of a cell gets the mean of all. Between runs: AMPNet does so at the end of an epoch.
void average_replicas(Task& task);
/// Means over what the loss has seen since it was cleared.
Scores scores_of(const Task& task);

}  // namespace trireme::dataflow
