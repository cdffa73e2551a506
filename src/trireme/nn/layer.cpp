#include "trireme/nn/layer.h"

#include <ATen/ops/arange.h>

#include "trireme/base/error.h"

namespace trireme::nn {

Tensors UnaryLayer::forward(Tensors inputs, Context& context, Tape* tape) {
  TRIREME_CHECK(inputs.size() == 1, "a layer of one input was given {}", inputs.size());
  return {forward(std::move(inputs[0]), context, tape)};
}

Tensors UnaryLayer::backward(Tensors gradients, Context& context, Tape& tape) {
  TRIREME_CHECK(gradients.size() == 1, "a layer of one output was given {} gradients", gradients.size());
  return {backward(std::move(gradients[0]), context, tape)};
}

at::Tensor as_rows(const at::Tensor& x) { return x.view({-1, x.size(-1)}); }

bool may_overwrite(const at::Tensor& tensor) { return tensor.use_count() == 1 && tensor.storage().use_count() == 1; }

Sequence plain_sequence(std::int64_t batch, std::int64_t length) {
  const at::Tensor row = at::arange(length, at::kLong);
  return {.positions = row.unsqueeze(0).expand({batch, length}).contiguous()};
}

at::Tensor Skips::find(const Named& named, const std::string& name, const char* what) {
  const auto found = named.find(name);
  TRIREME_CHECK(found != named.end(), "a layer takes the {} of skip {}, which none gave before it", what, name);
  return found->second;
}

Skips& SkipLayer::skips() const {
  TRIREME_CHECK(skips_ != nullptr, "a layer with skips runs before use() said where they are");
  return *skips_;
}

}  // namespace trireme::nn
