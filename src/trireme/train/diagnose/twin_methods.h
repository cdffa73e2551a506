// train/diagnose/twin_methods.h -- how a twin sums the gradients of copies: each method of compressed gradients as its
// paper has it.
//
// Depends on: parallel (draws that both sides must share), spec.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "trireme/parallel/bucket_reducer.h"
#include "trireme/spec/recipe.h"

namespace trireme::train {

/// One part of a parameter on all copies: rows x columns each.
struct TwinInput {
  const parallel::CompressedPart& part;
  std::vector<at::Tensor> copies;
};

/// Keeps residuals, momenta and factors, and sums. Without the memory that skipped steps ask for: twins skip none.
class TwinMethods {
 public:
  TwinMethods(const spec::CompressConfig& config, std::uint64_t seed) : config_(config), seed_(seed) {}

  /// The compressed sums of all parts in step `step`, in the order given.
  std::vector<at::Tensor> sum(const std::vector<TwinInput>& inputs, std::int64_t step);
  /// Of a dense step, likewise.
  std::vector<at::Tensor> sum_dense(const std::vector<TwinInput>& inputs);
  /// Of what goes dense in every step: momentum of DGC and CSC is theirs too.
  at::Tensor sum_dense(const std::string& name, const std::vector<at::Tensor>& copies);
  /// 1-bit Adam's mean: signs and scales of shares, at both ends.
  at::Tensor mean_of_signs(const std::string& key, const std::vector<at::Tensor>& copies, const at::Tensor& variance);

 private:
  at::Tensor onebit_sgd(const TwinInput& input);
  at::Tensor qsgd(const TwinInput& input, std::int64_t step);
  at::Tensor powersgd(const TwinInput& input, std::int64_t step);
  at::Tensor powersgd_alternating(const TwinInput& input, std::int64_t step);
  at::Tensor dgc(const TwinInput& input, std::int64_t step);
  std::vector<at::Tensor> csc(const std::vector<TwinInput>& inputs);
  double momentum() const { return config_.momentum.value_or(0); }
  /// What is kept under a name; zeros like `like` at first.
  at::Tensor& kept(const std::string& name, const at::Tensor& like);

  const spec::CompressConfig& config_;
  std::uint64_t seed_;
  std::map<std::string, at::Tensor> memory_;
};

}  // namespace trireme::train
