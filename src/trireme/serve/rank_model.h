// serve/rank_model.h -- the model of a command, split over the ranks of a world, as inference computes with it.
//
// Ranks are tensor parallel, stages of a pipeline, or replicas; replicas may share experts, and then compute steps
// together. Matrices may be in fewer bits, layers may be streamed from where they are stored.
// Depends on: checkpoint, comm, commands.h, engine.h, models, nn, parallel.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "trireme/checkpoint/open_model.h"
#include "trireme/comm/group.h"
#include "trireme/parallel/parallel_groups.h"
#include "trireme/serve/commands.h"
#include "trireme/serve/engine.h"
#include "trireme/serve/weight_stream.h"

namespace trireme::serve {

/// Memory of this host that nobody uses.
std::int64_t available_host_bytes();
/// A ConfigError for a model that does not read from left to right.
void check_continues(const spec::ModelShape& shape);

struct RankModel {
  std::unique_ptr<parallel::ParallelGroups> groups;
  checkpoint::OpenedModel opened;  // a stage's layers
  nn::QuantisedWeights quantised_weights;
  std::unique_ptr<WeightStream> stream;
  PipelineRanks pipeline;
  bool shares_experts = false;
  nn::KvCacheType kv_cache = nn::KvCacheType::kSame;
  std::string about;  ///< what of it is streamed, for people; empty: nothing

  models::Model& model() const { return *opened.model; }
  /// Its matrices in fewer bits; null: none are.
  const nn::QuantisedWeights* quantised() const { return quantised_weights.empty() ? nullptr : &quantised_weights; }
  const std::optional<std::string>& tokenizer() const { return opened.tokenizer; }
  int replica() const { return groups->dp_rank; }
  int replicas() const { return groups->dp_size; }
  /// Of the ranks that compute a replica's steps, the one that tells of them.
  bool leads_replica() const { return groups->parallel.tensor_rank() == 0 && groups->stage == 0; }
  /// Tokens that a KV cache has memory for: of a GPU most of what is free once the weights are there, of a host a
  /// quarter.
  std::int64_t most_kv_tokens() const;
  /// What an engine of this model must know.
  void set_up(EngineOptions& options) const;
};

/// By all ranks of `world`. A ProblemsError where the model cannot be split so.
std::unique_ptr<RankModel> open_rank_model(const ModelRequest& request, comm::Group& world);

/// A drafter as it was asked for, with the model that it has.
struct RankDrafter {
  std::unique_ptr<checkpoint::OpenedModel> model;
  std::unique_ptr<Drafter> drafter;
};
/// Null where none was asked for. ConfigError where the model cannot have it. Each rank has a draft model to itself.
RankDrafter make_drafter(const SpeculationRequest& request, const ModelRequest& of, const RankModel& model,
                         InferenceEngine& engine);
/// What set_drafter() takes it with: rules of the engine's options.
SpeculationRule rule_of(const SpeculationRequest& request);

}  // namespace trireme::serve
