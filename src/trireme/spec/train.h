// spec/train.h -- how long a run goes and what it leaves behind: the sections [train], [eval] and [checkpoint].
//
//   [train]              [eval]              [checkpoint]
//   steps = 200          every = 50          every = 20
//   micro_batch_size = 8 samples = 64        keep = 2
//
// Depends on: base (config).
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "trireme/base/config.h"

namespace trireme::spec {

/// Activation recomputation (checkpointing): what backward recomputes instead of saving.
enum class RecomputeKind : std::uint8_t {
  kNone,
  kSelective,  ///< attention's core only (Korthikanti et al. 2022)
  kFull,       ///< every block by itself
  kEvery,      ///< every k-th block saves its activations, the others are recomputed
  kSqrt,       ///< segments of about sqrt(n) blocks, one input saved for each (Chen et al. 2016)
  kRecursive,  ///< segments in segments, about log2(n) inputs saved (likewise)
  kBudget,     ///< segments in segments that recompute least in recompute_gb (likewise)
  kStage,      ///< everything between the boundaries of a pipeline's stages (GPipe)
};
std::span<const Named<RecomputeKind>> enum_names(std::type_identity<RecomputeKind>);

/// How threads of an OpenMP team wait for each other.
enum class OmpWaitPolicy {
  kActive,   ///< spinning: fastest where each has a core to itself
  kPassive,  ///< asleep: where others use the cores, too
};
std::span<const Named<OmpWaitPolicy>> enum_names(std::type_identity<OmpWaitPolicy>);

/// Which weights validation within training computes with.
enum class EvalWeights : std::uint8_t {
  kTrained,  ///< as they are; the averaged ones of schedule-free-adamw
  kEma,      ///< the moving average of optim.ema_decay
};
std::span<const Named<EvalWeights>> enum_names(std::type_identity<EvalWeights>);

/// Who waits for whom in a step.
enum class TrainMode : std::uint8_t {
  kSynchronous,  ///< every rank for every other: gradients are summed over all of them
  kDownpour,     ///< nobody: replicas push to parameter servers and fetch from them (Dean et al. 2012); [downpour]
  kSandblaster,  ///< for portions of one batch, which a second rank takes too where one is slow: L-BFGS on shards
};
std::span<const Named<TrainMode>> enum_names(std::type_identity<TrainMode>);

/// [train]
struct TrainConfig {
  TrainMode mode = TrainMode::kSynchronous;
  /// A rank that has done its micro-batches takes those that others have not begun (FlexRR, exact).
  bool work_stealing = false;
  std::optional<std::int64_t> steps, tokens;                ///< one of them
  std::optional<std::int64_t> micro_batch_size;             ///< sequences; unset: no gradient accumulation
  std::optional<std::int64_t> gradient_accumulation_steps;  ///< micro-batches of a step; see derived.h
  std::optional<int> threads;  ///< of each rank; unset: the cores shared among the ranks of the machine
  std::optional<OmpWaitPolicy> omp_wait_policy;  ///< unset: as the environment has it
  RecomputeKind recompute = RecomputeKind::kNone;
  std::int64_t recompute_every = 2;
  std::optional<double> recompute_gb;   ///< kBudget: of activations that a micro-batch's blocks on a rank save
  bool contiguous_activations = false;  ///< saved inputs of recomputed blocks lie side by side
  bool offload_activations = false;     ///< saved inputs of recomputed blocks wait on the host
  bool partition_activations = false;   ///< saved inputs of recomputed blocks are sharded over tp (ZeRO-R)
  std::optional<double> memory_gb;      ///< of each rank's device; unset: no limit
  bool cuda_graphs = false;             ///< GPU: forward and backward are captured once, then replayed
  bool gemm_autotune = true;            ///< GPU: GEMM kernels are timed at first use; false: cuBLASLt's heuristic
  bool recompute_norms = false;         ///< norm outputs are recomputed in backward instead of saved
  bool save_mlp_activations = false;    ///< outputs of the MLP's activation are saved for backward
  bool noise_scale = false;             ///< the gradient noise scale is measured
  double noise_scale_ema = 0.95;        ///< decay rate of its two averages
  /// Progressive layer dropping: theta bar, the share of layers that is kept in the end; unset: all are, always.
  std::optional<double> layer_keep;
  std::optional<double> layer_keep_gamma;  ///< how fast it is approached, a step; unset: 100 / steps of the run
  std::int64_t hash_every = 100;
  std::vector<std::string> freeze;
  bool operator==(const TrainConfig&) const = default;
};

/// [eval]: validation within training.
struct EvalConfig {
  std::int64_t every = 0;
  std::int64_t samples = 64;
  EvalWeights weights = EvalWeights::kTrained;
  bool operator==(const EvalConfig&) const = default;
};

/// [checkpoint]
struct CheckpointConfig {
  std::int64_t every = 100;
  std::optional<std::chrono::nanoseconds> interval;  ///< of time, beside the steps
  bool automatic = false;                            ///< the interval that loses least, from measured times
  std::optional<std::chrono::nanoseconds> mtbf;      ///< mean time between failures; unset: as observed
  std::int64_t keep = 2, keep_every = 0, keep_best = 0;
  bool background = true;
  int threads = 2;
  std::chrono::nanoseconds grace = std::chrono::seconds(60);
  bool operator==(const CheckpointConfig&) const = default;
};

void describe(config::Section<TrainConfig>& section);
void describe(config::Section<EvalConfig>& section);
void describe(config::Section<CheckpointConfig>& section);
std::vector<config::Problem> find_problems(const TrainConfig& train);
std::vector<config::Problem> find_problems(const CheckpointConfig& checkpoint);

}  // namespace trireme::spec
