#include "trireme/optim/update.h"

#include <fmt/format.h>

#include <cmath>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/optim/gradients.h"

namespace trireme::optim {
namespace {

[[noreturn]] void refuse_gradients(const Optimizer& optimizer, std::vector<std::string> names) {
  const std::size_t count = names.size();
  if (count > 8) {
    names.resize(7);
    names.push_back(fmt::format("{} more", count - 7));
  }
  // Nothing here: another rank has them, and says so.
  const std::string where = names.empty() ? "on another rank" : "of " + listed(names);
  throw NonFiniteGradients(fmt::format("the gradient {} is not finite after {}", where,
                                       counted(static_cast<std::size_t>(optimizer.steps()), "step")),
                           "lower optim.learning_rate, lengthen lr_schedule.warmup, or set optim.grad_clip_norm = 1.0");
}

}  // namespace

Decision decide(Optimizer& optimizer, const UpdateOptions& options) {
  std::vector<double> squares = gradient_squares(optimizer.params());
  const bool across = options.across != nullptr;
  if (across && options.across->sum_parts) options.across->sum_parts(squares);
  double sum = 0;
  for (const double square : squares) sum += square;
  if (across && options.across->sum_stages) sum = options.across->sum_stages(sum);

  double scale = options.gradient_scale;
  if (options.loss_scale != nullptr) scale /= options.loss_scale->scale();
  UpdateResult result{.gradient_norm = std::sqrt(sum) * std::abs(scale)};
  const bool finite = std::isfinite(result.gradient_norm);
  if (options.loss_scale != nullptr) {
    result.taken = options.loss_scale->take(finite);
  } else if (!finite) {
    refuse_gradients(optimizer, non_finite(optimizer.params(), squares));
  }
  if (!result.taken) {
    nn::zero_grad(optimizer.params());
    return {result, {}};
  }
  result.clip_factor = clip_factor(result.gradient_norm, optimizer.config().grad_clip_norm);
  return {
      result,
      {.learning_rate = options.learning_rate, .gradient_scale = scale * result.clip_factor, .across = options.across}};
}

UpdateResult update(Optimizer& optimizer, const UpdateOptions& options) {
  const Decision decision = decide(optimizer, options);
  if (decision.result.taken) optimizer.step(decision.step);
  return decision.result;
}

}  // namespace trireme::optim
