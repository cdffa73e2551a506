#include "trireme/pipeline/stage_update.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "trireme/base/text.h"
#include "trireme/optim/gradients.h"

namespace trireme::pipeline {
namespace {

[[noreturn]] void refuse_gradients(const optim::Optimizer& optimizer, std::vector<std::string> names) {
  constexpr std::size_t kMost = 8;
  if (names.size() > kMost) names.resize(kMost);
  throw optim::NonFiniteGradients(
      fmt::format("the gradient {} is not finite after {}", names.empty() ? "on another rank" : "of " + listed(names),
                  counted(static_cast<std::size_t>(optimizer.steps()), "step")),
      "lower optim.learning_rate, lengthen lr_schedule.warmup, or set optim.grad_clip_norm = 1.0");
}

/// Parameters that are clipped together.
struct Part {
  std::vector<nn::Param*> params;
  double squares = 0;  // scaled
};

}  // namespace

StageUpdated update_stage(optim::Optimizer& optimizer, const GradientReduction& reduction,
                          const StageUpdateOptions& options) {
  std::vector<double> squares = optim::gradient_squares(optimizer.params());
  if (options.across != nullptr && options.across->sum_parts) options.across->sum_parts(squares);

  const std::vector<GradientReduction::Shared> shared = reduction.shared();
  std::vector<Part> parts(1);  // the stage's own, then each that it shares
  StageUpdated updated;
  const double unscale = 1 / options.loss_scale;
  std::size_t i = 0;
  for (nn::Param& param : optimizer.params()) {
    if (!param.trainable) continue;
    const double square = squares[i++];
    const auto found = std::ranges::find(shared, &param, &GradientReduction::Shared::param);
    if (found == shared.end()) {
      parts[0].params.push_back(&param);
      parts[0].squares += square;
    } else {
      parts.push_back({{&param}, square});
      if (found->counted && std::isfinite(square)) updated.shared_squares += square * unscale * unscale;
    }
  }
  if (std::isfinite(parts[0].squares)) updated.squares = parts[0].squares * unscale * unscale;

  const auto is_finite = [](const Part& part) { return std::isfinite(part.squares); };
  updated.finite = std::ranges::all_of(parts, is_finite);
  if (!updated.finite && !options.may_overflow)
    refuse_gradients(optimizer, optim::non_finite(optimizer.params(), squares));

  const auto factor_of = [&](const Part& part) {
    return optim::clip_factor(std::sqrt(part.squares) * unscale, optimizer.config().grad_clip_norm);
  };
  double scale = unscale;
  if (parts.size() == 1 && updated.finite) {
    scale *= factor_of(parts[0]);
  } else {
    for (const Part& part : parts) {
      const double factor = is_finite(part) ? factor_of(part) : 0;
      for (nn::Param* param : part.params) {
        if (!param->gradient.defined() || factor == 1) continue;
        factor == 0 ? param->gradient.zero_() : param->gradient.mul_(factor);
      }
    }
  }
  optimizer.step({.learning_rate = options.learning_rate, .gradient_scale = scale, .across = options.across});
  return updated;
}

}  // namespace trireme::pipeline
