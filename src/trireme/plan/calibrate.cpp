#include "trireme/plan/calibrate.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace trireme::plan {
namespace {

struct Knob {
  double cost::Efficiency::*member;
  double least, most;
};

/// Wider than those of accelerators: on a processor an operator may cost microseconds, and little overlaps.
constexpr std::array kKnobs{
    Knob{&cost::Efficiency::matmul, 0.2, 1},
    Knob{&cost::Efficiency::memory, 0.05, 1},
    Knob{&cost::Efficiency::attention, 0.01, 1},
    Knob{&cost::Efficiency::overlap, 0.001, 0.95},
    Knob{&cost::Efficiency::kernel_seconds, 1e-7, 1e-3},
};

double distance(double predicted, double measured) { return std::abs(std::log(predicted / measured)); }

double predicted_gemm(const cost::Hardware& hardware, const MeasuredGemm& one) {
  return cost::matmul_seconds(hardware, one.arithmetic, one.gemm);
}
double predicted_step(const cost::Hardware& hardware, const MeasuredStep& one) {
  return estimate(hardware, one.job, one.config).step_seconds();
}

/// Steps are what is to be predicted; GEMMs keep the constants that steps leave open sensible.
constexpr double kGemmsWeight = 0.25;

double loss_of(const cost::Hardware& hardware, const std::vector<MeasuredGemm>& gemms,
               const std::vector<MeasuredStep>& steps) {
  double loss = 0;
  for (const MeasuredGemm& one : gemms)
    loss += kGemmsWeight * distance(predicted_gemm(hardware, one), one.seconds) / static_cast<double>(gemms.size());
  for (const MeasuredStep& one : steps)
    loss += distance(predicted_step(hardware, one), one.seconds) / static_cast<double>(steps.size());
  return loss;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace

FittedEfficiency calibrate(const cost::Hardware& hardware, const std::vector<MeasuredGemm>& gemms,
                           const std::vector<MeasuredStep>& steps) {
  cost::Hardware trial = hardware;
  cost::Efficiency& efficiency = trial.device.efficiency;
  double best = loss_of(trial, gemms, steps);
  for (double step = 0.5; step > 0.004;) {
    bool better = false;
    for (const Knob& knob : kKnobs) {
      for (const double factor : {1 + step, 1 / (1 + step)}) {
        const double before = efficiency.*knob.member;
        efficiency.*knob.member = std::clamp(before * factor, knob.least, knob.most);
        if (const double loss = loss_of(trial, gemms, steps); loss < best - 1e-9) {
          best = loss, better = true;
        } else {
          efficiency.*knob.member = before;
        }
      }
    }
    if (!better) step /= 2;
  }
  FittedEfficiency out{.efficiency = efficiency};
  std::vector<double> errors;
  for (const MeasuredGemm& one : gemms) errors.push_back(std::abs(predicted_gemm(trial, one) / one.seconds - 1));
  out.gemm_error = median(errors);
  errors.clear();
  for (const MeasuredStep& one : steps) errors.push_back(std::abs(predicted_step(trial, one) / one.seconds - 1));
  out.steps_error = median(errors);
  return out;
}

LinkFit fit_link(const std::vector<MeasuredReduction>& reductions, int ranks) {
  const double rounds = 2.0 * (ranks - 1), share = rounds / ranks;
  // Least squares of (predicted - measured) / measured, which is linear in alpha and beta.
  double aa = 0, ab = 0, bb = 0, a = 0, b = 0;
  for (const MeasuredReduction& one : reductions) {
    const double x = rounds / one.seconds, y = share * one.bytes / one.seconds;
    aa += x * x, ab += x * y, bb += y * y, a += x, b += y;
  }
  const double determinant = aa * bb - ab * ab;
  double alpha = determinant > 0 ? (a * bb - b * ab) / determinant : 0;
  double beta = determinant > 0 ? (aa * b - ab * a) / determinant : 0;
  if (beta <= 0) beta = bb > 0 ? b / bb : 1e-9, alpha = 0;
  if (alpha <= 0) alpha = 1e-7, beta = bb > 0 ? b / bb : beta;
  return {.latency_us = alpha * 1e6, .gb_per_s = 1e-9 / beta};
}

}  // namespace trireme::plan
