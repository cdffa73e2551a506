#include "trireme/serve/commands.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <algorithm>

#include "trireme/base/cores.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/checkpoint/open_model.h"
#include "trireme/device/cpu_setup.h"
#include "trireme/device/cuda.h"
#include "trireme/formats/safetensors_writer.h"
#include "trireme/models/published.h"
#include "trireme/serve/batch.h"
#include "trireme/serve/generate.h"
#include "trireme/serve/run_server.h"

namespace trireme::serve {
namespace {

at::Tensor as_tensor(const TokenLists& lists) {
  at::Tensor ids =
      at::empty({static_cast<std::int64_t>(lists.size()), static_cast<std::int64_t>(lists[0].size())}, at::kLong);
  auto* out = ids.data_ptr<std::int64_t>();
  for (const auto& list : lists) out = std::copy(list.begin(), list.end(), out);
  return ids;
}

/// A GPU would read beside its table.
void check_positions(const TokenLists& lists, const spec::ModelShape& shape) {
  const auto length = static_cast<std::int64_t>(lists[0].size());
  if (shape.position_kind == spec::PositionKind::kRotary || length <= shape.max_seq_len) return;
  throw ConfigError(
      fmt::format("position {} is outside the model's table of positions of {}", shape.max_seq_len, shape.max_seq_len),
      fmt::format("give lists of at most {} tokens", shape.max_seq_len));
}

/// What an encoder-decoder model's decoder reads where it is to give `ids`: those, one place later, behind the token 0
/// that published ones start with.
at::Tensor shifted_right(const at::Tensor& ids) {
  at::Tensor out = at::zeros_like(ids);
  out.narrow(1, 1, ids.size(1) - 1).copy_(ids.narrow(1, 0, ids.size(1) - 1));
  return out;
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

/// One forward and backward pass of a published model, for comparison with another implementation.
ProbeResult probe(const ProbeRequest& request) {
  const formats::HfDirectory directory(request.model);
  const TokenLists lists = formats::read_token_lists(request.ids, /*equal=*/true);
  const spec::ModelShape shape = checkpoint::stored_shape(request.model);
  check_positions(lists, shape);
  for (const auto& list : lists) check_tokens(list, shape);
  const bool encoder = shape.num_encoder_layers > 0;  // it reads the lists, and its decoder is to give them again
  const bool causal = shape.causal && !encoder;
  const at::Device device = request.device == spec::DeviceKind::kCuda ? device::use_cuda(0) : at::Device(at::kCPU);
  const at::Tensor ids = as_tensor(lists).to(device);
  if (causal && ids.size(1) < 2) {
    throw ConfigError(fmt::format("{} holds one token a list, but a next-token loss takes two", request.ids.string()));
  }
  checkpoint::OpenOptions options;
  options.device = device;
  const auto model = checkpoint::open_model(request.model, options).model;
  log_info("{}: {} parameters", request.model.string(), model->params.elements());

  nn::Context context;
  context.sequence = nn::plain_sequence(ids.size(0), ids.size(1));
  context.sequence.positions = context.sequence.positions.to(device);
  context.sequence.position_count = ids.size(1);
  if (encoder) context.source = context.sequence;
  const nn::Tensors inputs = encoder ? nn::Tensors{ids, shifted_right(ids)} : nn::Tensors{ids};
  const at::Tensor logits = model->forward(inputs, context, nullptr);

  const std::int64_t predicted = ids.size(0) * (causal ? ids.size(1) - 1 : ids.size(1));
  context.targets = targets_of(ids, causal);
  context.gradient_scale = 1.0 / static_cast<double>(predicted);
  nn::Tape tape;
  ProbeResult result{.tokens = predicted};
  result.loss = model->forward(inputs, context, &tape).item<double>();
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
  const at::Tensor whole = logits.cpu().contiguous();
  writer.write("logits",
               {static_cast<const std::byte*>(whole.const_data_ptr()), static_cast<std::size_t>(whole.nbytes())});
  writer.write("loss", Scalar(result.loss).bytes());
  for (const auto& [name, norm] : norms) writer.write(name, norm.bytes());
  writer.finish();
  result.tensors = static_cast<std::int64_t>(norms.size());
  return result;
}

void use_cores(int local_ranks) { at::set_num_threads(std::max(1, usable_cores() / std::max(1, local_ranks))); }

TokenLists generate_on(const GenerateRequest& request, comm::Rank& rank) {
  use_cores(request.local_ranks);
  return generate(request, rank.world());
}

BatchResult generate_batch_on(const BatchRequest& request, comm::Rank& rank) {
  use_cores(request.local_ranks);
  return generate_batch(request, rank.world());
}

bool serve_on(const ServeRequest& request, comm::Rank& rank) {
  use_cores(request.local_ranks);
  return run_server(request, rank.world());
}

constexpr Commands kCommands{.version = kVersion,
                             .probe = &probe,
                             .generate = &generate_on,
                             .generate_batch = &generate_batch_on,
                             .serve = &serve_on};

}  // namespace

extern "C" const Commands* trireme_serve() {
  device::keep_host_memory();
  return &kCommands;
}

}  // namespace trireme::serve
