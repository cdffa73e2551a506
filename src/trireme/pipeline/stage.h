// pipeline/stage.h -- what one rank of a pipeline holds: its chunks' layers, their parameters, and who else has those.
//
//   const Split split = split_by_count(chain_names(shape, options), table.chunks());
//   Stage stage = build_stage({.shape = shape, .table = table, .split = split, .precision = precision, .rank = rank});
//   nn::initialise(stage.model->params, precision, seed);
//
// Every rank builds the same chain without memory to learn names and sizes, then its own part; nothing is exchanged.
// Depends on: base, schedule, models, nn, parallel, spec.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trireme/models/model.h"
#include "trireme/parallel/data_parallel.h"
#include "trireme/pipeline/split.h"
#include "trireme/schedule/schedule.h"

namespace trireme::pipeline {

/// A micro-batch: what chunk 0 takes, and what the step says to every layer about it. Every rank of the pipeline has
/// it. Tensors may lie in a data::Batch, which must then outlive the micro.
struct Micro {
  nn::Tensors inputs;
  nn::Context context;
};

/// A chunk of the model on the rank that holds it.
struct Chunk {
  int number = 0;  ///< along the model
  std::vector<nn::Layer*> layers;
  std::vector<nn::Param*> params;
};

/// Where a parameter is: the same list on every rank.
struct ParamHolders {
  std::string param;
  std::vector<int> chunks;  ///< that compute with it, ascending; several: it is tied
  std::vector<int> ranks;   ///< of the pipeline that hold a copy, ascending
};

/// A tensor that crosses from one chunk to the next.
struct BoundaryTensor {
  std::vector<std::int64_t> sizes;
  at::ScalarType type = at::kFloat;
  at::Device device = at::kCPU;
  at::TensorOptions options() const { return at::TensorOptions(type).device(device); }
  /// Token numbers have no gradient.
  bool has_gradient() const { return at::isFloatingType(type); }
  bool operator==(const BoundaryTensor&) const = default;
};
/// What enters a chunk with this micro, in order. A function of the micro alone, so that a receive can be posted before
/// anything is sent.
using BoundaryTensors = std::function<std::vector<BoundaryTensor>(int chunk, const Micro& micro)>;

/// A tensor that goes from one chunk straight to a later one (nn::SkipLayer).
struct Skip {
  std::string name;
  int from = 0, to = 0;
  std::function<BoundaryTensor(const Micro& micro)> boundary;
};
/// The skips of a chain whose layers give and take some, between chunks: in the order of the chain. A ConfigError names
/// one that nobody takes, that is taken before it is given, or that two layers give.
std::vector<Skip> find_skips(
    std::span<const nn::Layer* const> chain, const Split& split,
    const std::function<BoundaryTensor(const std::string& name, const Micro& micro)>& boundary);

struct Stage {
  std::unique_ptr<models::Model> model;     ///< this rank's entries of the chain
  std::vector<Chunk> chunks;                ///< ascending
  std::vector<ParamHolders> param_holders;  ///< of the whole model
  BoundaryTensors boundaries;
  std::vector<Skip> skips = {};  ///< of the whole model
  Split split;
};

std::vector<std::string> chain_names(const spec::ModelShape& shape, const models::BuildOptions& options = {});
/// Parameters of each entry: what a split by size balances. A tied one counts in each entry that computes with it.
std::vector<double> parameter_costs(const spec::ModelShape& shape, const models::BuildOptions& options = {});

struct StageOptions {
  const spec::ModelShape& shape;
  const schedule::Schedule& table;
  const Split& split;
  nn::Precision precision = nn::Precision::kFp32;  ///< what activations are that cross
  int rank = 0;
  models::BuildOptions build = {};
};
/// The part of the model that the rank holds in this table. Parameters have no memory yet.
Stage build_stage(const StageOptions& plan);
/// Where parameters are in a pipeline with another split: of another virtual worker.
std::vector<ParamHolders> holders_with(const StageOptions& plan);

// How the copies of a stage agree (parallel/data_parallel.h).
/// Its entries, by the chunk that they belong to.
std::vector<parallel::ShardUnit> units_of(const Stage& stage);
/// Parameters that other ranks of the pipeline hold too.
std::vector<std::string> held_apart(const Stage& stage);
/// After the model's layers were replaced, its chunks run the new ones.
void renew_layers(Stage& stage);
/// Its layers fetch their weights from now on.
void fetch_weights(Stage& stage, parallel::DataParallel& data_parallel);

/// Of those that are defined.
std::int64_t bytes_of(const nn::Tensors& tensors);

}  // namespace trireme::pipeline
