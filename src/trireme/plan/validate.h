// plan/validate.h -- the planner held against published runs: predicted, measured, error; and the fit of its constants.
//
// Depends on: published, search.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "trireme/plan/published.h"

namespace trireme::plan {

struct PublishedPrediction {
  std::string source;
  PublishedRun run;
  std::string device;  ///< whose constants were used
  Estimate estimate;
  double measured = 0, predicted = 0;  ///< seconds
  bool counted = false;                ///< see counts()
  double error() const { return predicted / measured - 1; }
};

/// The estimate that `trireme estimate` gives for a published run: what is not printed is chosen. `replay`: by the
/// schedule itself and not by the closed form.
Estimate estimate_run(const cost::Hardware& hardware, const PublishedRun& run, bool replay = true,
                      ScheduleCache* schedules = nullptr);

/// All runs of all sources. `efficiency` may replace a device's constants.
using EfficiencyOf = std::function<cost::Efficiency(const cost::Device& device)>;
std::vector<PublishedPrediction> predict_published(const std::vector<PublishedSource>& sources,
                                                   const EfficiencyOf& efficiency, bool replay = true);

struct ErrorSummary {
  std::size_t runs = 0, far = 0;  ///< far: more than 12 % off
  double median = 0, worst = 0;
};
ErrorSummary summarize(const std::vector<PublishedPrediction>& predictions);

/// The constants of one device that fit its runs best, from those it has; deterministic.
struct Fit {
  cost::Efficiency efficiency;
  double loss = 0;
  std::size_t runs = 0;
};
Fit fit_efficiency(const std::string& device, const std::vector<PublishedSource>& sources);

/// Every counted run predicted with constants that were fitted without its source, where its device has others.
std::vector<PublishedPrediction> leave_one_source_out(const std::vector<PublishedSource>& sources);

}  // namespace trireme::plan
