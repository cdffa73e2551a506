// train/diagnose/compression_twin.h -- the mathematics of [compress], copy after copy in one process: what `trireme
// verify` holds such runs against.
//
// Written from the papers' formulas on whole tensors: no messages, no packing, no shares of owners. Which parameters
// are compressed, and in which parts where tp or pp split them, the run itself says.
// Depends on: data, models, nn, optim, parallel, spec.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "trireme/layout/placement.h"
#include "trireme/parallel/bucket_reducer.h"
#include "trireme/spec/recipe.h"
#include "trireme/train/engine/engine.h"

namespace trireme::train {

struct TwinRequest {
  const spec::Recipe& recipe;  ///< of the run, layout included
  comm::Group& alone;          ///< of one rank
  int dp = 1;                  ///< data-parallel ranks, among which a step's rows are shared
  int copies = 1;              ///< of the model that exchange what is compressed: groups of neighbouring dp ranks
  /// What is compressed, in the parts that ranks of one copy hold.
  std::vector<parallel::CompressedPart> parts;
  std::int64_t steps = 1;
};

using NamedTensors = std::map<std::string, at::Tensor>;
struct TwinTrace {
  std::vector<double> losses, norms;  ///< by step; norms are those that the first copy tells
  std::vector<std::string> terms;
  std::vector<double> means;
  std::vector<double> loads;   ///< [step][layer][expert]
  std::vector<double> biases;  ///< of routers, after the last step: [layer][expert] twice, as the largest and smallest
  /// Of the first step, and after the last; one for each copy, or one for all where copies are equal.
  std::vector<NamedTensors> gradients, weights;
};

TwinTrace run_compression_twin(const TwinRequest& request);

}  // namespace trireme::train
