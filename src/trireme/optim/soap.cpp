// SOAP (Vyas et al. 2024, algorithms 3 and 4): Adam in the eigenbasis of Shampoo's preconditioners. With G' = QL^T G
// QR:
//   m <- b1 m + (1 - b1) G,  v <- b2 v + (1 - b2) G'^2,  N = QL (m'^ / (sqrt(v^) + eps)) QR^T,  w <- w - rate (N +
//   decay w), L <- b L + (1 - b) G G^T,  R <- b R + (1 - b) G^T G,
// and every optim.precondition_every steps QL <- QR(L QL), QR <- QR(R QR): a step of subspace iteration. The first step
// takes eigenvectors of the first gradient's products, and moves no matrix, as in its authors' code. Owners of matrices
// keep all of it. Embeddings, head, norms and biases have AdamW.
#include <ATen/ops/linalg_eigh.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/sqrt.h>

#include <cmath>

#include "trireme/optim/matrix_optimizer.h"

namespace trireme::optim {
namespace {

class Soap final : public MatrixOptimizer {
 public:
  explicit Soap(OptimizerParts parts)
      : MatrixOptimizer(std::move(parts), {"m", "v"}, {false, false}),
        m_(add_owned("m", same_shape)),
        v_(add_owned("v", same_shape)),
        left_(add_owned("left", rows_squared)),
        right_(add_owned("right", columns_squared)),
        left_basis_(add_owned("left_basis", rows_squared)),
        right_basis_(add_owned("right_basis", columns_squared)) {}

 private:
  at::Tensor prepare(Slot& /*slot*/, at::Tensor gradient) override { return gradient; }

  static at::Tensor project(const at::Tensor& left, const at::Tensor& matrix, const at::Tensor& right) {
    return at::matmul(at::matmul(left.transpose(-2, -1), matrix), right);
  }

  void make(std::span<at::Tensor> wholes) override {
    const double b = config().preconditioner_beta, gain = b < 1 ? 1 - b : 1;
    for (std::size_t i = 0; i < wholes.size(); ++i) {
      at::Tensor& g = wholes[i];
      if (!g.defined() || g.numel() == 0) continue;
      const at::Tensor rows = at::matmul(g, g.transpose(-2, -1)), columns = at::matmul(g.transpose(-2, -1), g);
      at::Tensor direction;
      if (steps() > 1) direction = adam(i, g);
      left_[i].mul_(b).add_(rows, gain);
      right_[i].mul_(b).add_(columns, gain);
      if (steps() == 1) {
        left_basis_[i].copy_(std::get<1>(at::linalg_eigh(left_[i])));
        right_basis_[i].copy_(std::get<1>(at::linalg_eigh(right_[i])));
        direction = g.zero_();
      } else if (steps() % config().precondition_every == 0) {
        left_basis_[i].copy_(std::get<0>(at::linalg_qr(at::matmul(left_[i], left_basis_[i]))));
        right_basis_[i].copy_(std::get<0>(at::linalg_qr(at::matmul(right_[i], right_basis_[i]))));
      }
      g = direction;
    }
  }

  at::Tensor adam(std::size_t i, const at::Tensor& g) {
    const double b1 = config().beta1, b2 = config().beta2;
    const auto step = static_cast<double>(steps() - 1);  // that moved
    const double correction1 = 1 - std::pow(b1, step), root2 = std::sqrt(1 - std::pow(b2, step));
    m_[i].mul_(b1).add_(g, 1 - b1);
    const at::Tensor rotated = project(left_basis_[i], g, right_basis_[i]);
    v_[i].mul_(b2).addcmul_(rotated, rotated, 1 - b2);
    at::Tensor n = project(left_basis_[i], m_[i], right_basis_[i]).div_(correction1);
    n.div_(at::sqrt(v_[i]).div_(root2).add_(spec::epsilon_of(config())));
    return at::matmul(at::matmul(left_basis_[i], n), right_basis_[i].transpose(-2, -1));
  }

  std::vector<at::Tensor>&m_, &v_, &left_, &right_, &left_basis_, &right_basis_;
};

}  // namespace

std::unique_ptr<Optimizer> make_soap(OptimizerParts parts) { return std::make_unique<Soap>(std::move(parts)); }

}  // namespace trireme::optim
