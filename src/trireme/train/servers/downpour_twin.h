// train/servers/downpour_twin.h -- the serial twin of Downpour SGD: the journals of all replicas again, on one thread.
//
// A part is taken when the versions that it fetched are there, a push is applied when it is the next of its server, in
// whatever order that allows: weights must be those that the replicas ended with.
// Depends on: downpour_worker.h.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "trireme/train/servers/downpour_worker.h"

namespace trireme::train {

struct DownpourTwinOptions {
  int servers = 1, copies = 1;  ///< their addresses are 1, 2, ...
  std::vector<double> first_weights;
  ps::Filters filters = {};
};

struct DownpourTwinResult {
  /// Of the parts of a step, added up.
  struct Step {
    std::vector<nn::LossTerm> losses;
    nn::LossCounts counts;
    double norms = 0;
    int parts = 0;
  };
  std::vector<double> weights;
  std::map<std::int64_t, Step> steps;  ///< from 0
};

/// `replica` is of a world of its own, and is used. An internal error where a journal stops half-way.
DownpourTwinResult replay_downpour(Replica& replica, const std::vector<std::vector<JournalEntry>>& journals,
                                   const DownpourTwinOptions& options);

}  // namespace trireme::train
