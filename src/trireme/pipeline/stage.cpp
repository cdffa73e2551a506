#include "trireme/pipeline/stage.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "trireme/base/error.h"

namespace trireme::pipeline {
namespace {

std::vector<std::string> names_of(const models::Model& model) {
  std::vector<std::string> names;
  for (const models::NamedLayer& entry : model.layers) names.push_back(entry.name);
  return names;
}

std::vector<ParamHolders> find_param_holders(const models::Model& whole, const schedule::Schedule& table,
                                             const Split& split) {
  std::vector<ParamHolders> param_holders;
  for (const nn::Param& param : whole.params) {
    std::set<int> chunks, ranks;
    for (std::size_t chunk = 0; chunk < split.size(); ++chunk) {
      for (std::size_t i = split[chunk].begin; i < split[chunk].end; ++i) {
        if (std::ranges::find(whole.layers[i].params, &param) == whole.layers[i].params.end()) continue;
        chunks.insert(static_cast<int>(chunk));
        for (const int rank : schedule::holders_of(table, static_cast<int>(chunk))) ranks.insert(rank);
      }
    }
    TRIREME_CHECK(!chunks.empty(), "no entry of the model computes with {}", param.name);
    param_holders.push_back({param.name, {chunks.begin(), chunks.end()}, {ranks.begin(), ranks.end()}});
  }
  return param_holders;
}

/// What crosses into each chunk of a transformer: the stream of tokens; with an encoder, the other stream beside it.
class TransformerBoundaries {
 public:
  TransformerBoundaries(const spec::ModelShape& shape, std::vector<std::string> first_entries, at::ScalarType type,
                        const nn::ParallelContext& parallel)
      : width_(shape.hidden_size), encoder_(shape.num_encoder_layers > 0), type_(type), parallel_(&parallel) {
    for (const std::string& name : first_entries) places_.push_back(place(name));
  }

  std::vector<BoundaryTensor> operator()(int chunk, const Micro& micro) const {
    const auto hidden = [&](const at::Tensor& ids) -> BoundaryTensor {
      return {{ids.size(0), parallel_->local_seq_len(ids.size(1)), width_}, type_, ids.device()};
    };
    const auto numbers = [](const at::Tensor& ids) -> BoundaryTensor {
      return {ids.sizes().vec(), ids.scalar_type(), ids.device()};
    };
    if (!encoder_) return {hidden(micro.inputs.at(0))};
    const at::Tensor &source = micro.inputs.at(0), &ids = micro.inputs.at(1);
    switch (places_[static_cast<std::size_t>(chunk)]) {
      case Place::kInEncoder:
        return {hidden(source), numbers(ids)};
      case Place::kBeforeDecoder:
        return {numbers(ids), hidden(source)};
      case Place::kInDecoder:
        return {hidden(ids), hidden(source)};
      case Place::kAfterDecoder:
        break;
    }
    return {hidden(ids)};
  }

 private:
  enum class Place { kInEncoder, kBeforeDecoder, kInDecoder, kAfterDecoder };
  /// Where a chunk stands whose first entry is this one.
  Place place(const std::string& name) const {
    if (name.starts_with("encoder.")) return Place::kInEncoder;
    if (name == "embedding") return Place::kBeforeDecoder;
    if (name.starts_with("layers.") || name == "decoder.end") return Place::kInDecoder;
    return Place::kAfterDecoder;
  }

  std::int64_t width_;
  bool encoder_;
  at::ScalarType type_;
  const nn::ParallelContext* parallel_;
  std::vector<Place> places_;
};

}  // namespace

std::vector<std::string> chain_names(const spec::ModelShape& shape, const models::BuildOptions& options) {
  return names_of(*models::build(shape, options));
}

std::vector<double> parameter_costs(const spec::ModelShape& shape, const models::BuildOptions& options) {
  const auto whole = models::build(shape, options);
  std::vector<double> costs;
  for (const models::NamedLayer& entry : whole->layers) {
    double elements = 0;
    for (const nn::Param* param : entry.params) elements += static_cast<double>(param->elements());
    costs.push_back(elements);
  }
  return costs;
}

Stage build_stage(const StageOptions& plan) {
  const auto& [shape, table, split, precision, rank, options] = plan;
  const auto whole = models::build(shape, options);
  const std::vector<std::string> names = names_of(*whole);
  check_split(split, names);
  if (static_cast<int>(split.size()) != table.chunks()) {
    throw ConfigError(fmt::format("the model is cut into {} chunks, but schedule {} has {}", split.size(), table.name,
                                  table.chunks()));
  }
  models::BuildOptions mine = options;
  mine.only.emplace();
  const std::vector<int> held = schedule::chunks_of(table, rank);
  for (const int chunk : held) {
    const LayerRange stretch = split[static_cast<std::size_t>(chunk)];
    for (std::size_t i = stretch.begin; i < stretch.end; ++i) mine.only->push_back(names[i]);
  }
  Stage stage{
      .model = models::build(shape, mine), .param_holders = find_param_holders(*whole, table, split), .split = split};
  auto entry = stage.model->layers.begin();
  for (const int number : held) {
    Chunk& chunk = stage.chunks.emplace_back(Chunk{.number = number});
    const LayerRange stretch = split[static_cast<std::size_t>(number)];
    for (std::size_t i = stretch.begin; i < stretch.end; ++i, ++entry) {
      TRIREME_CHECK(entry->name == names[i], "entry {} was built where {} belongs", entry->name, names[i]);
      chunk.layers.push_back(entry->layer.get());
      for (nn::Param* param : entry->params) {
        if (std::ranges::find(chunk.params, param) == chunk.params.end()) chunk.params.push_back(param);
      }
    }
  }
  std::vector<std::string> first_entries;
  for (const LayerRange& stretch : split) first_entries.push_back(names[stretch.begin]);
  stage.boundaries =
      TransformerBoundaries(shape, std::move(first_entries), nn::compute_type(precision), *options.parallel);
  return stage;
}

std::vector<ParamHolders> holders_with(const StageOptions& plan) {
  return find_param_holders(*models::build(plan.shape, plan.build), plan.table, plan.split);
}

std::vector<parallel::ShardUnit> units_of(const Stage& stage) {
  std::vector<parallel::ShardUnit> units;
  std::size_t entry = 0;
  for (const Chunk& chunk : stage.chunks) {
    for (std::size_t i = 0; i < chunk.layers.size(); ++i) {
      units.push_back({.params = stage.model->layers[entry++].params, .key = chunk.number});
    }
  }
  return units;
}

std::vector<std::string> held_apart(const Stage& stage) {
  std::vector<std::string> names;
  for (const ParamHolders& held : stage.param_holders) {
    if (held.ranks.size() > 1) names.push_back(held.param);
  }
  return names;
}

void renew_layers(Stage& stage) {
  std::size_t entry = 0;
  for (Chunk& chunk : stage.chunks) {
    for (nn::Layer*& layer : chunk.layers) layer = stage.model->layers[entry++].layer.get();
  }
}

void fetch_weights(Stage& stage, parallel::DataParallel& data_parallel) {
  for (std::size_t entry = 0; entry < stage.model->layers.size(); ++entry) {
    std::unique_ptr<nn::Layer>& layer = stage.model->layers[entry].layer;
    layer = data_parallel.wrap(std::move(layer), entry);
  }
  renew_layers(stage);
}

std::int64_t bytes_of(const nn::Tensors& tensors) {
  std::int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += tensor.defined() ? static_cast<std::int64_t>(tensor.nbytes()) : 0;
  return bytes;
}

}  // namespace trireme::pipeline
