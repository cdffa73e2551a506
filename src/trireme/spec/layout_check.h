// spec/layout_check.h -- whether a layout can carry a model: what must divide what, with the numbers and a fix.
//
//   for (const config::Problem& problem : find_layout_problems(recipe.layout, recipe.pipeline,
//            {.shape = shape, .sequence = 4096, .batch_rows = 512, .micro_batch_size = 1, .ranks = 64})) ...
//
// find_problems(LayoutConfig, ...) knows the layout alone; this one knows the model too. Dry runs, planner and trainer
// call it, so what a check accepts is what runs. Hints belong together: following all of them gives a layout that
// has no problem left. A vocabulary need not divide: its rows are padded.
// Depends on: layout_config, model_shape.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "trireme/spec/layout_config.h"
#include "trireme/spec/model_shape.h"

namespace trireme::spec {

/// What is to be laid out.
struct LayoutTask {
  ModelShape shape;
  std::int64_t sequence = 1;                     ///< sequence length in tokens
  std::int64_t batch_rows = 1;                   ///< global batch size in sequences
  std::optional<std::int64_t> micro_batch_size;  ///< in sequences; unset: no gradient accumulation
  std::optional<int> ranks;                      ///< unset: as many as the layout takes
};

/// Rules, where they apply:
///  - tp divides num_heads and ffn_size, and divides num_kv_heads or is a multiple of it (they are replicated then);
///  - cp divides the sequence, twice over for a causal ring (each rank takes a block from both ends), and divides the
///    heads of a tp rank for ulysses; with sequence_parallel, tp x cp divides the sequence;
///  - pp x virtual stages is at most layers + 2: the first chunk may hold the embedding alone, the last the head;
///  - tp x pp x cp x dp are the ranks; zero_group divides dp;
///  - with pipelines and ZeRO 2 and 3, dp divides the sequences of a batch, and a micro-batch has no more of them than
///  a
///    replica takes.
std::vector<config::Problem> find_layout_problems(const LayoutConfig& layout, const PipelineConfig& pipeline,
                                                  const LayoutTask& task);

}  // namespace trireme::spec
