#include "trireme/nn/moe/balance.h"

#include <ATen/ops/stack.h>

#include <algorithm>
#include <numeric>
#include <string_view>

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

void ExpertLoads::add(std::span<const std::int64_t> of_micro, std::int64_t step) {
  TRIREME_CHECK(of_micro.size() == counts.size(), "loads of {} experts for {}", of_micro.size(), counts.size());
  std::vector<std::int64_t>& sum = keeps_steps ? counts_of_steps[step] : counts;
  sum.resize(counts.size(), 0);
  for (std::size_t i = 0; i < counts.size(); ++i) sum[i] += of_micro[i];
}

void ExpertLoads::rebalance() {
  if (policy.every == 0) return;
  since.resize(last.size(), 0);
  for (std::size_t i = 0; i < last.size(); ++i) since[i] += last[i];
  if (++steps_since < policy.every) return;
  std::vector<std::int64_t> places = order;
  if (policy.moves) {
    if (places.empty()) {
      places.resize(last.size());
      std::iota(places.begin(), places.end(), 0);
    }
    std::vector<std::int64_t> decided =
        layout::place_owners(since, {.order = places, .ranks = policy.ranks, .node_ranks = policy.node_ranks});
    busiest_before = layout::busiest_rank(layout::in_order(since, places), policy.ranks, {});
    busiest_after = layout::busiest_rank(layout::in_order(since, decided), policy.ranks, {});
    if (decided != places) next_order = places = std::move(decided);
  }
  copies = layout::place_copies(layout::in_order(since, places), policy.ranks, policy.room);
  if (!places.empty()) {
    for (std::int64_t& copy : copies) copy = copy < 0 ? copy : places[static_cast<std::size_t>(copy)];
  }
  since.clear();
  steps_since = 0;
}

std::vector<std::int64_t> ExpertLoads::of_ranks(std::span<const std::int64_t> of_experts) const {
  const auto ranks = static_cast<std::size_t>(policy.ranks);
  std::vector<std::int64_t> slots(of_experts.size(), 1), sums(ranks, 0);
  for (const std::int64_t copy : copies) {
    if (copy >= 0) ++slots[static_cast<std::size_t>(copy)];
  }
  const std::vector<std::int64_t> loads = layout::in_order(of_experts, order), each = layout::in_order(slots, order);
  const std::size_t own = of_experts.size() / ranks, room = copies.size() / ranks;
  for (std::size_t place = 0; place < loads.size(); ++place) sums[place / own] += loads[place] / each[place];
  for (std::size_t slot = 0; slot < copies.size(); ++slot) {
    if (copies[slot] < 0) continue;
    const auto expert = static_cast<std::size_t>(copies[slot]);
    sums[slot / room] += of_experts[expert] / slots[expert];
  }
  return sums;
}

std::int64_t ExpertLoads::moving() const {
  const auto own = next_order.size() / static_cast<std::size_t>(policy.ranks);
  std::vector<std::size_t> owner(next_order.size());
  for (std::size_t place = 0; place < owner.size(); ++place)
    owner[order.empty() ? place : static_cast<std::size_t>(order[place])] = place / own;
  std::int64_t moves = 0;
  for (std::size_t place = 0; place < owner.size(); ++place)
    moves += owner[static_cast<std::size_t>(next_order[place])] != place / own ? 1 : 0;
  return moves;
}

GpuLoads& ExpertLoads::gpu(at::Device device) {
  if (!on_gpu) on_gpu = std::make_unique<GpuLoads>(counts.size(), bias, device);
  return *on_gpu;
}

ExpertLoads& Balance::add(ExpertLoads loads) {
  loads.last.assign(loads.counts.size(), 0);
  return layers_.emplace_back(std::move(loads));
}

void Balance::keep_steps() {
  for (ExpertLoads& layer : layers_) layer.keeps_steps = true;
}

void Balance::choose_step(std::int64_t step) {
  for (ExpertLoads& layer : layers_) {
    const auto found = layer.counts_of_steps.find(step);
    if (found == layer.counts_of_steps.end()) continue;  // this rank had no samples in it
    layer.counts = std::move(found->second);
    layer.counts_of_steps.erase(found);
  }
}

void Balance::advance(bool taken, const Sum& sum) {
  std::vector<std::string> names;
  for (const ExpertLoads& layer : layers_) names.push_back(layer.layer);
  advance(taken, names, layers_.empty() ? 0 : layers_.front().counts.size(), sum);
}

std::vector<LayerLoads> Balance::advance(bool taken, const std::vector<std::string>& model, std::size_t experts,
                                         const Sum& sum) {
  fetch_counts(layers_);
  const std::size_t each = experts + 2;  // what experts took, and for how many rows, stands behind their counts
  std::vector<std::int64_t> all(model.size() * each, 0);
  std::map<std::string_view, ExpertLoads*> here;
  for (ExpertLoads& layer : layers_) {
    const auto found = std::ranges::find(model, layer.layer);
    TRIREME_CHECK(found != model.end() && layer.counts.size() == experts, "loads of {} experts of a layer {}",
                  layer.counts.size(), layer.layer);
    here[layer.layer] = &layer;
    const auto mine = std::span(all).subspan(static_cast<std::size_t>(found - model.begin()) * each, each);
    std::ranges::copy(layer.counts, mine.begin());
    mine[experts] = layer.busy_ns, mine[experts + 1] = layer.busy_rows;
    std::ranges::fill(layer.counts, 0);
    layer.busy_ns = layer.busy_rows = 0;
  }
  if (sum) sum(all);
  std::vector<LayerLoads> loads;
  for (std::size_t i = 0; i < model.size(); ++i) {
    const auto counts = std::span(all).subspan(i * each, experts);
    const auto found = here.find(model[i]);
    ExpertLoads& layer = found != here.end() ? *found->second : elsewhere_[model[i]];
    if (found == here.end()) layer.layer = model[i], layer.policy = policy_;
    LayerLoads& report = loads.emplace_back(
        LayerLoads{.layer = layer.layer, .counts = {counts.begin(), counts.end()}, .ranks = layer.of_ranks(counts)});
    if (const std::int64_t rows = all[i * each + experts + 1]; rows > 0)
      report.row_s = 1e-9 * static_cast<double>(all[i * each + experts]) / static_cast<double>(rows);
    layer.last.assign(counts.begin(), counts.end());
    if (deciding_) layer.rebalance();
    if (!layer.next_order.empty()) {
      report.moved = layer.moving();
      report.busiest_before = layer.busiest_before, report.busiest_after = layer.busiest_after;
    }
    if (found == here.end()) {
      if (!layer.next_order.empty()) layer.moved();
      continue;
    }
    if (!taken || !layer.bias.defined()) continue;
    update_bias(std::span(layer.bias.mutable_data_ptr<float>(), counts.size()), counts, layer.rate, layer.centered);
    if (layer.on_gpu) layer.on_gpu->refresh(layer.bias);
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
