#include "trireme/nn/dropout.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/kernels/dropout.h"
#include "trireme/nn/layer.h"

namespace trireme::nn {
namespace {

Random stream_of(const std::string& name, std::uint64_t seed, std::int64_t step) {
  return Random(seed, fmt::format("dropout/{}/step {}", name, step));
}

}  // namespace

DropoutRngState::DropoutRngState(at::Device device)
    : words_(at::zeros({kMost, 4}, at::TensorOptions(at::kInt).device(device))) {}

at::Tensor DropoutRngState::place(const std::string& name) {
  const auto found = std::find(names_.begin(), names_.end(), name);
  const auto index = static_cast<std::int64_t>(found - names_.begin());
  TRIREME_CHECK(index < kMost, "more than {} dropouts in one captured step", kMost);
  if (found == names_.end()) names_.push_back(name);
  return words_.select(0, index);
}

void DropoutRngState::fill(std::uint64_t seed, std::int64_t step) {
  if (names_.empty()) return;
  const auto count = static_cast<std::int64_t>(names_.size());
  // Pinned memory, which the tensor library keeps until the copy is done.
  const bool pinned = words_.is_cuda();
  const at::Tensor here = at::empty({count, 4}, at::TensorOptions(at::kInt).pinned_memory(pinned));
  auto* out = here.mutable_data_ptr<std::int32_t>();
  for (const std::string& name : names_) {
    for (const std::uint32_t word : kernels::dropout_words(stream_of(name, seed, step))) {
      *out++ = static_cast<std::int32_t>(word);
    }
  }
  words_.narrow(0, 0, count).copy_(here, /*non_blocking=*/true);
}

Dropout::Dropout(std::string name, double p, SequencePart part) : name_(std::move(name)), p_(p), part_(part) {
  if (p < 0 || p >= 1) {
    throw ConfigError(fmt::format("dropout of {} is {}, but it must be at least 0 and below 1", name_, p));
  }
}

at::Tensor token_numbers(const Sequence& sequence, const Context& context, std::int64_t batch, std::int64_t length,
                         std::int64_t first) {
  TRIREME_CHECK(context.samples.defined() && context.samples.numel() == batch,
                "dropout needs the global number of each of the {} samples", batch);
  const at::Tensor columns = sequence.columns.defined()
                                 ? sequence.columns.narrow(0, first, length).to(context.samples.device())
                                 : at::arange(first, first + length, context.samples.options());
  return (context.samples.unsqueeze(1) * (std::int64_t{1} << 32) + columns.unsqueeze(0)).view({-1});
}

void Dropout::apply(at::Tensor& x, const Sequence& sequence, const Context& context) const {
  if (!active(context)) return;
  const at::Tensor words = context.dropout_rng != nullptr ? context.dropout_rng->place(name_) : at::Tensor();
  const kernels::Dropout rule{
      .stream = stream_of(name_, context.seed, context.step), .p = p_, .words = words.defined() ? &words : nullptr};
  at::Tensor rows = as_rows(x);
  const at::Tensor tokens = token_numbers(sequence, context, x.size(0), x.size(1), part_.index * x.size(1));
  kernels::dropout_(rows, rule, tokens, 0, x.size(-1));
}

}  // namespace trireme::nn
