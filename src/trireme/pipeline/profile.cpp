#include "trireme/pipeline/profile.h"

#include <algorithm>
#include <chrono>

#include "trireme/base/error.h"

namespace trireme::pipeline {
namespace {

using Clock = std::chrono::steady_clock;

double bytes_of(const nn::Tensors& tensors) {
  double bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += tensor.defined() ? static_cast<double>(tensor.nbytes()) : 0.0;
  return bytes;
}

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
      took[entry] += std::chrono::duration<double>(Clock::now() - begin).count();
    };
    for (std::size_t i = 0; i < count; ++i) {
      timed(i, [&] { tensors = model.layers[i].layer->forward(std::move(tensors), data.context, &tape); });
      profile[i].activation_bytes = bytes_of(tensors);
    }
    tensors.assign(1, at::Tensor());
    for (std::size_t i = count; i > 0; --i) {
      timed(i - 1, [&] { tensors = model.layers[i - 1].layer->backward(std::move(tensors), data.context, tape); });
    }
    for (std::size_t i = 0; i < count && repeat >= 0; ++i) seconds[i].push_back(took[i]);
  }
  nn::forget_gradients(model.params);
  for (std::size_t i = 0; i < count; ++i) profile[i].seconds = median(seconds[i]);
  return profile;
}

std::vector<double> seconds_of(std::span<const EntryProfile> profile) {
  std::vector<double> seconds;
  for (const EntryProfile& entry : profile) seconds.push_back(entry.seconds);
  return seconds;
}

}  // namespace trireme::pipeline
