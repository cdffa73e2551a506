// plan/job.h -- what is to be trained: model, sequence length, batch, precision, optimizer.
//
// A Job fixes the mathematics; a spec::ParallelConfig says how the work is distributed and never changes the result.
// find_problems() says which of them contradict each other; what merely does not fit in memory is no contradiction.
// Depends on: spec, cost, schedule.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "trireme/base/config.h"
#include "trireme/cost/hardware.h"
#include "trireme/spec/model_shape.h"
#include "trireme/spec/optim.h"
#include "trireme/spec/parallel_config.h"

namespace trireme::plan {

using spec::ParallelConfig;

enum class AttentionKind : std::uint8_t {
  kFlash,    ///< fused: scores never reach memory, tiles outside the mask are not computed
  kUnfused,  ///< GEMMs and softmax one after the other, as before 2022
};
std::span<const Named<AttentionKind>> enum_names(std::type_identity<AttentionKind>);

/// Whose layers: what they save for backward, and the buffers around them.
enum class Software : std::uint8_t {
  kTrireme,
  kMegatron,  ///< what published runs used: dropout masks and MLP activations saved, logits in one piece
};
std::span<const Named<Software>> enum_names(std::type_identity<Software>);

struct Job {
  spec::ModelShape shape;
  std::int64_t seq_len = 2048;  ///< tokens of a sequence
  std::int64_t batch = 1;       ///< sequences of a step
  spec::PrecisionConfig precision{.compute = spec::Precision::kBf16};
  spec::OptimConfig optim;
  AttentionKind attention = AttentionKind::kFlash;
  Software software = Software::kTrireme;
  double logits_chunk_bytes = 1 << 30;  ///< of the fused head, at most

  double tokens() const { return static_cast<double>(seq_len) * static_cast<double>(batch); }
  /// Data type of the GEMMs. The widest that devices are described with: fp64 counts as fp32.
  cost::Arithmetic arithmetic() const;
  /// Of a weight and an activation; and of master weights and what is accumulated.
  double compute_bytes() const;
  double sum_bytes() const;
};

cost::Arithmetic arithmetic_of(const spec::PrecisionConfig& precision);
/// With GEMMs of that type; fp8 beside bf16, with one scale a tensor.
spec::PrecisionConfig precision_of(cost::Arithmetic arithmetic);

/// FLOPs of one sequence's forward pass: GEMMs with weights that a token meets; of which the head; attention in
/// full, not halved for the mask.
struct SequenceFlops {
  double projections = 0, head = 0, attention = 0;
  double mtp = 0;  ///< modules of multi-token prediction, each with its pass through the head
  double total() const { return projections + head + attention + mtp; }
};
SequenceFlops sequence_flops(const spec::ModelShape& shape, std::int64_t length);

/// FLOPs of a step without recomputation as papers report them: every GEMM three times, attention in full, not
/// halved for the mask. For a GPT this is 72 B s l h^2 (1 + s/(6h) + V/(12 h l)).
double model_flops(const Job& job);
/// Encoders count too.
int layers_of(const spec::ModelShape& shape);

/// Parameters of one layer, of the token embedding, of the head beside it. Where only some layers have experts, the
/// mean of all. Vectors are norms and biases, whose states are always wide.
struct WeightCounts {
  double layer = 0;          ///< without routed experts
  double layer_vectors = 0;  ///< of them
  /// Of them, matrices that every tensor-parallel rank has whole: latents' down-projections, routers.
  double layer_replicated = 0;
  double experts = 0;              ///< routed, of one layer
  bool tp_shards_experts = false;  ///< Megatron's; ours are whole on each tensor-parallel rank
  double embedding = 0;
  double head = 0, head_vectors = 0;  ///< with the last norm
  double tied_head = 0;               ///< the embedding's copy, where a head that computes with it is on another rank
  /// Multi-token prediction's, which is where the head is, without its routed experts.
  double mtp = 0, mtp_vectors = 0, mtp_replicated = 0, mtp_experts = 0;
  double total(int layers) const { return layers * (layer + experts) + embedding + mtp + mtp_experts + head; }
  /// Ranks that share out the routed experts of a layer.
  double expert_ranks(const ParallelConfig& config) const {
    return static_cast<double>(config.layout.ep) * (tp_shards_experts ? config.layout.tp : 1);
  }
  /// Those of a layer that a rank holds.
  double layer_share(const ParallelConfig& config) const {
    return (layer - layer_replicated) / config.layout.tp + layer_replicated + experts / expert_ranks(config);
  }
};
WeightCounts count_weights(const Job& job);

/// Everything in which the configuration contradicts itself, the job or the number of devices.
std::vector<config::Problem> find_problems(const Job& job, const ParallelConfig& config, int gpus);

}  // namespace trireme::plan
