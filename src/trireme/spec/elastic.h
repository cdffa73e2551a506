// spec/elastic.h -- a layout for another number of ranks, when hosts have gone or come.
//
// Depends on: base, parallel_config.
#pragma once

#include <functional>
#include <optional>

#include "trireme/spec/parallel_config.h"

namespace trireme::spec {

/// The same layout on `ranks`: as it is where it fits, otherwise with another dp, then smaller cp, pp and tp, in this
/// order: tensor parallelism needs the fastest links and frees most memory. The batch, the data and the mathematics are
/// the recipe's and stay.
ParallelConfig fit_ranks(const ParallelConfig& config, int ranks);

/// The world of an elastic run.
struct FittedWorld {
  int ranks = 0;
  ParallelConfig config;
};
/// The largest world of at most `available` ranks that `allowed` takes. Worlds that keep tp, pp and cp come first,
/// however many ranks they leave over: what a rank holds then stays what the recipe's author knew to fit. Nothing when
/// no number of ranks is allowed.
std::optional<FittedWorld> fit_world(const ParallelConfig& config, int available,
                                     const std::function<bool(const ParallelConfig& config, int ranks)>& allowed);

}  // namespace trireme::spec
