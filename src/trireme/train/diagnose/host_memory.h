// train/diagnose/host_memory.h -- whether a run fits into the machine, before anything is allocated.
//
// Depends on: memory.
#pragma once

#include <cstdint>

#include "trireme/spec/recipe.h"

namespace trireme::train {

/// Bytes that `local_ranks` of `ranks` take of the host's memory when they compute there, by the plan that runs on GPUs
/// have.
double planned_host_bytes(const spec::Recipe& recipe, const spec::ModelShape& shape, int ranks, int local_ranks);

/// ConfigError with what it would take, when `local_ranks` of `ranks` do not fit into `bytes` of memory. Cheap,
/// however large the sizes are. Nothing for runs on GPUs.
void require_host_room(const spec::Recipe& recipe, const spec::ModelShape& shape, int ranks, int local_ranks,
                       double bytes);

}  // namespace trireme::train
