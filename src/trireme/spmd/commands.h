// spmd/commands.h -- what the program may ask of this room. No tensor type crosses this line.
//
// Depends on: base, comm, plan/graph.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/comm/rank.h"
#include "trireme/plan/graph/strategy.h"

namespace trireme::spmd {

struct RunRequest {
  plan::graph::Graph forward;
  std::vector<plan::graph::Strategy> strategies;  ///< one after the other, each from the same parameters
  int steps = 1;
  double learning_rate = 0.01;
  std::uint64_t seed = 0;
  bool verify = false;  ///< also run it whole and compare: every loss, every gradient, every collective
  int local_ranks = 1;  ///< that share the machine's cores
};

struct RunReport {
  std::vector<double> losses;     ///< of each step
  std::vector<double> reference;  ///< with verify: the same by autograd
  double worst = 0;  ///< the largest difference of a gradient's element, relative to the gradient's largest
  std::string worst_parameter;
  std::size_t parameters = 0;           ///< compared
  std::size_t collectives = 0;          ///< of a step, halos too
  double bytes = 0;                     ///< of their buffers, as listed
  std::vector<std::string> deviations;  ///< where what ran is not what was listed
  double peak_bytes = 0;                ///< of the rank that holds most
  double seconds = 0;                   ///< of the fastest step after the first, or of the only one
};

struct Commands {
  std::uint32_t version;
  /// Called by every rank; the same on all of them. A report for each strategy.
  std::vector<RunReport> (*run)(const RunRequest& request, comm::Rank& rank);
};
inline constexpr std::uint32_t kVersion = 1;

extern "C" const Commands* trireme_spmd();
inline constexpr const char* kEntry = "trireme_spmd";

}  // namespace trireme::spmd
