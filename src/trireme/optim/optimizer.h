// optim/optimizer.h -- an optimizer: what it keeps for every trainable parameter, and one step with it.
//
//   auto optimizer = make_optimizer(recipe.optim, params);
//   optimizer->step({.learning_rate = now.learning_rate, .gradient_scale = scale});
//
// Steps run kernels/update.h: each parameter's master, moments and compute copy are read and written once. Moments have
// the master's placement and the type that the recipe says (optim.state_dtype). Whether a step is taken at all, and
// clipping, are decided before: update.h. To add an optimizer: its kind in spec/optim.h, one file with a class and its
// make_ function, one line in the table of optimizer.cpp; the tests in tests/optim then run it through everything that
// holds for all.
// Depends on: base, spec, kernels, nn.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trireme/kernels/device_scalars.h"
#include "trireme/kernels/update.h"
#include "trireme/nn/param.h"
#include "trireme/spec/optim.h"

namespace trireme::nn {
class State;
}

namespace trireme::optim {

/// What a rank cannot know alone. Left empty, it holds every parameter whole, and all of them.
struct AcrossRanks {
  /// Sums of squares over a rank's part of each trainable parameter become those over the whole parameter, in place.
  /// Number i belongs to trainable parameter i modulo their count. Every rank calls it equally often.
  std::function<void(std::span<double> squares)> sum_parts;
  /// A number over this rank's parameters becomes that over all parameters: the other pipeline stages'.
  std::function<double(double sum)> sum_stages;
};

/// Whole matrices for updates that need them: each lies on one of the ranks that hold parts of it, its owner, so that a
/// step's work is shared out (the distributed form of Muon and Shampoo). Without one a rank holds every matrix whole.
class MatrixOwners {
 public:
  virtual ~MatrixOwners() = default;
  /// Matrix i is that of the i-th trainable parameter that the optimizer treats as a matrix.
  virtual bool owns(std::size_t matrix) const = 0;
  /// From this rank's parts, all of one type, to the matrices that it owns, in their whole shapes; undefined tensors
  /// for the others. On all ranks together.
  virtual std::vector<at::Tensor> collect(std::span<const at::Tensor> parts) = 0;
  /// And back: what owners made goes into every rank's parts. `wholes` as collect() gave them.
  virtual void distribute(std::span<const at::Tensor> wholes, std::span<at::Tensor> parts) = 0;
  /// What state of this shape an owner keeps for matrix i: whole there, nothing elsewhere.
  virtual layout::Placement place(std::size_t matrix, std::string name, layout::Shape shape) const = 0;
  /// Parameters' placements say that ranks hold other elements of them now. On all ranks together.
  virtual void placements_changed() = 0;
};

struct StepOptions {
  double learning_rate = 0;
  double gradient_scale = 1;  ///< gradients are multiplied by it first: clipping, loss scale, 1 / tokens
  const AcrossRanks* across = nullptr;
  bool keep_gradients = false;  ///< the step may be taken back and taken again: no memory of theirs is overwritten
  /// Told of each parameter when its update is over, by optimizers that do one after the other (adam, adamw): what
  /// is done may then be read while the rest is updated. Null: nobody asks.
  std::function<void(const nn::Param&)> updated = nullptr;
  /// On a GPU: learning rate, factor and corrections are read there, one slot a trainable parameter; null: as given.
  const kernels::DeviceScalars* device_scalars = nullptr;
};

/// How Adam treats its moments from now on, where what ranks exchange is the momentum (1-bit Adam, 0/1 Adam).
struct AdamPhase {
  std::int64_t variance_updates = 0;  ///< that v has had, for the correction of its bias; 0: one a step
  bool freeze_variance = false;
  bool gradient_is_momentum = false;  ///< gradients are the new first moments; nothing is clipped
  bool operator==(const AdamPhase&) const = default;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Updates every trainable parameter and marks its gradient as old. When one has no gradient, a ConfigError names it
  /// and nothing has changed.
  void step(const StepOptions& options);
  /// The halves of step(), for an update that runs beside other work. The first takes the gradients as they are now:
  /// parameters may then be given other memory for the next. The second updates, on any thread, while nobody else
  /// touches master weights, values and moments; it has to be over before the next begin_step().
  void begin_step();
  void finish_step(const StepOptions& options);
  /// In place of finish_step() where a CUDA graph that captured it was replayed.
  void finish_captured();
  /// Steps that were begun and turned out not to be taken.
  void undo_steps(std::int64_t steps) { steps_ -= steps; }

  /// Whether finish_step() only goes through each tensor by itself, so that a CUDA graph can capture it (PyTorch's
  /// "capturable"), with the step's numbers in device memory.
  bool is_capturable() const;
  /// For DeviceScalars: of each trainable parameter, and of a step that is the next.
  std::vector<kernels::DeviceScalars::Slot> device_scalar_slots() const;
  kernels::DeviceScalars::Step device_scalar_step(double learning_rate) const;
  /// Steps taken so far.
  std::int64_t steps() const { return steps_; }
  const spec::OptimConfig& config() const { return config_; }
  nn::Params& params() { return params_; }

