#include "trireme/nn/dropout.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <fmt/format.h>

#include "trireme/base/error.h"
#include "trireme/kernels/dropout.h"
#include "trireme/nn/layer.h"

namespace trireme::nn {

Dropout::Dropout(std::string name, double p, SequencePart part) : name_(std::move(name)), p_(p), part_(part) {
  if (p < 0 || p >= 1) {
    throw ConfigError(fmt::format("dropout of {} is {}, but it must be at least 0 and below 1", name_, p));
  }
}

at::Tensor token_numbers(const Sequence& sequence, const Context& context, std::int64_t batch, std::int64_t length,
                         std::int64_t first) {
  TRIREME_CHECK(context.samples.defined() && context.samples.numel() == batch,
                "dropout needs the global number of each of the {} samples", batch);
  const std::int64_t from = sequence.first_position + first;
  const at::Tensor columns = sequence.columns.defined()
                                 ? sequence.columns.narrow(0, first, length).to(context.samples.device())
                                 : at::arange(from, from + length, context.samples.options());
  return (context.samples.unsqueeze(1) * (std::int64_t{1} << 32) + columns.unsqueeze(0)).view({-1});
}

void Dropout::apply(at::Tensor& x, const Sequence& sequence, const Context& context) const {
  if (!active(context)) return;
  const kernels::Dropout rule{.stream = Random(context.seed, fmt::format("dropout/{}/step {}", name_, context.step)),
                              .p = p_};
  at::Tensor rows = as_rows(x);
  const at::Tensor tokens = token_numbers(sequence, context, x.size(0), x.size(1), part_.index * x.size(1));
  kernels::dropout_(rows, rule, tokens, 0, x.size(-1));
}

}  // namespace trireme::nn
