// plan/memory.h -- what each rank must hold, by what it is for, and which rank is the fullest.
//
// Weights, gradients and optimizer by ZeRO's stages (Rajbhandari et al. 2019), activations by the formulas of
// Korthikanti et al. 2022 carried over to grouped-query attention, gated MLPs, fused attention and context parallelism,
// times the micro-batches that a stage of the schedule holds.
// Depends on: job, cost, schedule.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "trireme/cost/hardware.h"
#include "trireme/plan/job.h"

namespace trireme::plan {

/// Bytes.
struct MemoryParts {
  double weights = 0, gradients = 0, optimizer = 0;
  double activations = 0;  ///< kept from forward to backward, of all micro-batches in flight
  double working = 0;      ///< the layer that is recomputed or gathered just now, logits
  double buffers = 0;      ///< of communication, and what the device's software takes
  double total() const { return weights + gradients + optimizer + activations + working + buffers; }
  /// The one that takes most, and its name for people.
  std::pair<const char*, double> largest() const;
};

struct Memory {
  MemoryParts parts;       ///< of the fullest rank
  int stage = 0;           ///< the stage it is in
  double in_flight = 0;    ///< micro-batches it holds, in shares of its stage
  double host = 0;         ///< bytes that it keeps in the host's memory
  double device = 0;       ///< bytes of the device
  double host_device = 0;  ///< bytes of the host for each device; 0: unknown
  bool fits = false;
  double peak() const { return parts.total(); }
  /// "stage 0: 12.0 micro-batches in flight, activations are 61 %".
  std::string why() const;
};

/// What the ranks of one stage hold; they are alike.
struct StageMemory {
  int stage = 0, layers = 0;
  double in_flight = 0;
  MemoryParts parts;
  double host = 0;  ///< bytes in the host's memory
};

/// What may be filled: the rest is lost to fragmentation.
inline constexpr double kUsable = 0.99;

/// Model states of `weights` parameters, for 16-bit weights and Adam: (2 + g + 12) bytes each without ZeRO, where g is
/// what a gradient takes, and fewer where master weights or moments are; each stage shards one more of them over
/// `ranks`.
MemoryParts model_states(double weights, int ranks, int zero, const StateTypes& types, cost::Arithmetic arithmetic,
                         int moments = 2);

/// What one micro-batch leaves in one layer of a rank for its backward pass.
double layer_activation_bytes(const Job& job, const Layout& layout);
/// The same without any recomputation.
double whole_layer_activation_bytes(const Job& job, const Layout& layout);

/// Microbatches of a stage's share of the model that are between their forward and the end of their backward.
double in_flight(const Layout& layout, std::int64_t micros, int stage);

std::vector<StageMemory> stage_memories(const cost::Hardware& hardware, const Job& job, const Layout& layout);
Memory estimate_memory(const cost::Hardware& hardware, const Job& job, const Layout& layout);

}  // namespace trireme::plan
