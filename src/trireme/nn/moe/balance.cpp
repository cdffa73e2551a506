#include "trireme/nn/moe/balance.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/nn/moe/gpu_loads.h"

namespace trireme::nn::moe {
namespace {

/// All that there are in this process, whose ranks may be threads.
struct GpuLoadsList {
  std::mutex mutex;
  std::map<const ExpertLoads*, std::weak_ptr<GpuLoads>> by_loads;
};
GpuLoadsList& gpu_loads_list() {
  static GpuLoadsList list;
  return list;
}

/// What was counted on a GPU, of all layers in one copy.
void fetch_counts(std::deque<ExpertLoads>& layers) {
  std::vector<std::shared_ptr<GpuLoads>> there;
  std::vector<at::Tensor> counts;
  for (const ExpertLoads& layer : layers) {
    if (there.emplace_back(GpuLoads::find(layer))) counts.push_back(there.back()->counts());
  }
  if (counts.empty()) return;
  const at::Tensor here = at::stack(counts).cpu();
  const auto* next = here.const_data_ptr<std::int64_t>();
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (!there[i]) continue;
    layers[i].add(std::span(next, layers[i].counts.size()));
    next += layers[i].counts.size();
    there[i]->counts().zero_();
  }
}

}  // namespace

GpuLoads::GpuLoads(ExpertLoads& loads, at::Device device)
    : loads_(loads),
      counts_(
          at::zeros({static_cast<std::int64_t>(loads.counts.size())}, at::TensorOptions(at::kLong).device(device))) {
  if (!loads_.bias.defined()) return;
  bias_ = at::empty(loads_.bias.sizes(), loads_.bias.options().device(device));
  refresh();
}

std::shared_ptr<GpuLoads> GpuLoads::make(ExpertLoads& loads, at::Device device) {
  std::shared_ptr<GpuLoads> made(new GpuLoads(loads, device));
  GpuLoadsList& list = gpu_loads_list();
  const std::scoped_lock lock(list.mutex);
  std::erase_if(list.by_loads, [](const auto& entry) { return entry.second.expired(); });
  list.by_loads[&loads] = made;
  return made;
}

std::shared_ptr<GpuLoads> GpuLoads::find(const ExpertLoads& loads) {
  GpuLoadsList& list = gpu_loads_list();
  const std::scoped_lock lock(list.mutex);
  const auto found = list.by_loads.find(&loads);
  return found == list.by_loads.end() ? nullptr : found->second.lock();
}

void GpuLoads::refresh_all() {
  GpuLoadsList& list = gpu_loads_list();
  const std::scoped_lock lock(list.mutex);
  for (const auto& [loads, entry] : list.by_loads) {
    if (const auto there = entry.lock()) there->refresh();
  }
}

void GpuLoads::add(const at::Tensor& of_groups) { counts_.add_(at::sum(of_groups, {0}, /*keepdim=*/false, at::kLong)); }

const at::Tensor& GpuLoads::bias() {
  refresh();
  return bias_;
}

void GpuLoads::refresh() {
  if (!bias_.defined()) return;
  const std::span<const float> now(loads_.bias.const_data_ptr<float>(), static_cast<std::size_t>(bias_.numel()));
  if (std::ranges::equal(now, sent_)) return;
  sent_.assign(now.begin(), now.end());
  bias_.copy_(loads_.bias);
}

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
    if (!taken || !layer.bias.defined()) continue;
    update_bias(std::span(layer.bias.mutable_data_ptr<float>(), counts.size()), counts, layer.rate, layer.centered);
    if (const auto there = GpuLoads::find(layer)) there->refresh();
  }
  std::vector<LayerLoads> loads;
  for (std::size_t i = 0; i < model.size(); ++i) {
    const auto counts = std::span(all).subspan(i * experts, experts);
    loads.push_back({model[i], {counts.begin(), counts.end()}});
  }
  return loads;
}

void Balance::add_state(State& state) {
  for (const ExpertLoads& layer : layers_) {
    if (layer.bias.defined()) state.add("router_bias/" + layer.layer, layer.bias, layer.placement);
  }
}

}  // namespace trireme::nn::moe
