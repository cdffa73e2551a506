// train/engine/pipeline_split.h -- where a recipe's pipeline cuts the model, and on how many ranks each stage runs.
//
// Depends on: base, comm, models, pipeline, spec.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/models/model.h"
#include "trireme/pipeline/split.h"
#include "trireme/schedule/replicated.h"
#include "trireme/spec/recipe.h"

namespace trireme::train {

struct PipelineCut {
  pipeline::Split split;
  /// Where stages may be on several ranks: pipeline.stage_ranks, or what pipeline.split = "pipedream" found. Empty:
  /// each rank has its own chunks.
  schedule::StageRanks stage_ranks = {};
};

struct CutTask {
  const spec::Recipe& recipe;
  const spec::ModelShape& shape;
  const models::BuildOptions& build;
  int chunks = 1;                     ///< of the schedule; "pipedream" makes its own
  std::int64_t rows = 1, length = 1;  ///< of a micro
  comm::Group& world;
  comm::Group* pipeline = nullptr;  ///< whose links "pipedream" measures
  int worker = 0;                   ///< of virtual workers with splits of their own, which one
  bool tell = true;                 ///< in the log, by the first rank of each pipeline with a split of its own
};
/// What pipeline.split says, for the same worker the same on every rank of `world`. "time" and "pipedream" measure
/// every entry on rank 0, one at a time, with micros of made-up tokens; "pipedream" also the links, inside nodes and
/// between them.
PipelineCut cut_pipeline(const CutTask& task);

}  // namespace trireme::train
