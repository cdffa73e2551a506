#include "trireme/pipeline/micro_rows.h"

#include <ATen/ops/cat.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme::pipeline {
namespace {

/// Every tensor of the context that has a row for each row of the batch.
std::vector<at::Tensor*> rows_in(nn::Context& context) {
  std::vector<at::Tensor*> tensors{&context.samples, &context.segments,    &context.targets,    &context.loss_weights,
                                   &context.mtp.ids, &context.mtp.targets, &context.mtp.weights};
  for (nn::Sequence* sequence : {&context.sequence, &context.source}) {
    tensors.insert(tensors.end(), {&sequence->positions, &sequence->documents, &sequence->documents_here});
  }
  return tensors;
}

at::Tensor joined(const at::Tensor& first, const at::Tensor& second) {
  if (!first.defined() && !second.defined()) return {};
  if (!first.defined() || !second.defined() || first.sizes().slice(1) != second.sizes().slice(1)) {
    const auto told = [](const at::Tensor& tensor) {
      return tensor.defined() ? fmt::format("[{}]", fmt::join(tensor.sizes(), ", ")) : std::string("nothing");
    };
    throw ConfigError(
        fmt::format("a forward takes two micro-batches at once, but one has {} where the other has {}: rows of one "
                    "length go together",
                    told(first), told(second)),
        "pad or pack rows to one length, or take pipeline.schedule = \"chimera\" or \"chimera-halving\"");
  }
  return at::cat({first, second}, 0);
}

}  // namespace

std::int64_t rows_of(const Micro& micro) { return micro.inputs.at(0).size(0); }

Micro join_rows(const Micro& first, const Micro& second) {
  Micro both = first, other = second;
  TRIREME_CHECK(
      both.inputs.size() == other.inputs.size() && both.context.gradient_scale == other.context.gradient_scale,
      "micros of one step have the same inputs and the same scale");
  for (std::size_t i = 0; i < both.inputs.size(); ++i) both.inputs[i] = joined(both.inputs[i], other.inputs[i]);
  const std::vector<at::Tensor*> to = rows_in(both.context), from = rows_in(other.context);
  for (std::size_t i = 0; i < to.size(); ++i) *to[i] = joined(*to[i], *from[i]);
  for (auto [mine, theirs] : {std::pair{&both.context.sequence, &other.context.sequence},
                              std::pair{&both.context.source, &other.context.source}}) {
    // 0: not known.
    const bool known = mine->position_count > 0 && theirs->position_count > 0;
    mine->position_count = known ? std::max(mine->position_count, theirs->position_count) : 0;
  }
  return both;
}

std::pair<Micro, Micro> halve_rows(const Micro& micro) {
  const std::int64_t rows = rows_of(micro), kept = (rows + 1) / 2;
  if (rows < 2) {
    throw ConfigError("a backward takes half of a micro-batch, but one has a single row",
                      "set train.micro_batch_size = 2 or more, and batch.global_batch_tokens to whole micro-batches");
  }
  std::pair<Micro, Micro> halves{micro, micro};
  const auto cut = [&](at::Tensor& first, at::Tensor& second) {
    if (!first.defined()) return;
    first = first.narrow(0, 0, kept);
    second = second.narrow(0, kept, rows - kept);
  };
  for (std::size_t i = 0; i < micro.inputs.size(); ++i) cut(halves.first.inputs[i], halves.second.inputs[i]);
  const std::vector<at::Tensor*> first = rows_in(halves.first.context), second = rows_in(halves.second.context);
  for (std::size_t i = 0; i < first.size(); ++i) cut(*first[i], *second[i]);
  return halves;
}

std::pair<nn::Tensors, nn::Tensors> split_rows(const nn::Tensors& tensors, std::int64_t kept) {
  std::pair<nn::Tensors, nn::Tensors> parts;
  for (const at::Tensor& tensor : tensors) {
    parts.first.push_back(tensor.defined() ? tensor.narrow(0, 0, kept) : at::Tensor());
    parts.second.push_back(tensor.defined() ? tensor.narrow(0, kept, tensor.size(0) - kept) : at::Tensor());
  }
  return parts;
}

}  // namespace trireme::pipeline
