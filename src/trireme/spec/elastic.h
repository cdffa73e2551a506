// spec/elastic.h -- a layout for another number of ranks, when hosts have gone or come.
//
// Depends on: base, layout_config.
#pragma once

#include "trireme/spec/layout_config.h"

namespace trireme::spec {

struct SpreadConfig {
  LayoutConfig layout;
  PipelineConfig pipeline = {};
  bool operator==(const SpreadConfig&) const = default;
};

/// The same layout on `ranks`: as it is where it fits, otherwise with another dp, then smaller cp, pp and tp, in this
/// order: tensor parallelism needs the fastest links and frees most memory. The batch, the data and the mathematics are
/// the recipe's and stay.
SpreadConfig fit_ranks(const SpreadConfig& spread, int ranks);

}  // namespace trireme::spec
