// Muon (Jordan et al. 2024):  m <- mu m + (1 - mu) g,  O = NewtonSchulz(mu m + (1 - mu) g) (Nesterov; else of m),
// w <- w - rate (s O + decay w), with s = 0.2 sqrt(max(rows, columns)) (Liu et al. 2025) or sqrt(max(1, rows /
// columns)). Embeddings, head, norms and biases have AdamW.
//
// Momentum lies as parameters do; owners of matrices orthogonalise their share of them.
#include <ATen/ops/lerp.h>

#include <algorithm>
#include <cmath>

#include "trireme/optim/matrix_optimizer.h"
#include "trireme/optim/newton_schulz.h"

namespace trireme::optim {
namespace {

class Muon final : public MatrixOptimizer {
 public:
  explicit Muon(OptimizerParts parts) : MatrixOptimizer(std::move(parts), {"m", "v"}, {true, false}) {}

 private:
  at::Tensor prepare(Slot& slot, at::Tensor gradient) override {
    const double mu = config().muon_momentum;
    at::Tensor& m = slot.moments[0];
    m.lerp_(gradient, 1 - mu);
    if (config().muon_nesterov) return gradient.lerp_(m, mu);
    return gradient.copy_(m);
  }

  void make(std::span<at::Tensor> wholes) override {
    for (const at::Tensor& whole : wholes) {
      if (!whole.defined()) continue;
      orthogonalise(wholes, config().newton_schulz_steps, type_for(whole));
      break;
    }
    for (at::Tensor& whole : wholes) {
      if (whole.defined()) whole.mul_(scale_of(whole.size(-2), whole.size(-1)));
    }
  }

  at::ScalarType type_for(const at::Tensor& whole) const {
    const spec::NewtonSchulzDtype asked = config().newton_schulz_dtype;
    const bool narrow =
        asked == spec::NewtonSchulzDtype::kBf16 || (asked == spec::NewtonSchulzDtype::kAuto && whole.is_cuda());
    return narrow ? at::kBFloat16 : whole.scalar_type();
  }

  double scale_of(std::int64_t rows, std::int64_t columns) const {
    const auto m = static_cast<double>(rows), n = static_cast<double>(columns);
    constexpr double kAdamRms = 0.2;  // what AdamW's updates usually have
    if (config().muon_scale == spec::MuonScale::kRms) return kAdamRms * std::sqrt(std::max(m, n));
    return std::sqrt(std::max(1.0, m / n));
  }
};

}  // namespace

std::unique_ptr<Optimizer> make_muon(OptimizerParts parts) { return std::make_unique<Muon>(std::move(parts)); }

}  // namespace trireme::optim
