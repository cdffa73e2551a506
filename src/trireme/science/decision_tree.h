// science/decision_tree.h -- a CART tree: the peer of the same size that a mixture of experts is shown beside.
//
// Splits are at one input and a threshold. The leaf whose split takes away most of the squared error is split next,
// until there are as many leaves as asked for. With classes as targets of 0 and 1 that error is Gini's impurity. A leaf
// predicts the mean of its targets, or (count + 1) / (n + classes) of each class.
// Depends on: hme (how predictions are judged), table.
#pragma once

#include "trireme/science/hme.h"
#include "trireme/science/table.h"

namespace trireme::science {

struct DecisionTree {
  struct Node {
    int input = -1;  // -1: a leaf
    double threshold = 0;
    std::size_t left = 0, right = 0;  // x <= threshold goes left
    std::vector<double> prediction;
  };
  Family family = Family::kGaussian;
  std::vector<Node> nodes;
  std::vector<double> variances;  // kGaussian: of the residuals of all leaves, one an output

  std::size_t leaves() const;
  const std::vector<double>& predict(std::span<const double> input) const;
};

/// Fewer leaves where nothing is left to split.
DecisionTree fit_tree(Family family, const Samples& samples, std::size_t leaves);
Quality evaluate(const DecisionTree& tree, const Samples& samples);

}  // namespace trireme::science
