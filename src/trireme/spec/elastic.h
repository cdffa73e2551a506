// spec/elastic.h -- a layout for another number of ranks, when hosts have gone or come.
//
// Depends on: base, parallel_config.
#pragma once

#include "trireme/spec/parallel_config.h"

namespace trireme::spec {

/// The same layout on `ranks`: as it is where it fits, otherwise with another dp, then smaller cp, pp and tp, in this
/// order: tensor parallelism needs the fastest links and frees most memory. The batch, the data and the mathematics are
/// the recipe's and stay.
ParallelConfig fit_ranks(const ParallelConfig& config, int ranks);

}  // namespace trireme::spec
