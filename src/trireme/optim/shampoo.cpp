// Shampoo (Gupta et al. 2018, algorithm 1), with decaying preconditioners and momentum as distributed ones have:
//   L <- b L + (1 - b) G G^T,  R <- b R + (1 - b) G^T G  (b = 1: sums),  m <- b1 m + (1 - b1) G,
//   w <- w - rate (L^-1/4 m R^-1/4 + decay w),
// L, R and m corrected for their bias. Roots are taken every optim.precondition_every steps, eigenvalues raised by
// epsilon. Owners of matrices keep all of it. Embeddings, head, norms and biases have AdamW.
#include <ATen/TensorOperators.h>
#include <ATen/ops/linalg_eigh.h>
#include <ATen/ops/matmul.h>

#include <cmath>

#include "trireme/optim/matrix_optimizer.h"

namespace trireme::optim {
namespace {

class Shampoo final : public MatrixOptimizer {
 public:
  explicit Shampoo(OptimizerParts parts)
      : MatrixOptimizer(std::move(parts), {"m", "v"}, {false, false}),
        m_(add_owned("m", same_shape)),
        left_(add_owned("left", rows_squared)),
        right_(add_owned("right", columns_squared)),
        left_root_(add_owned("left_root", rows_squared)),
        right_root_(add_owned("right_root", columns_squared)) {}

 private:
  at::Tensor prepare(Slot& /*slot*/, at::Tensor gradient) override { return gradient; }

  /// (matrix / correction)^-1/4 of a symmetric matrix without negative eigenvalues but for rounding.
  at::Tensor inverse_root(const at::Tensor& matrix, double correction) const {
    auto [values, vectors] = at::linalg_eigh(matrix);
    const at::Tensor powers = (values / correction).clamp_min_(0).add_(spec::epsilon_of(config())).pow_(-0.25);
    return at::matmul(vectors * powers.unsqueeze(-2), vectors.transpose(-2, -1));
  }

  void make(std::span<at::Tensor> wholes) override {
    const auto step = static_cast<double>(steps());
    const double b = config().preconditioner_beta, gain = b < 1 ? 1 - b : 1;
    const double correction = b < 1 ? 1 - std::pow(b, step) : 1, correction1 = 1 - std::pow(config().beta1, step);
    const bool roots = (steps() - 1) % config().precondition_every == 0;
    for (std::size_t i = 0; i < wholes.size(); ++i) {
      at::Tensor& g = wholes[i];
      if (!g.defined() || g.numel() == 0) continue;
      m_[i].mul_(config().beta1).add_(g, 1 - config().beta1);
      left_[i].mul_(b).add_(at::matmul(g, g.transpose(-2, -1)), gain);
      right_[i].mul_(b).add_(at::matmul(g.transpose(-2, -1), g), gain);
      if (roots) {
        left_root_[i].copy_(inverse_root(left_[i], correction));
        right_root_[i].copy_(inverse_root(right_[i], correction));
      }
      g = at::matmul(at::matmul(left_root_[i], m_[i]), right_root_[i]).div_(correction1);
    }
  }

  std::vector<at::Tensor>&m_, &left_, &right_, &left_root_, &right_root_;
};

}  // namespace

std::unique_ptr<Optimizer> make_shampoo(OptimizerParts parts) { return std::make_unique<Shampoo>(std::move(parts)); }

}  // namespace trireme::optim
