#include "trireme/train/engine/noise_scale.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/layout/mesh.h"
#include "trireme/nn/parallel_context.h"
#include "trireme/nn/state.h"
#include "trireme/train/engine/engine.h"

namespace trireme::train {

NoiseEstimate noise_estimate(double small_square, double small, double big_square, double big) {
  return {.gradient_square = (big * big_square - small * small_square) / (big - small),
          .trace = (small_square - big_square) / (1 / small - 1 / big)};
}

void NoiseAverage::add(const NoiseEstimate& estimate, double decay) {
  if (!std::isfinite(estimate.gradient_square) || !std::isfinite(estimate.trace)) return;
  gradient_ = decay * gradient_ + (1 - decay) * estimate.gradient_square;
  trace_ = decay * trace_ + (1 - decay) * estimate.trace;
  weight_ = decay * weight_ + (1 - decay);
}

std::optional<double> NoiseAverage::scale() const {
  if (weight_ == 0 || gradient_ <= 0) return std::nullopt;
  return std::max(0.0, trace_) / gradient_;
}

std::string layer_of(const std::string& parameter) {
  std::size_t end = parameter.find('.');
  if (parameter.starts_with("encoder.layers.")) end = parameter.find('.', std::string_view("encoder.layers.").size());
  if (parameter.starts_with("layers.") || parameter.starts_with("mtp.")) end = parameter.find('.', end + 1);
  return parameter.substr(0, end);
}

NoiseScale::NoiseScale(Engine& engine, double decay) : engine_(engine), decay_(decay) {
  parallel::MeshGroups* groups = engine.account().groups;
  TRIREME_CHECK(groups != nullptr, "this engine has no groups to measure norms with");
  parallel::FirstMicroOptions options = engine.first_micro();
  sharded_ = !options.experts.empty();
  const layout::AxisNames readers = layout::intersect(engine.mesh(), options.experts, {std::string(nn::kDataAxis)});
  groups->agree_on({readers});
  share_experts_ = groups->along(readers);
  engine.data_parallel().measure_first_micro(*groups, std::move(options));
  // Of the whole model, so that all stages have them in one order.
  for (const std::string& name : engine.all_names()) {
    const std::string layer = layer_of(name);
    if (std::ranges::find(names_, layer) == names_.end()) names_.push_back(layer);
  }
  for (const nn::Param& param : engine.params()) {
    if (!param.trainable) continue;
    const auto found = std::ranges::find(names_, layer_of(param.name));
    TRIREME_CHECK(found != names_.end(), "the model has no parameter {}", param.name);
    layer_of_.push_back(static_cast<std::size_t>(found - names_.begin()));
  }
  averages_.resize(names_.size());
}

/// Small batches of one kind: of dense parameters, or of experts.
struct NoiseScale::Kind {
  double targets = 0;                 // of the one that this rank has a part in
  double batches = 0;                 // of them over all ranks
  double inverse = 0;                 // 1 / targets, summed over them
  std::vector<double> by_layer = {};  // squares of small batches, then of the whole one

  double factor(double all_targets, double loss_scale) const {
    // Gradients are sums over tokens divided by those of all; of the small batch they are to be the mean.
    return targets > 0 ? std::pow(all_targets / targets / loss_scale, 2) : 0;
  }
  double size() const { return batches / inverse; }
};

void NoiseScale::add(double first_targets, double all_targets, std::span<const double> whole_squares,
                     double loss_scale) {
  const auto sum_over = [](comm::Group* ranks, std::span<double> numbers) {
    if (ranks != nullptr && ranks->size() > 1)
      ranks->all_reduce(comm::Buffer{numbers.data(), numbers.size(), comm::DType::kF64}, comm::Reduce::kSum).wait();
  };
  std::array<Kind, 2> kinds{Kind{.targets = first_targets}, Kind{.targets = first_targets}};
  auto& [dense, experts] = kinds;
  if (sharded_) sum_over(share_experts_, {&experts.targets, 1});
  const std::vector<double> squares = engine_.data_parallel().first_micro_squares(
      {.dense = dense.factor(all_targets, loss_scale), .experts = experts.factor(all_targets, loss_scale)});
  TRIREME_CHECK(squares.size() == whole_squares.size() && squares.size() == layer_of_.size(),
                "norms of {} parameters for {}", whole_squares.size(), layer_of_.size());
  const bool counts_experts = share_experts_ == nullptr || share_experts_->rank() == 0;
  std::vector<double> sums;
  for (const Kind& kind : kinds) {
    const bool counts = kind.targets > 0 && (&kind == &dense || counts_experts);
    sums.push_back(counts ? 1.0 : 0.0);
    sums.push_back(counts ? 1 / kind.targets : 0.0);
  }
  sum_over(&engine_.readers(), sums);
  for (std::size_t k = 0; k < kinds.size(); ++k) {
    Kind& kind = kinds[k];
    kind.batches = sums[2 * k], kind.inverse = sums[2 * k + 1];
    if (kind.batches == 0 || kind.size() >= all_targets * (1 - 1e-9)) return;
  }
  // Of small batches, then of the whole one, by layer. Copies of a parameter on other stages have the whole gradient
  // too, but the first micro-batch has passed one of them only.
  const std::size_t layers = names_.size();
  const std::vector<bool>& counted = engine_.counted_params();
  const std::vector<bool>& of_experts = engine_.data_parallel().first_micro_of_experts();
  for (Kind& kind : kinds) kind.by_layer.resize(2 * layers);
  for (std::size_t i = 0; i < squares.size(); ++i) {
    Kind& kind = of_experts[i] ? experts : dense;
    kind.by_layer[layer_of_[i]] += squares[i] / kind.batches;
    if (counted.empty() || counted[i]) kind.by_layer[layers + layer_of_[i]] += whole_squares[i];
  }
  sum_over(engine_.pipeline(), dense.by_layer);
  if (sharded_) sum_over(engine_.pipeline(), experts.by_layer);
  NoiseEstimate whole;
  for (std::size_t i = 0; i < layers; ++i) {
    NoiseEstimate layer;
    for (const Kind& kind : kinds)
      layer = layer + noise_estimate(kind.by_layer[i], kind.size(), kind.by_layer[layers + i], all_targets);
    averages_[i].add(layer, decay_);
    whole = whole + layer;
  }
  whole_.add(whole, decay_);
}

std::vector<observe::LayerNoise> NoiseScale::layers() const {
  std::vector<observe::LayerNoise> out;
  for (std::size_t i = 0; i < names_.size(); ++i) {
    if (const auto scale = averages_[i].scale()) out.push_back({names_[i], *scale});
  }
  return out;
}

void NoiseScale::add_state(nn::State& state) {
  state.add_value(
      "train/noise_scale",
      [this] {
        nlohmann::ordered_json value = nlohmann::ordered_json::object();
        const auto put = [&](const std::string& name, const NoiseAverage& average) {
          value[name] = {average.gradient_, average.trace_, average.weight_};
        };
        put("", whole_);
        for (std::size_t i = 0; i < names_.size(); ++i) put(names_[i], averages_[i]);
        return value;
      },
      [this](const nlohmann::ordered_json& value) {
        const auto take = [&](const std::string& name, NoiseAverage& average) {
          if (!value.contains(name)) return;
          average.gradient_ = value[name][0].get<double>();
          average.trace_ = value[name][1].get<double>();
          average.weight_ = value[name][2].get<double>();
        };
        take("", whole_);
        for (std::size_t i = 0; i < names_.size(); ++i) take(names_[i], averages_[i]);
      });
}

}  // namespace trireme::train
