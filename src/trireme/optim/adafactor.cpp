// Adafactor (Shazeer, Stern 2018, algorithms 4 and 5), without momentum. At step t, with b = 1 - t^-c:
//   matrices  r <- b r + (1 - b) mean over columns of (g^2 + eps),  c <- likewise over rows,  V = r c^T / mean(r)
//   others    V <- b V + (1 - b) (g^2 + eps)
//   U = g / sqrt(V),  U <- U / max(1, RMS(U) / d),  w <- w - a U - rate decay w,  a = rate max(1e-3, RMS(w))
// The owner of a matrix keeps r and c.
#include <ATen/TensorOperators.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sqrt.h>

#include <algorithm>
#include <cmath>

#include "trireme/optim/elementwise.h"
#include "trireme/optim/gradients.h"
#include "trireme/optim/matrix_optimizer.h"

namespace trireme::optim {
namespace {

constexpr double kLeastScale = 1e-3;  // the paper's eps_2

layout::Shape row_means_of(const layout::Shape& matrix) { return {matrix.begin(), matrix.end() - 1}; }
layout::Shape column_means_of(const layout::Shape& matrix) {
  layout::Shape shape = matrix;
  shape.erase(shape.end() - 2);
  return shape;
}

class Adafactor final : public MatrixOptimizer {
 public:
  explicit Adafactor(OptimizerParts parts)
      : MatrixOptimizer(std::move(parts), {"v"}, {false}),
        rows_(add_owned("r", row_means_of)),
        columns_(add_owned("c", column_means_of)) {}

 private:
  double beta() const { return 1 - std::pow(static_cast<double>(steps()), -config().factored_decay); }
  double epsilon() const { return spec::epsilon_of(config()); }

  at::Tensor prepare(Slot& /*slot*/, at::Tensor gradient) override { return gradient; }

  void make(std::span<at::Tensor> wholes) override {
    const double b = beta();
    for (std::size_t i = 0; i < wholes.size(); ++i) {
      if (!wholes[i].defined() || wholes[i].numel() == 0) continue;
      const at::Tensor squares = at::mul(wholes[i], wholes[i]).add_(epsilon());
      at::Tensor &r = rows_[i], &c = columns_[i];
      r.mul_(b).add_(squares.mean(-1), 1 - b);
      c.mul_(b).add_(squares.mean(-2), 1 - b);
      const at::Tensor mean = r.mean(-1, /*keepdim=*/true);
      wholes[i].div_((r / mean).sqrt_().unsqueeze(-1)).div_(at::sqrt(c).unsqueeze(-2));
    }
  }

  void take(const StepOptions& options) override {
    std::vector<at::Tensor> made = directions(options);
    std::vector<at::Tensor> updates(slots().size());
    std::size_t matrix = 0;
    for (std::size_t i = 0; i < updates.size(); ++i) {
      Slot& slot = slots()[i];
      if (matrix < matrices() && &slot_of(matrix) == &slot) {
        updates[i] = made[matrix++];
        continue;
      }
      if (slot.param.unused) continue;
      updates[i] = scaled_gradient(slot.gradient, slot.param.master, options.gradient_scale);
      const double b = beta();
      slot.moments[0].mul_(b).add_(at::mul(updates[i], updates[i]).add_(epsilon()), 1 - b);
      updates[i].div_(at::sqrt(slot.moments[0]));
    }
    // Sums of squares over whole parameters: of updates, and of weights.
    const std::size_t count = updates.size();
    std::vector<double> squares(2 * count);
    for (std::size_t i = 0; i < count; ++i) {
      const nn::Param& param = slots()[i].param;
      if (param.unused) continue;
      squares[i] = counted_squares(param, updates[i]);
      if (config().parameter_scale) squares[count + i] = counted_squares(param, param.master);
    }
    if (options.across != nullptr && options.across->sum_parts) options.across->sum_parts(squares);
    for (std::size_t i = 0; i < count; ++i) {
      Slot& slot = slots()[i];
      if (slot.param.unused) continue;
      const auto elements = static_cast<double>(slot.param.elements());
      const double rms = std::sqrt(squares[i] / elements);
      double factor = 1 / std::max(1.0, rms / config().update_clip);
      if (config().parameter_scale) factor *= std::max(kLeastScale, std::sqrt(squares[count + i] / elements));
      // RMS of several stretches is summed in double, so the factor is one number for all ranks.
      apply_decoupled(slot.param, updates[i].mul_(factor), options.learning_rate * slot.rate, slot.weight_decay,
                      weight_rounding(slot));
    }
  }

  std::vector<at::Tensor>&rows_, &columns_;
};

}  // namespace

std::unique_ptr<Optimizer> make_adafactor(OptimizerParts parts) {
  return std::make_unique<Adafactor>(std::move(parts));
}

}  // namespace trireme::optim
