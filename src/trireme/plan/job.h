// plan/job.h -- what is to be trained, and one way to spread it over devices.
//
// A Job fixes the mathematics: model, length, batch, numbers. A Layout says how the work is cut; it never changes the
// result. find_problems() says which of them contradict each other; what merely does not fit in memory is no
// contradiction.
// Depends on: spec, cost, schedule.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "trireme/base/config.h"
#include "trireme/cost/hardware.h"
#include "trireme/plan/mixture.h"
#include "trireme/spec/model_shape.h"

namespace trireme::plan {

enum class AttentionKind : std::uint8_t {
  kFlash,    ///< fused: scores never reach memory, tiles outside the mask are not computed
  kUnfused,  ///< GEMMs and softmax one after the other, as before 2022
};
enum class Recompute : std::uint8_t {
  kNone,
  kSelective,  ///< attention's scores only (Korthikanti et al. 2022); fused attention does that anyway
  kFull,       ///< whole layers, from their inputs
};
std::span<const Named<AttentionKind>> enum_names(std::type_identity<AttentionKind>);
/// What lives in the host's memory.
enum class Offload : std::uint8_t {
  kNone,
  kOptimizer,  ///< master weights, moments and reduced gradients, with the update itself (Ren et al. 2021)
  kWeights,    ///< weights too, fetched layer by layer (Rajbhandari et al. 2021)
};
std::span<const Named<Recompute>> enum_names(std::type_identity<Recompute>);
std::span<const Named<Offload>> enum_names(std::type_identity<Offload>);

/// What a run keeps for each parameter beside its weight.
struct StateTypes {
  double gradient_bytes = 4;
  double moment_bytes = 4;     ///< of one
  bool master_weights = true;  ///< fp32 ones beside weights that are narrower
  bool operator==(const StateTypes&) const = default;
};

struct Job {
  spec::ModelShape shape;
  Mixture mixture;             ///< experts and latents, where the model has them
  std::int64_t length = 2048;  ///< tokens of a sequence
  std::int64_t batch = 1;      ///< sequences of a step
  cost::Arithmetic arithmetic = cost::Arithmetic::kBf16;
  int moments = 2;                  ///< numbers that the optimizer keeps for each weight beside its master: Adam's two
  StateTypes of_layers, of_tables;  ///< of layers, and of token tables and heads
  AttentionKind attention = AttentionKind::kFlash;

  double tokens() const { return static_cast<double>(length) * static_cast<double>(batch); }
};

/// FLOPs of a step without recomputation as papers report them: every GEMM three times, attention in full, not
/// halved for the mask. For a GPT this is 72 B s l h^2 (1 + s/(6h) + V/(12 h l)).
double model_flops(const Job& job);
/// Encoders count too.
int layers_of(const spec::ModelShape& shape);
/// Parameters of one layer, of the token embedding, of the head beside it. Where only some layers have experts, the
/// mean of all.
struct WeightCounts {
  double layer = 0;    ///< without routed experts
  double experts = 0;  ///< routed, of one layer
  double embedding = 0, head = 0;
  /// Those of a layer that a rank holds.
  double layer_share(const struct Layout& layout) const;
};
WeightCounts count_weights(const Job& job);

struct Layout {
  int tp = 1;  ///< ranks that split each matrix
  int pp = 1;  ///< consecutive groups of layers
  int dp = 1;  ///< replicas of the model
  int cp = 1;  ///< ranks that split each sequence
  int ep = 1;  ///< ranks of dp x cp that share out the experts
  int virtual_stages = 1;
  std::int64_t micro_batch_size = 1;  ///< sequences that a rank takes at once
  int zero = 0;                       ///< stage: what is sharded over dp
  int zero_group = 0;                 ///< copies among which it is sharded; 0: all
  bool sequence_parallel = false;
  Recompute recompute = Recompute::kNone;
  Offload offload = Offload::kNone;
  std::string schedule = "1f1b";

  int gpus() const { return tp * pp * dp * cp; }
  /// Ranks among which model states are sharded: weights are the same along a sequence too.
  int sharers() const { return (zero_group > 0 ? zero_group : dp) * cp; }
  /// The same for experts, of which there are fewer copies.
  int expert_sharers() const { return sharers() > ep ? sharers() / ep : 1; }
  bool operator==(const Layout&) const = default;
};

/// Micro-batches of a step on each replica of the model.
std::int64_t micros_of(const Job& job, const Layout& layout);
/// "tp 8, pp 12, dp 4, ...": for people.
std::string to_text(const Layout& layout);

/// Everything in which the layout contradicts itself, the job or the number of devices.
std::vector<config::Problem> find_problems(const Job& job, const Layout& layout, int gpus);

/// Layers of each stage, over all its chunks. Where they do not divide evenly, those in the middle have one more: the
/// first and the last also hold the embedding and the head.
std::vector<int> stage_layers(int layers, int stages, int virtual_stages);

}  // namespace trireme::plan
