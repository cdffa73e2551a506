// schedule/compare.h -- what a kind costs on a shape: replayed and counted, beside what its paper says.
//
// Depends on: builders, check, replay.
#pragma once

#include <optional>

#include "trireme/schedule/builders.h"

namespace trireme::schedule {

/// Memory and weights are those of the rank that has most, in units of a rank's share of the model: what one micro
/// leaves in it, and its weights once.
struct Measures {
  double bubble = 0;
  std::optional<double> bubble_formula = {};
  double step_time = 0;  // of a steady kind: between two steps
  double memory = 0;
  std::optional<double> memory_formula = {};
  int versions = 1;    // of any one chunk
  double weights = 1;  // with all versions, predictions and copies
  std::optional<double> weights_formula = {};
  int delay = 0;  // updates that the weights of a pass lack at the most
  int slots = 0;
};

/// A rank's share of the model is cut into that many chunks; their times are this factor of the rank's.
double chunk_share(const Schedule& schedule);
/// The same of one micro of the table, where a micro-batch is cut into several: what times of a rank's share and of a
/// micro-batch are scaled by.
double pass_share(const Schedule& schedule);

/// `times` are of a rank's share of the model. Throws ConfigError outside the kind's domain.
Measures measure(const Kind& kind, const Shape& shape, const Times& times = {});

}  // namespace trireme::schedule
