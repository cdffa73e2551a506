#include "trireme/train/engine/noise_scale.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/nn/state.h"
#include "trireme/train/engine/engine.h"

namespace trireme::train {

void NoiseAverage::add(double small_square, double small, double big_square, double big, double decay) {
  const double gradient = (big * big_square - small * small_square) / (big - small);
  const double trace = (small_square - big_square) / (1 / small - 1 / big);
  if (!std::isfinite(gradient) || !std::isfinite(trace)) return;
  gradient_ = decay * gradient_ + (1 - decay) * gradient;
  trace_ = decay * trace_ + (1 - decay) * trace;
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
  engine.data_parallel().measure_first_micro(*groups, engine.first_micro());
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

void NoiseScale::add(double first_targets, double all_targets, std::span<const double> whole_squares,
                     double loss_scale) {
  // This rank's gradients are sums over its tokens divided by those of all; of the small batch they are to be the mean.
  const double factor = first_targets > 0 ? std::pow(all_targets / first_targets / loss_scale, 2) : 0;
  const std::vector<double> squares = engine_.data_parallel().first_micro_squares(factor);
  TRIREME_CHECK(squares.size() == whole_squares.size() && squares.size() == layer_of_.size(),
                "norms of {} parameters for {}", whole_squares.size(), layer_of_.size());
  std::array<double, 2> sums{first_targets > 0 ? 1.0 : 0.0, first_targets > 0 ? 1 / first_targets : 0.0};
  comm::Group& readers = engine_.readers();
  if (readers.size() > 1)
    readers.all_reduce(comm::Buffer{sums.data(), sums.size(), comm::DType::kF64}, comm::Reduce::kSum).wait();
  if (sums[0] == 0) return;
  const double small = sums[0] / sums[1];
  if (small >= all_targets * (1 - 1e-9)) return;
  // Of small batches, then of the whole one, by layer. Copies of a parameter on other stages have the whole gradient
  // too, but the first micro-batch has passed one of them only.
  const std::size_t layers = names_.size();
  std::vector<double> by_layer(2 * layers);
  const std::vector<bool>& counted = engine_.counted_params();
  for (std::size_t i = 0; i < squares.size(); ++i) {
    by_layer[layer_of_[i]] += squares[i] / sums[0];
    if (counted.empty() || counted[i]) by_layer[layers + layer_of_[i]] += whole_squares[i];
  }
  if (comm::Group* stages = engine_.pipeline(); stages != nullptr)
    stages->all_reduce(comm::Buffer{by_layer.data(), by_layer.size(), comm::DType::kF64}, comm::Reduce::kSum).wait();
  double small_square = 0, big_square = 0;
  for (std::size_t i = 0; i < layers; ++i) {
    averages_[i].add(by_layer[i], small, by_layer[layers + i], all_targets, decay_);
    small_square += by_layer[i];
    big_square += by_layer[layers + i];
  }
  whole_.add(small_square, small, big_square, all_targets, decay_);
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
