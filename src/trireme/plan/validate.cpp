#include "trireme/plan/validate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>

namespace trireme::plan {
namespace {

/// The published runs of one device, ready to be predicted again and again.
struct Case {
  cost::Hardware hardware;
  const PublishedRun* run;
  double measured;
  std::unique_ptr<Job> job;                  ///< which `schedules` refers to
  std::unique_ptr<ScheduleCache> schedules;  ///< the same for all constants
};

/// A constant that is fitted, and what it may be.
struct DrawnKnob {
  double cost::Efficiency::*member;
  double least, most;
};

/// Bounds are what measurements of single operators and collectives allow; within them some constants are badly
/// determined by whole steps.
constexpr std::array kDrawnKnobs{
    DrawnKnob{&cost::Efficiency::matmul, 0.4, 0.9},   DrawnKnob{&cost::Efficiency::memory, 0.6, 0.92},
    DrawnKnob{&cost::Efficiency::link, 0.6, 0.85},    DrawnKnob{&cost::Efficiency::network, 0.5, 0.85},
    DrawnKnob{&cost::Efficiency::overlap, 0.1, 0.85}, DrawnKnob{&cost::Efficiency::attention, 0.35, 0.75},
    DrawnKnob{&cost::Efficiency::gather, 0.05, 0.85}, DrawnKnob{&cost::Efficiency::kernel_seconds, 2e-6, 8e-6},
};

/// How strongly constants are held to what is usual: enough to decide those that the runs at hand leave open.
constexpr double kHold = 0.005;

/// What fitting minimises: the mean of absolute errors, where those beyond 20 % count no more (they are other software,
/// not other constants) and those beyond 8 % count more; and how far the constants are from what is usual.
double loss_of(const std::vector<Case>& cases, const cost::Efficiency& efficiency) {
  double sum = 0;
  for (const Case& one : cases) {
    cost::Hardware hardware = one.hardware;
    hardware.device.efficiency = efficiency;
    const double error = std::abs(
        estimate_run(hardware, *one.run, /*replay=*/false, one.schedules.get()).step_seconds() / one.measured - 1);
    sum += std::min(error, 0.2) + 0.5 * std::max(0.0, std::min(error, 0.3) - 0.08);
  }
  double unusual = 0;
  for (const DrawnKnob& knob : kDrawnKnobs) {
    const double ratio = std::log(std::max(efficiency.*knob.member, 1e-9) / (cost::Efficiency{}.*knob.member));
    unusual += ratio * ratio;
  }
  return sum / static_cast<double>(cases.size()) + kHold * unusual;
}

Fit fit_cases(const std::vector<Case>& cases, cost::Efficiency start) {
  Fit fit{.efficiency = start, .loss = loss_of(cases, start), .runs = cases.size()};
  // Plain coordinate descent with a shrinking step: eight numbers, a loss with kinks, no derivative worth having.
  for (double step = 0.16; step > 0.004;) {
    bool better = false;
    for (const DrawnKnob& knob : kDrawnKnobs) {
      for (const double factor : {1 + step, 1 / (1 + step)}) {
        cost::Efficiency trial = fit.efficiency;
        trial.*knob.member = std::clamp(trial.*knob.member * factor, knob.least, knob.most);
        if (const double loss = loss_of(cases, trial); loss < fit.loss - 1e-7) {
          fit.loss = loss, fit.efficiency = trial, better = true;
        }
      }
    }
    if (!better) step /= 2;
  }
  return fit;
}

/// Fitting also takes runs whose batch was not printed: they are the only ones that know fused attention on some
/// devices.
bool can_fit(const PublishedRun& run) {
  return run.confidence == Confidence::kHigh && run.num_layers && run.num_heads && run.tp && run.pp && run.dp &&
         (run.step_seconds || run.tflops);
}

/// The runs on devices that share these constants, less those of one source.
std::vector<Case> cases_of(const std::string& device, const std::vector<PublishedSource>& sources,
                           const std::string& without = {}) {
  std::vector<Case> cases;
  for (const PublishedSource& source : sources) {
    if (source.name == without) continue;
    for (const PublishedRun& run : source.file.runs) {
      if (!can_fit(run)) continue;
      const cost::Hardware hardware = cost::load_hardware(run.cluster);
      if (cost::efficiency_name(hardware.device) == device) {
        Case& one =
            cases.emplace_back(Case{hardware, &run, measured_seconds(run), std::make_unique<Job>(job_of(run)), {}});
        one.schedules = std::make_unique<ScheduleCache>(*one.job);
      }
    }
  }
  return cases;
}

}  // namespace

Estimate estimate_run(const cost::Hardware& hardware, const PublishedRun& run, bool replay, ScheduleCache* schedules) {
  const SearchResult found =
      search(hardware, job_of(run), run.gpus,
             {.given = choices_of(run), .top = replay ? 3u : 1u, .replay = replay, .schedules = schedules});
  return found.best.empty() ? *found.smallest : found.best.front();
}

std::vector<PublishedPrediction> predict_published(const std::vector<PublishedSource>& sources,
                                                   const EfficiencyOf& efficiency, bool replay) {
  std::vector<PublishedPrediction> predictions;
  for (const PublishedSource& source : sources) {
    for (const PublishedRun& run : source.file.runs) {
      if (!run.step_seconds && !run.tflops) continue;
      cost::Hardware hardware = cost::load_hardware(run.cluster);
      hardware.device.efficiency = efficiency(hardware.device);
      PublishedPrediction prediction{
          .source = source.name, .run = run, .device = cost::efficiency_name(hardware.device)};
      prediction.estimate = estimate_run(hardware, run, replay);
      prediction.measured = measured_seconds(run);
      prediction.predicted = prediction.estimate.step_seconds();
      prediction.counted = counts(run);
      predictions.push_back(std::move(prediction));
    }
  }
  return predictions;
}

ErrorSummary summarize(const std::vector<PublishedPrediction>& predictions) {
  std::vector<double> errors;
  for (const PublishedPrediction& prediction : predictions) {
    if (prediction.counted) errors.push_back(std::abs(prediction.error()));
  }
  ErrorSummary summary{.runs = errors.size()};
  if (errors.empty()) return summary;
  std::ranges::sort(errors);
  summary.far = static_cast<std::size_t>(std::ranges::count_if(errors, [](double error) { return error > 0.12; }));
  const std::size_t half = errors.size() / 2;
  summary.median = errors.size() % 2 == 1 ? errors[half] : (errors[half - 1] + errors[half]) / 2;
  summary.worst = errors.back();
  return summary;
}

Fit fit_efficiency(const std::string& device, const std::vector<PublishedSource>& sources) {
  const std::vector<Case> cases = cases_of(device, sources);
  const cost::Efficiency start = cost::load_device(device).efficiency;
  if (cases.empty()) return {.efficiency = start, .loss = 0, .runs = 0};
  return fit_cases(cases, start);
}

std::vector<PublishedPrediction> leave_one_source_out(const std::vector<PublishedSource>& sources) {
  std::vector<PublishedPrediction> all;
  for (const PublishedSource& source : sources) {
    std::map<std::string, cost::Efficiency> fitted;
    const auto without = [&](const cost::Device& device) {
      const std::string name = cost::efficiency_name(device);
      if (const auto known = fitted.find(name); known != fitted.end()) return known->second;
      const std::vector<Case> cases = cases_of(name, sources, source.name);
      // Where no other source has used the device there is nothing to fit with: its constants stay, and the rows are
      // left out below.
      return fitted[name] = cases.empty() ? device.efficiency : fit_cases(cases, cost::Efficiency{}).efficiency;
    };
    for (PublishedPrediction& prediction : predict_published({source}, without, /*replay=*/false)) {
      if (prediction.counted && !cases_of(prediction.device, sources, source.name).empty())
        all.push_back(std::move(prediction));
    }
  }
  return all;
}

}  // namespace trireme::plan
