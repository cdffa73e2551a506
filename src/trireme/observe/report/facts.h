// observe/report/facts.h -- what a run's files say of it in a few numbers: the head of a report.
//
// Depends on: run_reader.
#pragma once

#include <optional>
#include <string>

#include "trireme/observe/run_reader.h"

namespace trireme::observe {

/// What is not known is not there.
struct Facts {
  std::string name;
  std::optional<std::string> model, precision, ended;
  std::optional<double> parameters;
  std::optional<std::int64_t> ranks, steps, steps_asked, tokens, memory;
  std::optional<double> loss;       // mean over the last steps
  std::int64_t loss_steps = 0;      // over how many
  std::optional<double> eval_loss;  // the last one
  std::optional<std::int64_t> eval_step;
  std::optional<double> best_eval_loss;
  std::optional<double> tokens_per_s, mfu;  // medians
  std::optional<double> seconds;            // of all steps together
  std::size_t resumes = 0;
};

/// From the last "start" or "resumed" event (model, parameters, ranks, precision, steps), else the recipe; from
/// evaluations and steps.
Facts facts_of(const RunFiles& run);

}  // namespace trireme::observe
