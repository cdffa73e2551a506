#include "trireme/optim/gradients.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/kernels/update.h"

namespace trireme::optim {

void require_gradients(const nn::Params& params) {
  std::vector<std::string> missing;
  for (const nn::Param& param : params) {
    if (param.trainable && !param.unused && (param.gradient_empty || !param.gradient.defined()))
      missing.push_back(param.name);
  }
  if (missing.empty()) return;
  const std::size_t count = missing.size();
  if (count > 8) {
    missing.resize(7);
    missing.push_back(fmt::format("{} more", count - 7));
  }
  throw ConfigError(fmt::format("{} no gradient in this step: {}", count == 1 ? "a parameter has" : "parameters have",
                                listed(missing)),
                    "freeze what the loss does not depend on (Param::trainable = false)");
}

std::vector<double> gradient_squares(const nn::Params& params) {
  require_gradients(params);
  // All of them at once: on a GPU each answer would be waited for by itself.
  std::vector<at::Tensor> parts;
  std::vector<std::size_t> ends;
  for (const nn::Param& param : params) {
    if (!param.trainable) continue;
    if (!param.counted) {
      parts.push_back(param.gradient);
    } else {
      const at::Tensor flat = param.gradient.view({-1});
      for (const layout::Range& range : *param.counted) {
        parts.push_back(flat.narrow(0, range.begin, range.end - range.begin));
      }
    }
    ends.push_back(parts.size());
  }
  std::vector<const at::Tensor*> pointers;
  for (const at::Tensor& part : parts) pointers.push_back(&part);
  const std::vector<double> sums = kernels::sums_of_squares(pointers);
  std::vector<double> squares;
  std::size_t at = 0;
  for (const std::size_t end : ends) {
    double& sum = squares.emplace_back(0);
    for (; at < end; ++at) sum += sums[at];
  }
  return squares;
}

double counted_squares(const nn::Param& param, const at::Tensor& tensor) {
  if (!param.counted) return kernels::sum_of_squares(tensor);
  double sum = 0;
  const at::Tensor flat = tensor.view({-1});
  for (const layout::Range& range : *param.counted) {
    sum += kernels::sum_of_squares(flat.narrow(0, range.begin, range.end - range.begin));
  }
  return sum;
}

double clip_factor(double norm, double clip) { return clip > 0 && norm > clip ? clip / norm : 1; }

std::vector<std::string> non_finite(const nn::Params& params, std::span<const double> squares) {
  std::vector<std::string> names;
  std::size_t i = 0;
  for (const nn::Param& param : params) {
    if (!param.trainable) continue;
    TRIREME_CHECK(i < squares.size(), "{} sums of squares for more trainable parameters", squares.size());
    if (!std::isfinite(squares[i++])) names.push_back(param.name);
  }
  return names;
}

}  // namespace trireme::optim
