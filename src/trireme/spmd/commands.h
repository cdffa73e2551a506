// spmd/commands.h -- what the program may ask of this room. No tensor type crosses this line.
//
// Depends on: base, comm, plan/graph.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/comm/rank.h"
#include "trireme/plan/graph/profile.h"
#include "trireme/plan/graph/staged.h"
#include "trireme/plan/graph/strategy.h"

namespace trireme::spmd {

/// Grey images of one size with their classes.
struct ImageSet {
  int side = 0;
  std::vector<float> pixels;  ///< from 0 to 1, row by row, image by image
  std::vector<int> labels;
};

/// Gradient descent (descent.h).
struct DescentOptions {
  double learning_rate = 0;
  double momentum = 0;
  double weight_decay = 0;  ///< not of what norms scale and shift by
  std::int64_t warmup_steps = 0;
  double warmup_from = 0;                   ///< the rate of step 0
  std::vector<std::int64_t> decay_at = {};  ///< steps from which on the rate is a tenth
};

struct RunRequest {
  plan::graph::Graph forward;
  std::vector<plan::graph::Strategy> strategies;  ///< one after the other, each from the same parameters
  std::vector<plan::graph::StagedPlan> staged;    ///< after them: plans with pipeline stages
  int steps = 1;
  DescentOptions descent = {.learning_rate = 0.01};
  std::uint64_t seed = 0;
  bool verify = false;       ///< also run it whole and compare: every loss, every gradient, every collective
  ImageSet train, test;      ///< labelled images to train on and to judge by; empty: drawn inputs
  bool cuda = false;         ///< on a GPU: one rank
  bool cuda_graphs = false;  ///< there: capture a step, replay it
  bool zero_gamma = false;   ///< the last batch norm of a residual block begins with scales of zero (Goyal)
  int local_ranks = 1;       ///< that share the machine's cores
};

/// A graph with its gradients, of a stage or of a whole batch, and how it is split.
struct ProfileTask {
  plan::graph::Graph both;
  plan::graph::Strategy strategy;
  bool conversions = true;  ///< what goes between its operators, too
};
struct ProfileRequest {
  std::vector<ProfileTask> tasks;
  double seconds = 0.03;  ///< for one operator, at least three runs
  int local_ranks = 1;    ///< that share the machine's cores
};

struct RunReport {
  std::vector<double> losses;     ///< of each step
  std::vector<double> reference;  ///< with verify: the same by autograd
  double worst = 0;  ///< the largest difference of a gradient's element, relative to the gradient's largest
  std::string worst_parameter;
  std::size_t parameters = 0;           ///< compared
  std::size_t collectives = 0;          ///< of a step, halos too; of a plan with stages: of the first
  double bytes = 0;                     ///< of their buffers, as listed
  std::vector<std::string> deviations;  ///< where what ran is not what was listed
  std::size_t messages = 0;             ///< between stages in a step, of all ranks
  double message_bytes = 0;             ///< of theirs
  double accuracy = -1;                 ///< on the test images, after the last step; -1: there are none
  double peak_bytes = 0;                ///< of the rank that holds most
  double seconds = 0;                   ///< of the fastest step after the first, or of the only one
  double median_seconds = 0;            ///< of the steps after the first, or of the only one
};

struct Commands {
  std::uint32_t version;
  /// Called by every rank; the same on all of them. A report for each strategy and plan.
  std::vector<RunReport> (*run)(const RunRequest& request, comm::Rank& rank);
  /// Called by every rank; the same on all of them.
  plan::graph::OperatorProfile (*profile)(const ProfileRequest& request, comm::Rank& rank);
};
inline constexpr std::uint32_t kVersion = 4;

extern "C" const Commands* trireme_spmd();
inline constexpr const char* kEntry = "trireme_spmd";

}  // namespace trireme::spmd
