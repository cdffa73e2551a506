// plan/run_setup.h -- a run as the rules of spec/rules.h see it, its pipeline schedule included.
//
//   const auto refusals = spec::find_refusals(run_setup(recipe, shape, {.ranks = 8}));
//
// spec may not know schedules, so this is where both meet. `trireme check` and the trainer come through here.
// Depends on: spec, schedule, activations, from_recipe.
#pragma once

#include <cstdint>
#include <optional>

#include "trireme/schedule/schedule.h"
#include "trireme/spec/rules.h"

namespace trireme::plan {

/// Whether everything that a step's first micro-batch adds to a gradient on a rank, but an embedding's and a head's,
/// comes before what others add.
bool first_micro_leads(const schedule::Schedule& table);

/// What the recipe's schedule is, whether it is one of ours, a file, or none.
spec::ScheduleTraits schedule_traits(const spec::Recipe& recipe);

/// What a block saves of a micro-batch on a rank, with and without recomputation; of an encoder beside a decoder, or of
/// the decoder or only stack.
spec::BlockBytes block_bytes(const spec::Recipe& recipe, const spec::ModelShape& shape, bool encoder = false);

struct RunRanks {
  int ranks = 1;
  spec::RankKind rank_kind = spec::RankKind::kThreads;
  std::optional<std::int64_t> seq_len = {};  ///< of samples; unset: data.seq_len
};
spec::RunSetup run_setup(const spec::Recipe& recipe, const spec::ModelShape& shape, const RunRanks& place);

}  // namespace trireme::plan
