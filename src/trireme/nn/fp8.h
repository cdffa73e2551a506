// nn/fp8.h -- FP8 GEMMs of layers: the operands of a linear layer, and delayed scales from the amax of steps before.
//
// Delayed scales: for each matrix with such GEMMs three tensors are followed: what is multiplied with it, it itself,
// and the gradients that come back. While a step runs their largest numbers are noted on the GPU; advance() turns them
// into the next step's scales, all of them in one launch. In the first step scales come from the numbers as they are.
// Ranks that hold copies or parts of the same matrices take the largest of all of them, and so have the scales of one
// rank. Each keeps the rows of all matrices, of stages that it does not run too: all agree in one call, and any rank's
// table is the checkpoint's.
// Depends on: kernels.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "trireme/kernels/fp8.h"
#include "trireme/nn/param.h"

namespace trireme::nn {

class State;

class Fp8History {
 public:
  enum Row : std::int64_t { kActivation, kWeight, kGradient, kRows };
  /// The weights whose FP8 GEMMs have delayed scales get their rows; `params` are borrowed.
  Fp8History(Params& params, std::int64_t length, std::int64_t margin, at::Device device);
  /// `names`: of all such weights, whoever holds them; those of `params` are among them.
  Fp8History(Params& params, std::vector<std::string> names, std::int64_t length, std::int64_t margin,
             at::Device device);
  /// Those of `params` that have delayed scales.
  static std::vector<std::string> names_of(const Params& params);

  bool empty() const { return names_.empty(); }
  /// Each tensor's largest number of the step, float [tensors], becomes the largest of all ranks', in place.
  using Agree = std::function<void(at::Tensor& largest)>;
  /// After a step, whether it was taken or not. With `agree` on all ranks together, which follow the same matrices in
  /// the same order.
  void advance(const Agree& agree = {});
  // Where steps overlap, somebody else keeps what each of them has met and takes (pipeline/scale_versions.h).
  at::Tensor largest() const { return table_.select(1, 0); }  ///< of the step, float [tensors]
  at::Tensor scales() const { return table_.select(1, 1); }
  bool known() const { return steps_ > 0; }
  void set_known(bool known);
  /// Ranks that advanced by themselves tell the others of their own matrices. On all ranks together.
  void share(const Agree& agree);
  /// "fp8/scales": the table, and how many steps it has seen.
  void add_state(State& state);
  const at::Tensor& table() const { return table_; }

 private:
  std::vector<std::string> names_;  // of the rows, three each
  std::vector<Param*> here_;        // of them, those of this rank
  std::int64_t length_, margin_;
  std::int64_t steps_ = 0;
  at::Tensor table_;  // float [tensors, 3 + length]: kernels/fp8.h
};

// The FP8 operands of a linear layer's GEMMs: which has which format and scale, and what is cached.

/// Whether this parameter's GEMMs are FP8; a ConfigError where so many rows do not fit them.
bool in_fp8(const Param& weight, std::int64_t rows);

/// What takes part in the GEMMs with a weight; the rows of an Fp8History.
enum class Fp8Role : std::uint8_t { kActivation, kWeight, kGradient };
struct Fp8Quantise {
  Fp8Role role;
  bool rows = false, columns = false;  ///< as it is, and its transpose
  bool note = true;                    ///< its largest number counts for the scales of later steps: training
};
kernels::Fp8Pair quantise(const Param& weight, const at::Tensor& x, const Fp8Quantise& how,
                          const kernels::Fp8Pair* into = nullptr);

/// f(gate) * up as the activation of the GEMMs with `weight`, without its being written first. Only where
/// quantises_gated(): delayed scales that are known.
bool quantises_gated(const Param& weight);
kernels::Fp8Pair quantise_gated(const Param& weight, const at::Tensor& gate, const at::Tensor& up,
                                kernels::Activation kind, const Fp8Quantise& how);
/// And backward: dy of f(gate) * up, whose gradients enter the GEMMs with `in`, and which itself enters those with
/// `out`. Only where quantises_gated() of both.
kernels::Fp8GatedBackward quantise_gated_backward(const Param& in, const Param& out, const at::Tensor& dy,
                                                  const at::Tensor& gate, const at::Tensor& up,
                                                  kernels::Activation kind);

/// A weight quantised once for all GEMMs between two updates. The memory stays where it is: CUDA graphs write and read
/// it there.
class Fp8WeightCache {
 public:
  struct Use {
    bool current = false;  ///< it is the parameter's own value, in training; anything else is quantised each time
    bool training = false;
    bool forward = false;  ///< the first in a step, which quantises again at every replay of a CUDA graph
  };
  const kernels::Fp8Pair& get(const Param& weight, const at::Tensor& value, const Use& use);

 private:
  kernels::Fp8Pair pair_;
  std::int64_t version_ = -1;
};

}  // namespace trireme::nn
