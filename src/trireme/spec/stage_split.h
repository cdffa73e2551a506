// spec/stage_split.h -- what each chunk of a pipeline holds of a model, known before the model is built.
//
//   const auto shares = chunk_shares(shape, recipe.pipeline, /*chunks=*/16);
//   shares.front().layers, shares.front().embedding
//
// The runtime cuts its chain of layers by even_starts() too, so what was planned is what runs.
// Depends on: base, layout_config, model_shape, rules (the entries of a model).
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "trireme/spec/layout_config.h"
#include "trireme/spec/model_shape.h"

namespace trireme::spec {

struct ChunkShare {
  int layers = 0;
  bool embedding = false, head = false;
  int encoders = 0;  ///< of the layers, those of an encoder beside a decoder
  bool operator==(const ChunkShare&) const = default;
};

/// Where chunks begin in a chain of entries, some of which are transformer blocks: equal numbers of blocks as far as
/// they go round, what comes before the first one with the first chunk, what comes after the last with the last. With
/// more chunks than blocks, equal numbers of entries. At least as many entries as chunks.
std::vector<std::size_t> even_starts(const std::vector<bool>& is_block, int chunks);

/// The split whose costliest chunk is cheapest, where embedding and head cost so many layers.
/// With `speeds`, one for each chunk, a chunk costs so many times less.
std::vector<ChunkShare> balanced_shares(int layers, int chunks, double embedding_cost, double head_cost,
                                        const std::vector<double>& speeds = {});

/// What pipeline.split makes of a model: "count" and listed entries as they say; "size", "time" and "pipedream"
/// balanced by parameters or FLOPs, where the run goes by what it counts or measures. ConfigError where a list does not
/// fit. `worker`: of virtual workers with splits of their own, which one.
std::vector<ChunkShare> chunk_shares(const ModelShape& shape, const PipelineConfig& pipeline, int chunks,
                                     int worker = 0);

/// "layers.7,layers.15": shares as pipeline.split writes them.
std::string to_split(const std::vector<ChunkShare>& shares);

}  // namespace trireme::spec
