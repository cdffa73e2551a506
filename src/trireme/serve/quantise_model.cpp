#include "trireme/serve/quantise_model.h"

#include <ATen/ops/empty.h>

#include <array>
#include <string_view>

#include "trireme/base/error.h"

namespace trireme::serve {

bool is_quantised(const nn::Param& param) {
  const std::string_view name = param.name;
  constexpr std::array<std::string_view, 4> kEnds{".attention.qkv.weight", ".attention.out.weight", ".mlp.in.weight",
                                                  ".mlp.out.weight"};
  return name.starts_with("layers.") && std::ranges::any_of(kEnds, [&](auto end) { return name.ends_with(end); });
}

nn::QuantisedWeights quantise_model(models::Model& model, const kernels::QuantiseWeight& how) {
  nn::QuantisedWeights out;
  for (nn::Param& param : model.params) {
    if (!is_quantised(param) || param.value.dim() != 2) continue;
    try {
      out.emplace(&param, kernels::quantise_weight(param.value, how));
    } catch (const ConfigError& error) {
      throw ConfigError(param.name + ": " + error.what(), error.hint());
    }
    param.value = param.master = at::empty({0}, param.value.options());
  }
  return out;
}

}  // namespace trireme::serve
