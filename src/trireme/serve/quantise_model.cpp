#include "trireme/serve/quantise_model.h"

#include <ATen/ops/empty.h>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/models/quantised_tensors.h"

namespace trireme::serve {
namespace {

kernels::QuantisedWeight quantise_named(const nn::Param& param, const at::Tensor& value,
                                        const kernels::QuantiseWeight& how) {
  try {
    return kernels::quantise_weight(value, how);
  } catch (const ConfigError& error) {
    throw ConfigError(param.name + ": " + error.what(), error.hint());
  }
}

}  // namespace

nn::QuantisedWeights quantise_model(models::Model& model, const kernels::QuantiseWeight& how) {
  nn::QuantisedWeights out;
  for (nn::Param& param : model.params) {
    if (!models::is_quantisable(param)) continue;
    out.emplace(&param, quantise_named(param, param.value, how));
    param.value = param.master = at::empty({0}, param.value.options());
  }
  return out;
}

nn::QuantisedWeights load_quantised(models::Model& model, const checkpoint::StoredWeights& weights, at::Device device,
                                    nn::Precision precision, const std::optional<kernels::QuantiseWeight>& how) {
  nn::QuantisedWeights out;
  const at::TensorOptions plain = at::TensorOptions(nn::compute_type(precision)).device(device);
  std::int64_t in_an_order = 0;
  for (nn::Param& param : model.params) {
    if (!models::is_quantisable(param)) continue;
    std::optional<kernels::QuantisedWeight> stored;
    if (!how) stored = weights.quantised(param);
    if (stored) {
      stored->values = stored->values.to(device);
      stored->scales = stored->scales.to(device);
      if (stored->zeros.defined()) stored->zeros = stored->zeros.to(device);
      out.emplace(&param, *std::move(stored));
      param.value = param.master = at::empty({0}, plain);
      continue;
    }
    at::Tensor floats = at::empty(nn::local_shape(param.placement), at::kFloat);
    weights.read_into(param, floats);
    if (how) {
      out.emplace(&param, quantise_named(param, floats.to(device), *how));
      param.value = param.master = at::empty({0}, plain);
    } else {
      param.value = param.master = floats.to(plain.dtype()).to(device);
      ++in_an_order;
    }
  }
  if (in_an_order > 0) {
    log_warn(
        "{}: {} matrices are plain there, or have groups that are not neighbours (desc_act): they are computed with "
        "as {}",
        weights.what(), in_an_order, precision == nn::Precision::kBf16 ? "bf16" : "fp32");
  }
  return out;
}

void quantise_head(models::Model& model, const kernels::QuantiseWeight& how, nn::QuantisedWeights& out) {
  for (const models::NamedLayer& entry : model.layers) {
    if (entry.name != "head") continue;
    nn::Param& param = *entry.params.front();
    out.emplace(&param, quantise_named(param, param.value, how));
    if (!model.shape.tied) param.value = param.master = at::empty({0}, param.value.options());
  }
}

}  // namespace trireme::serve
