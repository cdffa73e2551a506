#include "trireme/science/minimize.h"

#include <algorithm>
#include <cmath>
#include <deque>

#include "trireme/science/matrix.h"

namespace trireme::science {
namespace {

constexpr std::size_t kMemory = 10;   // pairs of steps and changes of the gradient that stand for the Hessian
constexpr double kSufficient = 1e-4;  // of the decrease that the slope promises (Armijo)
constexpr int kMostHalvings = 60;

struct CurvaturePair {
  std::vector<double> step, change;
  double inverse_dot = 0;
};

/// Two-loop recursion: the inverse Hessian that the pairs stand for, times the gradient, downhill.
std::vector<double> quasi_newton_direction(const std::deque<CurvaturePair>& pairs, std::span<const double> gradient) {
  std::vector<double> direction(gradient.begin(), gradient.end());
  std::vector<double> weights(pairs.size());
  const auto add = [&](double factor, const std::vector<double>& other) {
    for (std::size_t i = 0; i < direction.size(); ++i) direction[i] += factor * other[i];
  };
  for (std::size_t k = pairs.size(); k-- > 0;) {
    weights[k] = pairs[k].inverse_dot * dot(pairs[k].step, direction);
    add(-weights[k], pairs[k].change);
  }
  if (!pairs.empty()) {
    const CurvaturePair& last = pairs.back();
    const double scale = 1 / (last.inverse_dot * dot(last.change, last.change));
    for (double& value : direction) value *= scale;
  }
  for (std::size_t k = 0; k < pairs.size(); ++k) {
    add(weights[k] - pairs[k].inverse_dot * dot(pairs[k].change, direction), pairs[k].step);
  }
  for (double& value : direction) value = -value;
  return direction;
}

}  // namespace

Minimum minimize(const SmoothFunction& function, std::vector<double> start, const MinimizeOptions& options) {
  const std::size_t size = start.size();
  Minimum best{.x = std::move(start)};
  std::vector<double> gradient(size), trial(size), trial_gradient(size);
  best.value = function(best.x, gradient);
  std::deque<CurvaturePair> pairs;
  for (int iteration = 0; iteration < options.iterations; ++iteration) {
    double largest = 0;
    for (const double element : gradient) largest = std::max(largest, std::abs(element));
    best.converged = largest <= options.tolerance * (1 + std::abs(best.value));
    if (best.converged) break;
    std::vector<double> direction = quasi_newton_direction(pairs, gradient);
    double slope = dot(gradient, direction);
    if (!(slope < 0)) {  // the pairs mislead: begin again with the gradient
      pairs.clear();
      direction = quasi_newton_direction(pairs, gradient);
      slope = dot(gradient, direction);
    }
    double length = pairs.empty() ? std::min(1.0, 1 / largest) : 1;
    double value = best.value;
    int halvings = 0;
    for (; halvings < kMostHalvings; ++halvings, length /= 2) {
      for (std::size_t i = 0; i < size; ++i) trial[i] = best.x[i] + length * direction[i];
      value = function(trial, trial_gradient);
      if (value <= best.value + kSufficient * length * slope) break;  // false for NaN
    }
    if (halvings == kMostHalvings) {
      if (pairs.empty()) break;  // as low as doubles can tell
      pairs.clear();
      continue;
    }
    CurvaturePair pair{.step = std::vector<double>(size), .change = std::vector<double>(size)};
    for (std::size_t i = 0; i < size; ++i) {
      pair.step[i] = trial[i] - best.x[i];
      pair.change[i] = trial_gradient[i] - gradient[i];
    }
    const double curvature = dot(pair.step, pair.change);
    if (curvature > 1e-12 * std::sqrt(dot(pair.step, pair.step) * dot(pair.change, pair.change))) {
      pair.inverse_dot = 1 / curvature;
      pairs.push_back(std::move(pair));
      if (pairs.size() > kMemory) pairs.pop_front();
    }
    best.x.swap(trial);
    best.value = value;
    gradient.swap(trial_gradient);
  }
  return best;
}

}  // namespace trireme::science
