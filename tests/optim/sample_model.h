// tests/optim/sample_model.h -- a few parameters of every sort, and gradients for them that follow from a seed.
#pragma once

#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>

#include <string>
#include <vector>

#include "trireme/base/random.h"
#include "trireme/nn/param.h"

namespace trireme::optim {

/// Matrices, vectors, sizes that no vector divides, a scalar, zeros, and one that is frozen.
inline void add_sample_params(nn::Params& params) {
  params.add("embedding", {37, 24}, {nn::Init::Kind::kNormal, 0.5}, true);
  params.add("up.weight", {24, 129}, {nn::Init::Kind::kUniform, 0.7}, true);
  params.add("up.bias", {129}, {nn::Init::Kind::kNormal, 0.1}, false);
  params.add("norm", {24}, {nn::Init::Kind::kOnes}, false);
  params.add("fresh.weight", {5, 3}, {nn::Init::Kind::kZeros}, true);
  params.add("scale", {}, {nn::Init::Kind::kOnes}, false);
  params.add("frozen", {11, 3}, {nn::Init::Kind::kNormal, 1}, true).trainable = false;
}

/// The gradient of one parameter at one step, with a few zeros.
inline std::vector<double> sample_gradient(const nn::Param& param, std::uint64_t seed, int step) {
  const Random random(seed, "gradient/" + param.name + "/" + std::to_string(step));
  std::vector<double> numbers(static_cast<std::size_t>(param.master.numel()));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    // Rounded, so that float gradients and the reference's are the same numbers.
    numbers[i] = i % 10 == 7 ? 0 : static_cast<double>(random.normal_float(i));
  }
  return numbers;
}

inline at::Tensor to_tensor(std::vector<double>& numbers) {
  return at::from_blob(numbers.data(), {static_cast<std::int64_t>(numbers.size())}, at::kDouble);
}

inline void set_gradients(nn::Params& params, std::uint64_t seed, int step) {
  for (nn::Param& param : params) {
    std::vector<double> numbers = sample_gradient(param, seed, step);
    nn::add_gradient(param, to_tensor(numbers));
  }
}

inline std::vector<double> to_numbers(const at::Tensor& tensor) {
  const at::Tensor wide = tensor.to(at::kDouble).contiguous();
  return {wide.const_data_ptr<double>(), wide.const_data_ptr<double>() + wide.numel()};
}

}  // namespace trireme::optim
