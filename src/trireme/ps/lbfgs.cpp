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
    : own_(static_cast<std::size_t>(slots), std::vector<double>(keys)),
      slots_(own_.begin(), own_.end()),
      portions_(portions),
      loss_(std::move(loss)) {}

TwoSum LocalVectors::dot_parts(int a, int b) const {
  const std::span<const double> x = slots_.at(static_cast<std::size_t>(a)), y = slots_.at(static_cast<std::size_t>(b));
  TwoSum sum;
  for (std::size_t i = 0; i < x.size(); ++i) sum.add_product(x[i], y[i]);
  return sum;
}

void LocalVectors::scale(int a, double factor) {
  for (double& value : slot(a)) value *= factor;
}

void LocalVectors::axpy(double factor, int a, int b) {
  const std::span<double> x = slot(a), y = slot(b);
  for (std::size_t i = 0; i < x.size(); ++i) y[i] += factor * x[i];
}

void LocalVectors::copy(int a, int b) { std::ranges::copy(slot(a), slot(b).begin()); }

double LocalVectors::evaluate(int weights, int gradient) {
  const std::span<double> total = slot(gradient);
  std::ranges::fill(total, 0.0);
  double loss = 0;
  for (int portion = 0; portion < portions_; ++portion) {
    std::vector<double> part(total.size());
    loss += loss_(portion, slot(weights), part);
    for (std::size_t i = 0; i < total.size(); ++i) total[i] += part[i];
  }
  return loss;
}

namespace {

// Slots beside kWeightSlot and the pairs.
constexpr int kGradientSlot = 1, kDirectionSlot = 2, kTriedSlot = 3, kTriedGradientSlot = 4;

}  // namespace

void Lbfgs::begin(VectorSpace& space) {
  progress = {.begun = true, .evaluations = progress.evaluations + 1};
  progress.loss = space.evaluate(kWeightSlot, kGradientSlot);
  progress.gradient_norm = std::sqrt(space.dot(kGradientSlot, kGradientSlot));
}

bool Lbfgs::iterate(VectorSpace& space) {
  constexpr double kArmijo = 1e-4, kShrink = 0.5, kLeastStep = 1e-20;
  if (!progress.begun) begin(space);
  if (progress.gradient_norm <= options_.tolerance) return false;
  std::deque<Pair>& pairs = progress.pairs;
  space.copy(kGradientSlot, kDirectionSlot);
  std::vector<double> alphas(pairs.size());
  for (std::size_t i = pairs.size(); i-- > 0;) {
    alphas[i] = pairs[i].rho * space.dot(pairs[i].s, kDirectionSlot);
    space.axpy(-alphas[i], pairs[i].y, kDirectionSlot);
  }
  if (!pairs.empty()) {
    const Pair& last = pairs.back();
    space.scale(kDirectionSlot, 1 / (last.rho * space.dot(last.y, last.y)));
  }
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const double beta = pairs[i].rho * space.dot(pairs[i].y, kDirectionSlot);
    space.axpy(alphas[i] - beta, pairs[i].s, kDirectionSlot);
  }
  space.scale(kDirectionSlot, -1);
  const double slope = space.dot(kGradientSlot, kDirectionSlot);
  if (!(slope < 0)) return false;  // rounding is all that is left
  double step = pairs.empty() ? std::min(1.0, 1 / progress.gradient_norm) : 1.0, loss = 0;
  for (;; step *= kShrink) {
    space.copy(kWeightSlot, kTriedSlot);
    space.axpy(step, kDirectionSlot, kTriedSlot);
    loss = space.evaluate(kTriedSlot, kTriedGradientSlot);
    ++progress.evaluations;
    if (loss <= progress.loss + kArmijo * step * slope || step < kLeastStep) break;
  }
  if (step < kLeastStep) return false;
  // s = step d, y = g' - g; a pair whose curvature is not positive would spoil the recursion.
  const int slot = kPairSlot + 2 * (progress.used % options_.history);
  if (pairs.size() == static_cast<std::size_t>(options_.history)) pairs.pop_front();
  space.copy(kDirectionSlot, slot);
  space.scale(slot, step);
  space.copy(kTriedGradientSlot, slot + 1);
  space.axpy(-1, kGradientSlot, slot + 1);
  if (const double curvature = space.dot(slot, slot + 1); curvature > 0) {
    pairs.push_back({slot, slot + 1, 1 / curvature});
    ++progress.used;
  }
  space.copy(kTriedSlot, kWeightSlot);
  space.copy(kTriedGradientSlot, kGradientSlot);
  progress.loss = loss;
  progress.gradient_norm = std::sqrt(space.dot(kGradientSlot, kGradientSlot));
  return true;
}

LbfgsReport minimize_lbfgs(VectorSpace& space, const LbfgsOptions& options) {
  Lbfgs lbfgs(options);
  LbfgsReport report;
  lbfgs.begin(space);
  for (; report.iterations < options.iterations && lbfgs.iterate(space); ++report.iterations)
    report.losses.push_back(lbfgs.progress.loss);
  report.loss = lbfgs.progress.loss;
  report.gradient_norm = lbfgs.progress.gradient_norm;
  report.evaluations = lbfgs.progress.evaluations;
  report.converged = report.gradient_norm <= options.tolerance;
  return report;
}

}  // namespace trireme::ps
