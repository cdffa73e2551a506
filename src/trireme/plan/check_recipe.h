// plan/check_recipe.h -- everything that can be known about a run before it starts, without a device.
//
//   const Checkup checkup = check_recipe(recipe, {.ranks = 64, .hardware = load_hardware("dgx-h100")});
//   checkup.problems     what would stop it, each with a fix
//   checkup.proof        its schedule, proven complete and free of deadlock
//   checkup.stages       what each rank will hold, by what it is for
//   checkup.estimate     how long a step will take
//
// Depends on: run_setup, from_recipe, estimate, search, schedule, spec.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trireme/plan/estimate.h"
#include "trireme/spec/rules.h"

namespace trireme::plan {

struct CheckOptions {
  int ranks = 1;
  cost::Hardware hardware;
  bool estimates = true;                       ///< memory and time too, which are counted of values that are sound
  bool judge_memory = true;                    ///< whether not to fit on that hardware is a problem
  std::optional<spec::ModelShape> shape = {};  ///< of model.init_from, which whoever knows tensors has opened
  spec::RankKind rank_kind = spec::RankKind::kThreads;
};

/// What schedule::check() proved, in figures.
struct ScheduleProof {
  std::string kind;
  int ranks = 0, chunks = 0, micros = 0;
  std::size_t passes = 0, messages = 0;
  int slots = 0;  ///< messages that a channel must hold without a posted receive; 0: no buffering is needed
};

struct Checkup {
  std::vector<config::Problem> problems;
  std::vector<std::string> notes;  ///< what does not stop a run but should be known
  // Without problems of the recipe itself:
  std::optional<Job> job;
  std::optional<ScheduleProof> proof;  ///< where there is a pipeline
  std::vector<RankMemory> stages;      ///< one rank of each
  std::optional<Estimate> estimate;
};

/// All rules of spec/rules.h but those that spec::find_problems() has found already. Files are not opened.
Checkup check_recipe(const spec::Recipe& recipe, const CheckOptions& options);

}  // namespace trireme::plan