  void set_adam_phase(const AdamPhase& phase) { adam_phase_ = phase; }
  const AdamPhase& adam_phase() const { return adam_phase_; }

  /// "optim/steps", and "optim/MOMENT/PARAMETER" for every moment of every trainable parameter. `place`: where moments
  /// lie, where that is not as their parameter does; null: as it does.
  using Place = std::function<layout::Placement(const nn::Param&)>;
  void add_state(nn::State& state, const Place& place = nullptr);
  /// Where weights to evaluate are others than those that are trained (schedule-free-adamw): this rank's part of them,
  /// as `param`, one of params(), lies. Undefined: they are the same.
  virtual at::Tensor evaluation_weights(const nn::Param& /*param*/) const { return {}; }
  bool has_evaluation_weights() const { return config_.kind == spec::OptimizerKind::kScheduleFree; }
  /// Parameters and moments have changed places, and placements say where they are. On all ranks together.
  virtual void placements_changed() {}
  /// Of all moments.
  std::int64_t bytes() const;

 protected:
  /// A trainable parameter and what is kept for it.
  struct Slot {
    nn::Param& param;
    double rate = 1, weight_decay = 0;
    bool adapts = true;               ///< LAMB and LARS give it a rate of its own: matrices yes, biases and norms no
    std::vector<at::Tensor> moments;  ///< undefined where it has none of this name
    at::Tensor gradient = {};         ///< of the step under way
  };

  /// `params` are borrowed, and allocated already. Moments start at zero.
  Optimizer(const spec::OptimConfig& config, nn::Params& params, std::vector<std::string> moment_names);
  /// `keeps`: whether a parameter has the moment of this number; null: each has all.
  using Keeps = std::function<bool(const nn::Param& param, std::size_t moment)>;
  Optimizer(const spec::OptimConfig& config, nn::Params& params, std::vector<std::string> moment_names,
            const Keeps& keeps);
  std::span<Slot> slots() { return slots_; }
  std::span<const Slot> slots() const { return slots_; }

  /// What the kernels take.
  kernels::UpdateTensors tensors(Slot& slot, const StepOptions& options);
  /// Not 0 where something that is kept is bf16 and stochastically rounded in this step. A rank's part of a parameter
  /// that ZeRO cuts has the chances of the whole.
  std::uint64_t rounding_of(const Slot& slot) const;
  /// Likewise of the weight alone.
  std::uint64_t weight_rounding(const Slot& slot) const;

 private:
  /// steps() already counts the one that is asked for.
  virtual void update(std::span<Slot> slots, const StepOptions& options) = 0;
  /// Whether update() takes all slots at once and leaves out the unused ones itself, since ranks exchange all of them.
  virtual bool updates_together() const { return false; }
  /// State beside moments.
  virtual void add_own_state(nn::State& /*state*/) {}
  virtual std::int64_t own_bytes() const { return 0; }

  spec::OptimConfig config_;
  nn::Params& params_;
  std::vector<std::string> moment_names_;
  std::vector<Slot> slots_;
  at::Tensor no_copy_;  // undefined: where the master itself is computed with
  AdamPhase adam_phase_;
  std::int64_t steps_ = 0;
};

/// The one that the recipe names. ConfigError when the recipe's values do not go together. `owners`: of matrices that
/// ranks hold parts or copies of; null: this rank holds all of them whole.
std::unique_ptr<Optimizer> make_optimizer(const spec::OptimConfig& config, nn::Params& params,
                                          std::unique_ptr<MatrixOwners> owners = nullptr);
/// The trainable parameters that it treats as matrices.
std::vector<nn::Param*> matrices_of(const spec::OptimConfig& config, nn::Params& params);

/// What a make function takes.
struct OptimizerParts {
  const spec::OptimConfig& config;
  nn::Params& params;
  std::unique_ptr<MatrixOwners> owners;
};
// One in each file.
std::unique_ptr<Optimizer> make_sgd(OptimizerParts parts);
std::unique_ptr<Optimizer> make_adagrad(OptimizerParts parts);
std::unique_ptr<Optimizer> make_adam(OptimizerParts parts);  // and AdamW
std::unique_ptr<Optimizer> make_lamb(OptimizerParts parts);
std::unique_ptr<Optimizer> make_lars(OptimizerParts parts);
std::unique_ptr<Optimizer> make_lion(OptimizerParts parts);
std::unique_ptr<Optimizer> make_schedule_free(OptimizerParts parts);
std::unique_ptr<Optimizer> make_muon(OptimizerParts parts);
std::unique_ptr<Optimizer> make_adafactor(OptimizerParts parts);
std::unique_ptr<Optimizer> make_shampoo(OptimizerParts parts);
std::unique_ptr<Optimizer> make_soap(OptimizerParts parts);

}  // namespace trireme::optim
