// nn/param.h -- a parameter: one name and shape for the whole run, this rank's part of it, and its gradient.
//
// Layers compute with `value`, in the run's compute type. The optimizer updates `master`, in float (double), which is
// the same tensor where the types agree. Gradients are summed over microbatches in the master's type, or in the compute
// type where the recipe says so. A parameter without a master is updated in its compute type, stochastically rounded.
// Depends on: base, layout, spec (which precisions there are).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/layout/placement.h"
#include "trireme/spec/optim.h"

namespace trireme::nn {

/// How a parameter's numbers start, by global index, so that no split changes them.
struct Init {
  enum class Kind { kZeros, kOnes, kNormal, kUniform };
  Kind kind = Kind::kZeros;
  double scale = 0;  ///< standard deviation, or the bound of the uniform draw
};

struct Param {
  std::string name;
  layout::Placement placement;
  Init init;
  bool decay = true;                                      ///< weight decay applies: matrices yes, biases and norms no
  bool trainable = true;                                  ///< a frozen one has no gradient
  bool has_master = true;                                 ///< false: master and gradient have the compute type
  bool narrow_gradient = false;                           ///< beside a master too, the gradient has the compute type
  spec::GemmPrecision gemm = spec::GemmPrecision::kSame;  ///< of a matrix: FP8 or as it is
  double rate = 1;                                        ///< factor on the learning rate: muP
  int uses = 0;  ///< layers that hold it: 2 for a tied embedding, and as many gradient contributions a microbatch
  /// Axes of copies that all compute the whole gradient, such as tp for a norm whose input every rank has.
  layout::AxisNames equal_axes = {};
  /// The stretches of its memory that this rank counts in norms over all ranks; unset: everything.
  std::optional<std::vector<layout::Range>> counted = std::nullopt;

  at::Tensor value, master;
  at::Tensor gradient;         ///< undefined until the first contribution
  bool gradient_empty = true;  ///< what `gradient` holds is old: the next contribution overwrites it
  bool unused = false;         ///< no layer of any rank gave it a gradient in this step: updates leave it as it is
  std::int64_t version = 0;    ///< raised by each update; derived forms are cached by it
  /// Delayed 8-bit scales of activations, the weight and gradients: three rows of an Fp8History's table.
  at::Tensor scales = {};
  bool scales_known = false;  ///< a step has gone by
  /// Where gradients live in memory of somebody else's, which may come and go: asked when there is none.
  std::function<at::Tensor()> provide_gradient = nullptr;

  layout::Index elements() const { return layout::elements(placement.shape); }
};

/// The parameters of a model, in the order its layers asked for them. Addresses stay.
class Params {
 public:
  /// A parameter that this rank holds whole. Names are unique: an InternalError otherwise.
  Param& add(std::string name, layout::Shape shape, Init init, bool decay);
  Param& add(layout::Placement placement, Init init, bool decay);
  /// A ConfigError naming close ones when there is none of this name.
  Param& at(std::string_view name);
  const Param* find(std::string_view name) const;

  auto begin() { return params_.begin(); }
  auto end() { return params_.end(); }
  auto begin() const { return params_.begin(); }
  auto end() const { return params_.end(); }
  std::size_t size() const { return params_.size(); }
  /// Of the whole model, each parameter once.
  std::int64_t elements() const;

 private:
  std::deque<Param> params_;
};

using spec::Precision;
at::ScalarType compute_type(Precision precision);
at::ScalarType master_type(Precision precision);
at::ScalarType master_type(Precision precision, const Param& param);
at::ScalarType gradient_type(Precision precision, const Param& param);

/// Allocates value and master on the device where they have no memory yet, and draws the starting numbers from (seed,
/// name, global index).
void initialise(Params& params, Precision precision, std::uint64_t seed, at::Device device = at::kCPU);
/// Allocates value and master on the device where they have no memory yet, contents undefined but for padding, which is
/// zero: for weights that are read from a file.
void allocate(Params& params, Precision precision, at::Device device = at::kCPU);
/// This rank's part of a tensor that lies here whole, and publishes it.
void fill_from(Param& param, const at::Tensor& whole);
/// What its memory looks like: the box's shape where this rank holds whole rows of it, flat otherwise.
std::vector<std::int64_t> local_shape(const layout::Placement& placement);
/// After a change of the master: rounds it into the value.
void publish(Param& param);

/// The buffer that a contribution is added to: allocated, and zeroed where it held old numbers.
at::Tensor& gradient_to_add_to(Param& param);
/// The same for what overwrites it where it was old: whether it was, is to be asked before.
at::Tensor& gradient_to_write(Param& param);
/// gradient += delta, any type.
void add_gradient(Param& param, const at::Tensor& delta);
/// gradient += dy^T x: a linear layer's weight gradient from dy [n, out] and x [n, in]. With `bias` its gradient += the
/// sum of dy's rows, in the same pass where that is faster.
void add_weight_grad(Param& weight, const at::Tensor& dy, const at::Tensor& x, Param* bias = nullptr);
/// gradient += the sum of dy's rows: a bias's.
void add_row_sum_gradient(Param& param, const at::Tensor& dy);
/// Marks all gradients as old. Costs nothing: the next contribution overwrites.
void zero_grad(Params& params);

}  // namespace trireme::nn
