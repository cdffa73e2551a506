// optim/matrix_optimizer.h -- an optimizer that makes the update of a matrix from all of it; AdamW for the rest.
//
// A step: each rank prepares its parts of matrices (scaled gradients, or momentum), owners collect whole ones and make
// directions of them, which go back to everybody's parts; then w <- w - rate (direction + decay w). The mathematics is
// that of one rank wherever matrices lie.
// Depends on: base, spec, kernels, nn.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trireme/optim/optimizer.h"

namespace trireme::optim {

class MatrixOptimizer : public Optimizer {
 public:
  void placements_changed() final {
    if (owners_ != nullptr) owners_->placements_changed();
  }

 protected:
  /// Moments of these names: `matrix` says which of them matrices have; the others have all of them.
  MatrixOptimizer(OptimizerParts parts, std::vector<std::string> moment_names, std::vector<bool> matrix);

  std::size_t matrices() const { return matrix_slots_.size(); }
  Slot& slot_of(std::size_t matrix) { return slots()[matrix_slots_[matrix]]; }
  /// Whether this rank makes its directions.
  bool owns(std::size_t matrix) const { return owners_ == nullptr || owners_->owns(matrix); }
  /// State that the owner of each matrix keeps: zeros of `shape_of` its whole shape; undefined for others'. Registers
  /// it for checkpoints as "optim/NAME/PARAMETER".
  using ShapeOf = layout::Shape (*)(const layout::Shape& matrix);
  std::vector<at::Tensor>& add_owned(std::string name, ShapeOf shape_of);

  /// Of each matrix: prepare() on every rank, make() by owners, scattered back: as it lies here. Of one without a
  /// gradient (Param::unused) neither, and zeros.
  std::vector<at::Tensor> directions(const StepOptions& options);
  /// AdamW by the first two moments for all slots that are no matrices.
  void update_rest(const StepOptions& options);
  void apply(std::size_t matrix, const at::Tensor& direction, const StepOptions& options);

 private:
  void update(std::span<Slot> slots, const StepOptions& options) final;
  bool updates_together() const final { return true; }
  void add_own_state(nn::State& state) final;
  std::int64_t own_bytes() const final;

  /// What of this rank's part goes to the owner; `gradient` is scaled, and the caller's to overwrite.
  virtual at::Tensor prepare(Slot& slot, at::Tensor gradient) = 0;
  /// In place: directions of the matrices that are defined, in their whole shapes.
  virtual void make(std::span<at::Tensor> wholes) = 0;
  /// The whole step; may be another order of the above.
  virtual void take(const StepOptions& options);

  void make_used(std::vector<at::Tensor>& wholes);

  struct Owned {
    std::string name;
    std::vector<at::Tensor> tensors;
    std::vector<layout::Placement> placements;
  };
  std::unique_ptr<MatrixOwners> owners_;
  std::vector<std::size_t> matrix_slots_;
  std::vector<std::unique_ptr<Owned>> owned_;
};

/// A matrix, or a stack of them: [.., rows, columns].
layout::Shape same_shape(const layout::Shape& matrix);
layout::Shape rows_squared(const layout::Shape& matrix);     ///< [.., rows, rows]
layout::Shape columns_squared(const layout::Shape& matrix);  ///< [.., columns, columns]

}  // namespace trireme::optim
