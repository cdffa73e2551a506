#include "trireme/science/decision_tree.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

namespace trireme::science {
namespace {

struct Split {
  double gain = 0;
  int input = -1;
  double threshold = 0;
};

struct Leaf {
  std::size_t node = 0;
  std::vector<std::size_t> rows;
  Split best;
};

/// sum^2 / n, summed over outputs: what a mean explains. Outputs count by 1 / their variance.
double explained(std::span<const double> sums, std::span<const double> scales, double count) {
  double total = 0;
  for (std::size_t k = 0; k < sums.size(); ++k) total += sums[k] * sums[k] * scales[k];
  return total / count;
}

Split best_split(const Samples& samples, const std::vector<std::size_t>& rows, std::span<const double> scales) {
  Split best;
  const std::size_t outputs = samples.targets.columns;
  std::vector<double> all(outputs), left(outputs), right(outputs);
  for (const std::size_t t : rows) {
    for (std::size_t k = 0; k < outputs; ++k) all[k] += samples.targets(t, k);
  }
  const double count = static_cast<double>(rows.size()), before = explained(all, scales, count);
  std::vector<std::size_t> order = rows;
  for (std::size_t i = 0; i + 1 < samples.inputs.columns; ++i) {  // less the constant
    std::ranges::sort(order, {}, [&](std::size_t t) { return samples.inputs(t, i); });
    std::ranges::fill(left, 0);
    for (std::size_t at = 0; at + 1 < order.size(); ++at) {
      for (std::size_t k = 0; k < outputs; ++k) left[k] += samples.targets(order[at], k);
      const double here = samples.inputs(order[at], i), next = samples.inputs(order[at + 1], i);
      if (here == next) continue;
      for (std::size_t k = 0; k < outputs; ++k) right[k] = all[k] - left[k];
      const double n = static_cast<double>(at + 1);
      const double gain = explained(left, scales, n) + explained(right, scales, count - n) - before;
      if (gain > best.gain + 1e-12) best = {.gain = gain, .input = static_cast<int>(i), .threshold = (here + next) / 2};
    }
  }
  return best;
}

std::vector<double> leaf_prediction(Family family, const Samples& samples, const std::vector<std::size_t>& rows) {
  const std::size_t outputs = samples.targets.columns;
  std::vector<double> sums(outputs, family == Family::kMultinomial ? 1.0 : 0.0);
  for (const std::size_t t : rows) {
    for (std::size_t k = 0; k < outputs; ++k) sums[k] += samples.targets(t, k);
  }
  const double smoothing = family == Family::kMultinomial ? static_cast<double>(outputs) : 0.0;
  for (double& sum : sums) sum /= static_cast<double>(rows.size()) + smoothing;
  return sums;
}

std::vector<double> output_scales(Family family, const Samples& samples) {
  std::vector<double> scales(samples.targets.columns, 1);
  if (family == Family::kMultinomial) return scales;
  const double count = static_cast<double>(samples.count());
  for (std::size_t k = 0; k < scales.size(); ++k) {
    double mean = 0, spread = 0;
    for (std::size_t t = 0; t < samples.count(); ++t) mean += samples.targets(t, k) / count;
    for (std::size_t t = 0; t < samples.count(); ++t) spread += std::pow(samples.targets(t, k) - mean, 2) / count;
    scales[k] = spread > 0 ? 1 / spread : 0;
  }
  return scales;
}

}  // namespace

std::size_t DecisionTree::leaves() const {
  return static_cast<std::size_t>(std::ranges::count_if(nodes, [](const Node& node) { return node.input < 0; }));
}

const std::vector<double>& DecisionTree::predict(std::span<const double> input) const {
  std::size_t at = 0;
  while (nodes[at].input >= 0) {
    at = input[static_cast<std::size_t>(nodes[at].input)] <= nodes[at].threshold ? nodes[at].left : nodes[at].right;
  }
  return nodes[at].prediction;
}

DecisionTree fit_tree(Family family, const Samples& samples, std::size_t leaves) {
  const std::vector<double> scales = output_scales(family, samples);
  DecisionTree tree{.family = family, .nodes = {{}}, .variances = {}};
  std::vector<Leaf> open(1);
  open[0].rows.resize(samples.count());
  std::iota(open[0].rows.begin(), open[0].rows.end(), std::size_t{0});
  open[0].best = best_split(samples, open[0].rows, scales);
  while (open.size() < leaves) {
    const auto next = std::ranges::max_element(open, {}, [](const Leaf& leaf) { return leaf.best.gain; });
    if (next->best.input < 0) break;
    const Leaf parent = std::move(*next);
    open.erase(next);
    const std::size_t first = tree.nodes.size();
    tree.nodes[parent.node] = {.input = parent.best.input,
                               .threshold = parent.best.threshold,
                               .left = first,
                               .right = first + 1,
                               .prediction = {}};
    tree.nodes.resize(first + 2);
    std::vector<Leaf> halves(2);
    for (const std::size_t t : parent.rows) {
      const bool left = samples.inputs(t, static_cast<std::size_t>(parent.best.input)) <= parent.best.threshold;
      halves[left ? 0 : 1].rows.push_back(t);
    }
    for (std::size_t half = 0; half < 2; ++half) {
      halves[half].node = first + half;
      halves[half].best = best_split(samples, halves[half].rows, scales);
      open.push_back(std::move(halves[half]));
    }
  }
  for (const Leaf& leaf : open) tree.nodes[leaf.node].prediction = leaf_prediction(family, samples, leaf.rows);
  if (family == Family::kGaussian) {
    tree.variances.assign(samples.targets.columns, 0);
    for (std::size_t t = 0; t < samples.count(); ++t) {
      const std::vector<double>& mean = tree.predict(samples.inputs.row(t));
      for (std::size_t k = 0; k < mean.size(); ++k) {
        tree.variances[k] += std::pow(samples.targets(t, k) - mean[k], 2) / static_cast<double>(samples.count());
      }
    }
    for (double& variance : tree.variances) variance = std::max(variance, 1e-300);
  }
  return tree;
}

Quality evaluate(const DecisionTree& tree, const Samples& samples) {
  Matrix predictions(samples.count(), samples.targets.columns);
  double sum = 0;
  for (std::size_t t = 0; t < samples.count(); ++t) {
    const std::vector<double>& mean = tree.predict(samples.inputs.row(t));
    std::ranges::copy(mean, predictions.row(t).begin());
    for (std::size_t k = 0; k < mean.size(); ++k) {
      const double target = samples.targets(t, k);
      if (tree.family == Family::kMultinomial) {
        if (target > 0) sum += target * std::log(mean[k]);
      } else {
        sum -= 0.5 *
               (std::log(2 * std::numbers::pi * tree.variances[k]) + std::pow(target - mean[k], 2) / tree.variances[k]);
      }
    }
  }
  return quality_of(tree.family, samples.targets, predictions, sum);
}

}  // namespace trireme::science
