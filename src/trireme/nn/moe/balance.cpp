#include "trireme/nn/moe/balance.h"

#include <ATen/ops/stack.h>

#include <algorithm>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/layout/expert_placement.h"

namespace trireme::nn::moe {
namespace {

/// What was counted on a GPU, of all layers in one copy.
void fetch_counts(std::deque<ExpertLoads>& layers) {
  std::vector<at::Tensor> counts;
  for (const ExpertLoads& layer : layers) {
    if (layer.on_gpu) counts.push_back(layer.on_gpu->counts());
  }
  if (counts.empty()) return;
  const at::Tensor here = at::stack(counts).cpu();
  const auto* next = here.const_data_ptr<std::int64_t>();
  for (ExpertLoads& layer : layers) {
    if (!layer.on_gpu) continue;
    layer.add(std::span(next, layer.counts.size()));
    next += layer.counts.size();
    layer.on_gpu->counts().zero_();
  }
}

}  // namespace

void update_bias(std::span<float> bias, std::span<const std::int64_t> counts, double rate, bool centered) {
  TRIREME_CHECK(bias.size() == counts.size(), "{} biases for {} experts", bias.size(), counts.size());
  const auto experts = static_cast<std::int64_t>(counts.size());
  const std::int64_t total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  for (std::size_t i = 0; i < bias.size(); ++i) {
    const std::int64_t below = total - experts * counts[i];  // in whole numbers: no rounding decides a sign
    bias[i] += static_cast<float>(rate) * static_cast<float>((below > 0) - (below < 0));
  }
  if (!centered) return;
  const double mean = std::accumulate(bias.begin(), bias.end(), 0.0) / static_cast<double>(experts);
  for (float& value : bias) value = static_cast<float>(value - mean);
}

void ExpertLoads::add(std::span<const std::int64_t> of_micro) {
  TRIREME_CHECK(of_micro.size() == counts.size(), "loads of {} experts for {}", of_micro.size(), counts.size());
  for (std::size_t i = 0; i < counts.size(); ++i) counts[i] += of_micro[i];
}

void ExpertLoads::decide_copies() {
  if (copy_policy.every == 0) return;
  since.resize(last.size(), 0);
  for (std::size_t i = 0; i < last.size(); ++i) since[i] += last[i];
  if (++steps_since < copy_policy.every) return;
  copies = layout::place_copies(since, copy_policy.ranks, copy_policy.room);
  since.clear();
  steps_since = 0;
}

GpuLoads& ExpertLoads::gpu(at::Device device) {
  if (!on_gpu) on_gpu = std::make_unique<GpuLoads>(counts.size(), bias, device);
  return *on_gpu;
}

ExpertLoads& Balance::add(ExpertLoads loads) {
  loads.last.assign(loads.counts.size(), 0);
  return layers_.emplace_back(std::move(loads));
}

void Balance::advance(bool taken, const Sum& sum) {
  std::vector<std::string> names;
  for (const ExpertLoads& layer : layers_) names.push_back(layer.layer);
  advance(taken, names, layers_.empty() ? 0 : layers_.front().counts.size(), sum);
}

std::vector<LayerLoads> Balance::advance(bool taken, const std::vector<std::string>& model, std::size_t experts,
                                         const Sum& sum) {
  fetch_counts(layers_);
  std::vector<std::int64_t> all(model.size() * experts, 0);
  std::vector<std::size_t> place;  // of this rank's layers among all
  for (const ExpertLoads& layer : layers_) {
    const auto found = std::ranges::find(model, layer.layer);
    TRIREME_CHECK(found != model.end() && layer.counts.size() == experts, "loads of {} experts of a layer {}",
                  layer.counts.size(), layer.layer);
    place.push_back(static_cast<std::size_t>(found - model.begin()) * experts);
    std::ranges::copy(layer.counts, all.begin() + static_cast<std::ptrdiff_t>(place.back()));
  }
  if (sum) sum(all);
  auto at = place.begin();
  for (ExpertLoads& layer : layers_) {
    const auto counts = std::span(all).subspan(*at++, experts);
    layer.last.assign(counts.begin(), counts.end());
    std::ranges::fill(layer.counts, 0);
    layer.decide_copies();
    if (!taken || !layer.bias.defined()) continue;
    update_bias(std::span(layer.bias.mutable_data_ptr<float>(), counts.size()), counts, layer.rate, layer.centered);
    if (layer.on_gpu) layer.on_gpu->refresh(layer.bias);
  }
  std::vector<LayerLoads> loads;
  for (std::size_t i = 0; i < model.size(); ++i) {
    const auto counts = std::span(all).subspan(i * experts, experts);
    loads.push_back({model[i], {counts.begin(), counts.end()}});
  }
  return loads;
}

void Balance::refresh_gpu() {
  for (ExpertLoads& layer : layers_) {
    if (layer.on_gpu) layer.on_gpu->refresh(layer.bias);
  }
}

void Balance::add_state(State& state) {
  for (const ExpertLoads& layer : layers_) {
    if (layer.bias.defined()) state.add("router_bias/" + layer.layer, layer.bias, layer.placement);
  }
}

}  // namespace trireme::nn::moe
