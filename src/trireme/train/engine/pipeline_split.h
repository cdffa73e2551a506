// train/engine/pipeline_split.h -- where a recipe's pipeline cuts the model, and on how many ranks each stage runs.
//
// Depends on: base, comm, models, pipeline, spec.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/models/model.h"
#include "trireme/pipeline/split.h"
#include "trireme/spec/recipe.h"

namespace trireme::train {

struct PipelineCut {
  pipeline::Split split;
  /// By stage, where pipeline.split = "pipedream" found stages on several ranks; empty: each rank has its own chunks.
  std::vector<int> ranks_of_stage = {};
};

/// What pipeline.split says, the same on every rank of `world`. `chunks`: of the schedule; "pipedream" makes its own.
/// "time" and "pipedream" measure every entry on rank 0, one at a time, with micros of `rows` x `length` made-up
/// tokens.
PipelineCut cut_pipeline(const spec::Recipe& recipe, const spec::ModelShape& shape, const models::BuildOptions& build,
                         int chunks, std::int64_t rows, std::int64_t length, comm::Group& world);

}  // namespace trireme::train
