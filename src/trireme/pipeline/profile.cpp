#include "trireme/pipeline/profile.h"

#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>

#include "trireme/base/error.h"
#include "trireme/base/stopwatch.h"
#include "trireme/schedule/builders.h"

namespace trireme::pipeline {
namespace {

using Clock = std::chrono::steady_clock;

double median(std::vector<double>& numbers) {
  const auto middle = numbers.begin() + static_cast<std::ptrdiff_t>(numbers.size() / 2);
  std::nth_element(numbers.begin(), middle, numbers.end());
  return *middle;
}

}  // namespace

std::vector<EntryProfile> profile_entries(models::Model& model, const std::function<Micro()>& micro, int repeats) {
  TRIREME_CHECK(repeats > 0, "{} repeats measure nothing", repeats);
  const std::size_t count = model.layers.size();
  std::vector<EntryProfile> profile(count);
  std::vector<std::vector<double>> seconds(count);
  for (std::size_t i = 0; i < count; ++i) {
    for (const nn::Param* param : model.layers[i].params) {
      profile[i].weight_bytes += static_cast<double>(param->value.nbytes());
    }
  }
  for (int repeat = -1; repeat < repeats; ++repeat) {
    Micro data = micro();
    nn::Tape tape;
    nn::Tensors tensors = data.inputs;
    std::vector<double> took(count, 0);
    const auto timed = [&](std::size_t entry, const auto& body) {
      const auto begin = Clock::now();
      body();
      took[entry] += seconds_since(begin);
    };
    for (std::size_t i = 0; i < count; ++i) {
      timed(i, [&] { tensors = model.layers[i].layer->forward(std::move(tensors), data.context, &tape); });
      profile[i].activation_bytes = static_cast<double>(bytes_of(tensors));
    }
    tensors.assign(1, at::Tensor());
    for (std::size_t i = count; i > 0; --i) {
      timed(i - 1, [&] { tensors = model.layers[i - 1].layer->backward(std::move(tensors), data.context, tape); });
    }
    for (std::size_t i = 0; i < count && repeat >= 0; ++i) seconds[i].push_back(took[i]);
  }
  nn::zero_grad(model.params);
  for (std::size_t i = 0; i < count; ++i) profile[i].seconds = median(seconds[i]);
  return profile;
}

std::vector<EntryProfile> profile_chain(const spec::ModelShape& shape, const models::BuildOptions& build,
                                        nn::Precision precision, const std::function<Micro()>& micro, int repeats) {
  TRIREME_CHECK(repeats > 0, "{} repeats measure nothing", repeats);
  const auto count = static_cast<int>(chain_names(shape, build).size());
  // A pipeline with one entry a stage: it says what comes to each.
  const schedule::Schedule table = schedule::build("1f1b", {.ranks = count, .micros = 1});
  Split split;
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) split.push_back({i, i + 1});
  const auto made_up = [](const std::vector<BoundaryTensor>& boundaries, bool gradients) {
    nn::Tensors tensors;
    for (const BoundaryTensor& boundary : boundaries) {
      if (gradients && !boundary.has_gradient()) {
        tensors.emplace_back();
      } else if (boundary.has_gradient()) {
        tensors.push_back(at::randn(boundary.sizes, boundary.options()));
      } else {
        tensors.push_back(at::zeros(boundary.sizes, boundary.options()));
      }
    }
    return tensors;
  };
  std::vector<EntryProfile> profile;
  for (int i = 0; i < count; ++i) {
    Stage stage = build_stage(
        {.shape = shape, .table = table, .split = split, .precision = precision, .rank = i, .build = build});
    nn::initialise(stage.model->params, precision, 1);
    nn::Layer& layer = *stage.model->layers.front().layer;
    EntryProfile& entry = profile.emplace_back();
    for (const nn::Param& param : stage.model->params) entry.weight_bytes += static_cast<double>(param.value.nbytes());
    std::vector<double> seconds;
    for (int repeat = -1; repeat < repeats; ++repeat) {
      Micro data = micro();
      nn::Tape tape;
      nn::Tensors inputs = i == 0 ? data.inputs : made_up(stage.boundaries(i, data), false);
      nn::Tensors gradients(1);
      if (i + 1 < count) gradients = made_up(stage.boundaries(i + 1, data), true);
      const auto begin = Clock::now();
      const nn::Tensors outputs = layer.forward(std::move(inputs), data.context, &tape);
      layer.backward(std::move(gradients), data.context, tape);
      if (repeat >= 0) seconds.push_back(seconds_since(begin));
      entry.activation_bytes = static_cast<double>(bytes_of(outputs));
    }
    entry.seconds = median(seconds);
  }
  return profile;
}

std::vector<double> seconds_of(std::span<const EntryProfile> profile) {
  std::vector<double> seconds;
  for (const EntryProfile& entry : profile) seconds.push_back(entry.seconds);
  return seconds;
}

}  // namespace trireme::pipeline
