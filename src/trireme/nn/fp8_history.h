// nn/fp8_history.h -- delayed scales of FP8 GEMMs: from the largest numbers of the steps before.
//
// For each matrix with such GEMMs three tensors are followed: what is multiplied with it, it itself, and the
// gradients that come back. While a step runs their largest numbers are noted on the GPU; advance() turns them into the
// next step's scales, all of them in one launch. In the first step scales come from the numbers as they are. Ranks that
// hold copies or parts of the same matrices take the largest of all of them, and so have the scales of one rank.
// Depends on: kernels.
#pragma once

#include <functional>

#include "trireme/nn/param.h"

namespace trireme::nn {

class State;

class Fp8History {
 public:
  enum Row : std::int64_t { kActivation, kWeight, kGradient, kRows };
  /// The weights whose FP8 GEMMs have delayed scales get their rows; `params` are borrowed.
  Fp8History(Params& params, std::int64_t length, std::int64_t margin, at::Device device);

  bool empty() const { return followed_.empty(); }
  /// Each tensor's largest number of the step, float [tensors], becomes the largest of all ranks', in place.
  using Agree = std::function<void(at::Tensor& largest)>;
  /// After a step, whether it was taken or not. With `agree` on all ranks together, which follow the same matrices in
  /// the same order.
  void advance(const Agree& agree = {});
  /// "fp8/scales": the table, and how many steps it has seen.
  void add_state(State& state);
  const at::Tensor& table() const { return table_; }

 private:
  void tell();

  std::vector<Param*> followed_;
  std::int64_t length_, margin_;
  std::int64_t steps_ = 0;
  at::Tensor table_;  // float [tensors, 3 + length]: kernels/fp8.h
};

}  // namespace trireme::nn
