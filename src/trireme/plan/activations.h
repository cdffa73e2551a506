// plan/activations.h -- what one micro-batch's forward pass leaves on a rank for its backward.
//
// By what layers save: a token's inputs of norms and matrices, its q, k, v, attention output and the MLP's middle,
// split as tensor, sequence and context parallelism split them. Ours to the byte (tests/train/layouts_test.cpp),
// Megatron's by the formulas of Korthikanti et al. 2022, extended to grouped-query attention, gated MLPs, experts and
// latents.
// Depends on: job, stages (how many chunks a pipeline has).
#pragma once

#include "trireme/plan/job.h"

namespace trireme::plan {

struct ActivationBytes {
  double tokens = 0;          ///< of the micro-batch on this rank
  double layer = 0;           ///< saved in one layer, in the mean where recomputation differs by layer
  double whole_layer = 0;     ///< without recomputation
  double embedding = 0;       ///< token ids; Megatron's dropout mask
  double head = 0;            ///< the last norm's input, the head's input gradient
  double hidden = 0;          ///< what goes from one layer to the next, of all the rank's tokens
  double between = 1;         ///< of it, the share that sequence parallelism leaves a rank
  double mlp_middle = 0;      ///< one number for each column of the MLP's middle
  int recomputed_layers = 0;  ///< that run again at once
};

ActivationBytes activation_bytes(const Job& job, const ParallelConfig& config);

/// Of them, what a decoder's block saves for its attention to so many tokens of an encoder; their own memory, which all
/// blocks share, aside.
double cross_attention_bytes(const Job& job, const ParallelConfig& config, std::int64_t source_tokens);

/// How often the forward of a layer runs again, in the mean over all layers; without selective recomputation, which
/// runs a part of it. Within a budget each layer is taken to run again once or not at all: a run's own plan, which
/// recomputes segments in segments, may need more.
double recomputed_forwards(const Job& job, const ParallelConfig& config);

}  // namespace trireme::plan
