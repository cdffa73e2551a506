// plan/memory.h -- what each rank holds at its fullest moment, line by line: the one account that `check`, `plan`,
// `train --memory` and the trainer's refusal share.
//
// Model states by ZeRO's stages (Rajbhandari et al. 2019) in the types that the recipe gives them, activations by what
// layers save (activations.h) times what the schedule holds (stages.h), and what is alive for a while at the two places
// where a step is fullest: the head with its chunk of logits, and a layer that goes back. Beside models that were
// measured on an H200 it is within one part in a hundred (tests/plan/memory_measured_test.cpp). Job::software says
// whose layers and buffers are meant: ours, or those of published runs.
// Depends on: activations, stages, cost.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "trireme/cost/hardware.h"
#include "trireme/plan/activations.h"
#include "trireme/plan/schedule_cache.h"
#include "trireme/plan/stages.h"

namespace trireme::plan {

/// The lines of the account.
enum class MemoryUse : std::uint8_t {
  kWeights,
  kWeightVersions,  ///< and predictions, of schedules that update while micro-batches are in flight; copies of what
                    ///< a step that may be taken back changes
  kFp8Weights,      ///< quantised copies of the matrices of layers
  kMasterWeights,
  kGradients,
  kOptimizerState,
  kDirections,  ///< LAMB's, beside gradients that are narrower
  kBuckets,     ///< gradients in flight
  kGathered,    ///< weights of layers at hand, with ZeRO-3
  kActivations,
  kHead,  ///< what the head and the embedding save
  kWorking,
  kMessages,  ///< between stages
  kLibraries,
  kContext,  ///< what a process takes of a device beside its tensors
};
inline constexpr std::size_t kMemoryUses = 15;

/// Lines by what they are for.
struct MemoryParts {
  double weights = 0, gradients = 0, optimizer = 0;
  double activations = 0;  ///< saved from forward to backward, of all micro-batches in flight
  double working = 0;      ///< the layer that goes back or is recomputed or gathered just now, logits
  double buffers = 0;      ///< of communication, and what the device's software takes
  double total() const { return weights + gradients + optimizer + activations + working + buffers; }
  /// The one that takes most, and its name for people.
  std::pair<const char*, double> largest() const;
};

/// One rank of a stage; those of a stage are alike.
struct RankMemory {
  int stage = 0, layers = 0;
  double in_flight = 0;  ///< micro-batches, in shares of its stage
  std::array<double, kMemoryUses> bytes{};
  double host = 0;  ///< bytes in the host's memory

  double& operator[](MemoryUse use) { return bytes[static_cast<std::size_t>(use)]; }
  double operator[](MemoryUse use) const { return bytes[static_cast<std::size_t>(use)]; }
  double peak() const;
  MemoryParts parts() const;
};

/// All of a run.
struct Memory {
  RankMemory fullest;
  MemoryParts parts;       ///< of it
  double host = 0;         ///< bytes in the host's memory, of the rank that has most there
  double device = 0;       ///< bytes of the device
  double host_device = 0;  ///< bytes of the host for each device; 0: unknown
  bool fits = false;
  double peak() const { return parts.total(); }
  /// "stage 0: 12.0 micro-batches in flight, activations take 61 %".
  std::string why() const;
};

/// What may be filled: the rest is lost to fragmentation.
inline constexpr double kUsable = 0.99;
/// Workspace of the GEMM library.
inline constexpr double kGemmWorkspace = 32 << 20;
/// What a process takes of a GPU beside its tensors: context, kernels, libraries.
double context_bytes();

/// Model states of so many parameters of a rank, matrices of layers: (2 + g + 12) bytes each for 16-bit weights and
/// Adam without ZeRO, where g is what a gradient takes; each stage shards one more of them.
struct ModelStates {
  double weights = 0, master_weights = 0, gradients = 0, optimizer = 0;
  double total() const { return weights + master_weights + gradients + optimizer; }
};
ModelStates model_states(const Job& job, const ParallelConfig& config, double parameters);

/// Of a rank with that load. `activations` and `weights` are activation_bytes() and count_weights() of the same.
RankMemory rank_memory(const Job& job, const ParallelConfig& config, const ActivationBytes& activations,
                       const WeightCounts& weights, const StageLoad& load);
/// Of the ranks of each stage, without the device's context.
std::vector<RankMemory> rank_memories(const Job& job, const ParallelConfig& config);

/// On that hardware, with the context that its devices take.
std::vector<RankMemory> stage_memories(const cost::Hardware& hardware, const Job& job, const ParallelConfig& config);
Memory estimate_memory(const cost::Hardware& hardware, const Job& job, const ParallelConfig& config);
/// The same, of one after the other.
Memory estimate_memory(const cost::Hardware& hardware, const Job& job, const ParallelConfig& config,
                       ScheduleCache& schedules);
/// Of given ranks, which have no context yet.
Memory sum_up(const cost::Hardware& hardware, const std::vector<RankMemory>& ranks);

/// Name, bytes and what they are, one line for each use that there is.
std::string memory_table(const Job& job, const ParallelConfig& config, const RankMemory& memory);

}  // namespace trireme::plan
