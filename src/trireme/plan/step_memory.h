// plan/step_memory.h -- what a training step of one rank takes on its GPU, before it runs: line by line, and its peak.
//
// StateDtype by ZeRO's formulas, activations by what our layers keep (traffic.h), and what is alive for a while at the
// two places where a step is fullest: the head with its chunk of logits, and the first layer that goes back. Beside
// three models that were measured on an H200 it is within one part in a hundred (tests/plan/step_memory_test.cpp).
// Without stages only: those hold several micros.
// Depends on: traffic.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/plan/traffic.h"

namespace trireme::plan {

struct StepMemoryTask {
  TrafficTask step;             ///< of one rank
  double elements = 0;          ///< parameters of the rank before ZeRO
  double narrow_elements = 0;   ///< of them, those without a master: updated and summed in the compute type
  double narrow_gradients = 0;  ///< of them, those whose gradients have the compute type, with or without a master
  bool directions = false;      ///< LAMB's are made beside gradients that are narrower
  int moments = 2;              ///< a parameter
  int moment_bytes = 4;         ///< of one
  int sharing = 1;              ///< ranks that ZeRO shares out over
  bool offload = false;         ///< master weights, moments and sums are on the host
  bool rounded_sums = false;    ///< on the host, sums have the compute type
  bool late = false;            ///< on the host, sums of two steps: one is updated with while the other is made
  bool stash = false;           ///< kept activations wait on the host
  double logits_bytes = 0;      ///< a chunk of the head's, at most
  double bucket_bytes = 25e6;   ///< of gradients
  double largest_elements = 0;  ///< of one parameter, which no bucket cuts
};

struct StepMemory {
  struct Line {
    std::string name, which;
    double bytes = 0;
  };
  std::vector<Line> lines;  ///< of the device, at its fullest
  double host = 0;          ///< bytes on the host
  double peak() const;
  std::string table() const;
};

/// Empty lines where there is no plan: with stages, or an encoder beside a decoder.
StepMemory step_memory(const StepMemoryTask& task);

/// Room for the GEMMs' library, which the tensor library lends it.
inline constexpr double kGemmWorkspace = 32 << 20;
/// What a process takes of a GPU beside its tensors: context, kernels, libraries.
inline constexpr double kContextBytes = 800e6;

}  // namespace trireme::plan
