// cli/tasks/eval_tasks.h -- `trireme eval --tasks`: questions to a model, and how it did.
//
// Depends on: science/tasks, science/task_metrics, train/tasks/commands.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trireme/cli/commands.h"
#include "trireme/train/tasks/commands.h"

namespace trireme::cli {

struct EvalTasks {
  std::vector<std::string> tasks;  ///< files, or generators' words
  std::optional<int> shots;        ///< unset: as each task says
  std::uint64_t seed = 0;          ///< which examples stand before which question
  bool json = false;
};

/// `request` has everything but the questions.
int run_eval_tasks(const EvalTasks& options, train::TaskRequest request, std::optional<int> ranks, Context& context);

}  // namespace trireme::cli
