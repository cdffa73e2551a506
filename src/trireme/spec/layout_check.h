// spec/layout_check.h -- whether a layout can carry a model: what must divide what, with the numbers and a fix.
//
//   for (const config::Problem& problem : find_layout_problems(recipe.layout, recipe.pipeline,
//            {.shape = shape, .sequence = 4096, .batch_rows = 512, .micro_batch_size = 1, .ranks = 64})) ...
//
// find_problems(LayoutConfig, ...) knows the layout alone; this one knows the model too. Planner, `eval` and generation
// call it; who knows the whole recipe asks rules.h for everything. Hints belong together: following all of them gives
// a layout that has no problem left. A vocabulary need not divide: its rows are padded.
// Depends on: layout_config, model_shape, rules.
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

/// What rules.h has of layouts: what must divide what. Batches may be shared unevenly: gradients are means over tokens.
std::vector<config::Problem> find_layout_problems(const LayoutConfig& layout, const PipelineConfig& pipeline,
                                                  const LayoutTask& task);

}  // namespace trireme::spec
