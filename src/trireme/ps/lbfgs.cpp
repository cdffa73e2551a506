// The two-loop recursion on slots, and the slots of one process.
#include <algorithm>
#include <cmath>
#include <deque>

#include "trireme/base/error.h"
#include "trireme/ps/sandblaster.h"

namespace trireme::ps {

void TwoSum::add(double value) {
  const double sum = high + value, part = sum - high;
  low += (high - (sum - part)) + (value - part);
  high = sum;
}

void TwoSum::add(const TwoSum& other) {
  add(other.high);
  low += other.low;
}

void TwoSum::add_product(double a, double b) {
  const double product = a * b, error = std::fma(a, b, -product);
  add(product);
  low += error;
}

LocalVectors::LocalVectors(std::uint64_t keys, int slots, int portions, PortionLoss loss)
    : slots_(static_cast<std::size_t>(slots), std::vector<double>(keys)), portions_(portions), loss_(std::move(loss)) {}

TwoSum LocalVectors::dot_parts(int a, int b) const {
  const std::vector<double>&x = slots_.at(static_cast<std::size_t>(a)), &y = slots_.at(static_cast<std::size_t>(b));
  TwoSum sum;
  for (std::size_t i = 0; i < x.size(); ++i) sum.add_product(x[i], y[i]);
  return sum;
}

void LocalVectors::scale(int a, double factor) {
  for (double& value : slot(a)) value *= factor;
}

void LocalVectors::axpy(double factor, int a, int b) {
  const std::vector<double>& x = slot(a);
  std::vector<double>& y = slot(b);
  for (std::size_t i = 0; i < x.size(); ++i) y[i] += factor * x[i];
}

void LocalVectors::copy(int a, int b) { slot(b) = slot(a); }

double LocalVectors::evaluate(int weights, int gradient) {
  std::vector<double>& total = slot(gradient);
  std::ranges::fill(total, 0.0);
  double loss = 0;
  for (int portion = 0; portion < portions_; ++portion) {
    std::vector<double> part(total.size());
    loss += loss_(portion, slot(weights), part);
    for (std::size_t i = 0; i < total.size(); ++i) total[i] += part[i];
  }
  return loss;
}

LbfgsReport minimize_lbfgs(VectorSpace& space, const LbfgsOptions& options) {
  // Slots: 0 weights, 1 gradient, 2 direction, 3 tried weights, 4 their gradient, then pairs s, y.
  constexpr int kGradient = 1, kDirection = 2, kTried = 3, kTriedGradient = 4, kPairs = 6;
  constexpr double kArmijo = 1e-4, kShrink = 0.5, kLeastStep = 1e-20;
  struct Pair {
    int s, y;
    double rho;
  };
  std::deque<Pair> pairs;  // oldest first
  int used = 0;
  LbfgsReport report;
  report.loss = space.evaluate(kWeightSlot, kGradient);
  report.evaluations = 1;
  report.gradient_norm = std::sqrt(space.dot(kGradient, kGradient));
  for (; report.iterations < options.iterations; ++report.iterations) {
    if (report.gradient_norm <= options.tolerance) break;
    space.copy(kGradient, kDirection);
    std::vector<double> alphas(pairs.size());
    for (std::size_t i = pairs.size(); i-- > 0;) {
      alphas[i] = pairs[i].rho * space.dot(pairs[i].s, kDirection);
      space.axpy(-alphas[i], pairs[i].y, kDirection);
    }
    if (!pairs.empty()) {
      const Pair& last = pairs.back();
      space.scale(kDirection, 1 / (last.rho * space.dot(last.y, last.y)));
    }
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      const double beta = pairs[i].rho * space.dot(pairs[i].y, kDirection);
      space.axpy(alphas[i] - beta, pairs[i].s, kDirection);
    }
    space.scale(kDirection, -1);
    const double slope = space.dot(kGradient, kDirection);
    if (!(slope < 0)) break;  // rounding is all that is left
    double step = pairs.empty() ? std::min(1.0, 1 / report.gradient_norm) : 1.0, loss = 0;
    for (;; step *= kShrink) {
      space.copy(kWeightSlot, kTried);
      space.axpy(step, kDirection, kTried);
      loss = space.evaluate(kTried, kTriedGradient);
      ++report.evaluations;
      if (loss <= report.loss + kArmijo * step * slope || step < kLeastStep) break;
    }
    if (step < kLeastStep) break;
    // s = step d, y = g' - g; a pair whose curvature is not positive would spoil the recursion.
    const int slot = kPairs + 2 * (used % options.history);
    if (pairs.size() == static_cast<std::size_t>(options.history)) pairs.pop_front();
    space.copy(kDirection, slot);
    space.scale(slot, step);
    space.copy(kTriedGradient, slot + 1);
    space.axpy(-1, kGradient, slot + 1);
    if (const double curvature = space.dot(slot, slot + 1); curvature > 0) {
      pairs.push_back({slot, slot + 1, 1 / curvature});
      ++used;
    }
    space.copy(kTried, kWeightSlot);
    space.copy(kTriedGradient, kGradient);
    report.loss = loss;
    report.losses.push_back(loss);
    report.gradient_norm = std::sqrt(space.dot(kGradient, kGradient));
  }
  report.converged = report.gradient_norm <= options.tolerance;
  return report;
}

}  // namespace trireme::ps
