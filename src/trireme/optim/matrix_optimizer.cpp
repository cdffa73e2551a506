#include "trireme/optim/matrix_optimizer.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include "trireme/base/error.h"
#include "trireme/nn/state.h"
#include "trireme/optim/elementwise.h"

namespace trireme::optim {

MatrixOptimizer::MatrixOptimizer(OptimizerParts parts, std::vector<std::string> moment_names, std::vector<bool> matrix)
    : Optimizer(parts.config, parts.params, std::move(moment_names),
                [&](const nn::Param& param, std::size_t moment) {
                  return matrix[moment] ||
                         !spec::treats_as_matrix(parts.config, param.name, param.placement.shape.size());
                }),
      owners_(std::move(parts.owners)) {
  for (std::size_t i = 0; i < slots().size(); ++i) {
    const nn::Param& param = slots()[i].param;
    if (!spec::treats_as_matrix(config(), param.name, param.placement.shape.size())) continue;
    matrix_slots_.push_back(i);
    TRIREME_CHECK(owners_ != nullptr || param.master.numel() == param.elements(),
                  "{} is a part of a matrix, and nobody says who owns it", param.name);
  }
}

std::vector<at::Tensor>& MatrixOptimizer::add_owned(std::string name, ShapeOf shape_of) {
  auto owned = std::make_unique<Owned>();
  owned->name = std::move(name);
  for (std::size_t i = 0; i < matrices(); ++i) {
    const nn::Param& param = slot_of(i).param;
    const layout::Shape shape = shape_of(param.placement.shape);
    const std::string key = fmt::format("optim/{}/{}", owned->name, param.name);
    if (owners_ != nullptr) {
      owned->placements.push_back(owners_->place(i, key, shape));
    } else {
      layout::Box whole{std::vector<layout::Index>(shape.size(), 0), shape};
      owned->placements.push_back({.name = key, .shape = shape, .pieces = {{.box = std::move(whole)}}});
    }
    owned->tensors.push_back(owns(i) ? at::zeros(shape, param.master.options().dtype(update_type(param.master)))
                                     : at::Tensor());
  }
  return owned_.emplace_back(std::move(owned))->tensors;
}

void MatrixOptimizer::add_own_state(nn::State& state) {
  for (const auto& owned : owned_) {
    for (std::size_t i = 0; i < matrices(); ++i) {
      const at::Tensor &tensor = owned->tensors[i], &master = slot_of(i).param.master;
      const at::TensorOptions options = master.options().dtype(update_type(master));
      state.add(owned->placements[i].name, tensor.defined() ? tensor : at::empty({0}, options), owned->placements[i]);
    }
  }
}

std::int64_t MatrixOptimizer::own_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& owned : owned_) {
    for (const at::Tensor& tensor : owned->tensors)
      bytes += tensor.defined() ? static_cast<std::int64_t>(tensor.nbytes()) : 0;
  }
  return bytes;
}

std::vector<at::Tensor> MatrixOptimizer::directions(const StepOptions& options) {
  std::vector<at::Tensor> parts;
  for (std::size_t i = 0; i < matrices(); ++i) {
    Slot& slot = slot_of(i);
    at::Tensor gradient =
        slot.param.unused
            ? at::zeros_like(slot.param.master, slot.param.master.options().dtype(update_type(slot.param.master)))
            : scaled_gradient(slot.gradient, slot.param.master, options.gradient_scale);
    parts.push_back(slot.param.unused ? gradient : prepare(slot, gradient));
  }
  if (owners_ != nullptr) {
    std::vector<at::Tensor> wholes = owners_->collect(parts);
    make_used(wholes);
    owners_->distribute(wholes, parts);
    return parts;
  }
  for (std::size_t i = 0; i < matrices(); ++i) parts[i] = parts[i].view(slot_of(i).param.placement.shape);
  make_used(parts);
  return parts;
}

void MatrixOptimizer::make_used(std::vector<at::Tensor>& wholes) {
  std::vector<at::Tensor> unused(wholes.size());
  for (std::size_t i = 0; i < matrices(); ++i) {
    if (slot_of(i).param.unused) std::swap(unused[i], wholes[i]);
  }
  make(wholes);
  for (std::size_t i = 0; i < matrices(); ++i) {
    if (unused[i].defined()) std::swap(unused[i], wholes[i]);
  }
}

void MatrixOptimizer::update_rest(const StepOptions& options) {
  std::vector<kernels::AdamWUpdate> updates;
  std::size_t matrix = 0;
  for (std::size_t i = 0; i < slots().size(); ++i) {
    if (matrix < matrices() && matrix_slots_[matrix] == i) {
      ++matrix;
      continue;
    }
    Slot& slot = slots()[i];
    if (slot.param.unused) continue;
    updates.push_back({.tensors = tensors(slot, options),
                       .m = slot.moments[0],
                       .v = slot.moments[1],
                       .options = {.learning_rate = options.learning_rate * slot.rate,
                                   .weight_decay = slot.weight_decay,
                                   .beta1 = config().beta1,
                                   .beta2 = config().beta2,
                                   .epsilon = spec::epsilon_of(config()),
                                   .step = steps(),
                                   .rounding = rounding_of(slot)}});
  }
  kernels::adamw_updates(updates);
}

void MatrixOptimizer::apply(std::size_t matrix, const at::Tensor& direction, const StepOptions& options) {
  Slot& slot = slot_of(matrix);
  if (slot.param.unused) return;
  apply_decoupled(slot.param, direction, options.learning_rate * slot.rate, slot.weight_decay, weight_rounding(slot));
}

void MatrixOptimizer::update(std::span<Slot> /*slots*/, const StepOptions& options) { take(options); }

void MatrixOptimizer::take(const StepOptions& options) {
  const std::vector<at::Tensor> made = directions(options);
  for (std::size_t i = 0; i < matrices(); ++i) apply(i, made[i], options);
  update_rest(options);
}

layout::Shape same_shape(const layout::Shape& matrix) { return matrix; }

layout::Shape rows_squared(const layout::Shape& matrix) {
  layout::Shape shape = matrix;
  shape.back() = shape[shape.size() - 2];
  return shape;
}

layout::Shape columns_squared(const layout::Shape& matrix) {
  layout::Shape shape = matrix;
  shape[shape.size() - 2] = shape.back();
  return shape;
}

}  // namespace trireme::optim
