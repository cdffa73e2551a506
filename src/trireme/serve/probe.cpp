#include "trireme/serve/probe.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <fmt/format.h>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/formats/safetensors_writer.h"
#include "trireme/models/published.h"

namespace trireme::serve {
namespace {

at::Tensor as_tensor(const TokenLists& lists) {
  at::Tensor ids =
      at::empty({static_cast<std::int64_t>(lists.size()), static_cast<std::int64_t>(lists[0].size())}, at::kLong);
  auto* out = ids.data_ptr<std::int64_t>();
  for (const auto& list : lists) out = std::copy(list.begin(), list.end(), out);
  return ids;
}

/// Next tokens for a model that reads from left to right; the tokens themselves for one that sees both sides.
at::Tensor targets_of(const at::Tensor& ids, bool causal) {
  if (!causal) return ids;
  at::Tensor targets = at::full_like(ids, -100);
  if (ids.size(1) > 1) targets.narrow(1, 0, ids.size(1) - 1).copy_(ids.narrow(1, 1, ids.size(1) - 1));
  return targets;
}

/// One number as the bytes of a float scalar.
class Scalar {
 public:
  explicit Scalar(double value) : value_(static_cast<float>(value)) {}
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(&value_, 1)); }

 private:
  float value_;
};

}  // namespace

ProbeResult probe(const ProbeRequest& request) {
  const formats::HfDirectory directory(request.model);
  const at::Tensor ids = as_tensor(formats::read_token_lists(request.ids, /*equal=*/true));
  const bool causal = models::format_of(directory.config()).read_config(directory.config()).causal;
  if (causal && ids.size(1) < 2) {
    throw ConfigError(fmt::format("{} holds one token a list, but a next-token loss takes two", request.ids.string()));
  }
  const auto model = models::load_published(directory, {.precision = nn::Precision::kFp32, .build = {}});
  log_info("{}: {} parameters", request.model.string(), model->params.elements());

  nn::Context context;
  context.sequence = nn::plain_sequence(ids.size(0), ids.size(1));
  const at::Tensor logits = model->forward({ids}, context, nullptr);

  const std::int64_t predicted = ids.size(0) * (causal ? ids.size(1) - 1 : ids.size(1));
  context.targets = targets_of(ids, causal);
  context.gradient_scale = 1.0 / static_cast<double>(predicted);
  nn::Tape tape;
  ProbeResult result{.tokens = predicted};
  result.loss = model->forward({ids}, context, &tape).item<double>();
  model->backward(context, tape);

  std::vector<formats::TensorSpec> specs{
      {.name = "logits", .dtype = formats::Dtype::kF32, .shape = logits.sizes().vec()},
      {.name = "loss", .dtype = formats::Dtype::kF32}};
  std::vector<std::pair<std::string, Scalar>> norms;
  const auto known = [&](std::string_view name) { return directory.find(name) != nullptr; };
  for (const models::PublishedTensor& tensor : models::published_tensors(*model, known)) {
    if (tensor.optional) continue;  // a tied weight's other name
    const at::Tensor gradient = models::published_view(tensor, tensor.param->gradient);
    const std::string name = "grad_norm." + tensor.name;
    specs.push_back({.name = name, .dtype = formats::Dtype::kF32});
    norms.emplace_back(name, Scalar(at::linalg_vector_norm(gradient, 2, {}, false, at::kDouble).item<double>()));
  }
  formats::SafetensorsWriter writer(request.out, formats::make_safetensors_header(specs, {}));
  const at::Tensor whole = logits.contiguous();
  writer.write("logits",
               {static_cast<const std::byte*>(whole.const_data_ptr()), static_cast<std::size_t>(whole.nbytes())});
  writer.write("loss", Scalar(result.loss).bytes());
  for (const auto& [name, norm] : norms) writer.write(name, norm.bytes());
  writer.finish();
  result.tensors = static_cast<std::int64_t>(norms.size());
  return result;
}

}  // namespace trireme::serve
