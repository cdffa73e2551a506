// plan/graph/search/rannc.h -- RaNNC (Tanaka 2021, 2103.16063): from operators to blocks to pipeline stages.
//
// Atomic components are single operators. They are coarsened to at most k blocks: the cheapest neighbours are joined
// first, along the edge that carries most bytes, and never so that a way out of a block leads back into it, so every
// block is convex. Uncoarsening then moves components at the borders of blocks to where cuts carry less without
// unbalancing them. A dynamic program joins blocks, in topological order, to stages on devices; a step is as slow as
// its slowest forward plus its slowest backward, two maxima that may be those of different stages.
// Depends on: chain.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "trireme/plan/graph/pricing.h"

namespace trireme::plan::graph {

struct RanncComponent {
  double seconds = 0;          ///< forward and backward on one device
  double bytes = 0;            ///< of its parameters
  std::vector<int> next = {};  ///< components that read what it makes
  std::vector<double> next_bytes = {};
};

/// [component] its block; blocks are numbered in a topological order.
std::vector<int> coarsen(const std::vector<RanncComponent>& components, int blocks);
/// Whether no way leaves a block and comes back, for all of them: then they can be numbered so that ways only go up.
bool is_convex(const std::vector<RanncComponent>& components, const std::vector<int>& block);

/// What blocks [begin, end) take as one stage on `devices`; nothing where they do not fit.
struct RanncStageCost {
  double forward = 0, backward = 0;
};
struct RanncProblem {
  int blocks = 0, devices = 1;
  std::function<std::optional<RanncStageCost>(int begin, int end, int devices)> cost;
};
struct RanncStage {
  int begin = 0, end = 0, devices = 1;
};
struct RanncPlan {
  std::vector<RanncStage> stages;
  double forward = 0, backward = 0;  ///< of the slowest stage each
  double slowest() const { return forward + backward; }
};
/// The least sum of both maxima; all devices are used. Nothing where nothing fits.
std::optional<RanncPlan> rannc_stages(const RanncProblem& problem);
std::optional<RanncPlan> brute_force_rannc(const RanncProblem& problem);

}  // namespace trireme::plan::graph
