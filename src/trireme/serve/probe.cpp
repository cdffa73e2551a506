#include "trireme/serve/probe.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/checkpoint/open_model.h"
#include "trireme/device/tensor_buffer.h"
#include "trireme/formats/safetensors_writer.h"
#include "trireme/layout/reduction.h"
#include "trireme/models/published.h"
#include "trireme/parallel/gpu_exchange.h"
#include "trireme/parallel/parallel_groups.h"
#include "trireme/serve/generate.h"

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

/// The whole gradient of a parameter, of which each rank has its part, or copies, or an addend, on every rank.
at::Tensor whole_gradient(const nn::Param& param, const layout::Mesh& mesh, comm::Group& world) {
  const std::int64_t count = layout::elements(param.placement.shape);
  at::Tensor sums = at::zeros({2, count}, at::kDouble);  // of gradients, and of how often each is counted
  const at::Tensor own = param.gradient.to(at::kDouble).cpu().contiguous().view({-1});
  const auto reductions = layout::reduction_axes(mesh, param.placement, param.equal_axes);
  const auto addends = [&](layout::Index local) {
    for (const layout::Reduction& reduction : reductions) {
      if (local < reduction.local.begin || local >= reduction.local.end) continue;
      std::int64_t ranks = 1;
      for (const std::string& axis : reduction.axes) ranks *= mesh.size(axis);
      return ranks;
    }
    return std::int64_t{1};
  };
  for (const layout::ContiguousRun& run : layout::runs(param.placement)) {
    sums.select(0, 0).narrow(0, run.global, run.count).copy_(own.narrow(0, run.local, run.count));
    sums.select(0, 1).narrow(0, run.global, run.count).fill_(1.0 / static_cast<double>(addends(run.local)));
  }
  if (world.size() > 1) world.all_reduce(device::to_buffer(sums), comm::Reduce::kSum).wait();
  return (sums.select(0, 0) / sums.select(0, 1)).view(param.placement.shape);
}

}  // namespace

ProbeResult probe(const ProbeRequest& request, comm::Group& world) {
  const formats::HfDirectory directory(request.model);
  const TokenLists lists = formats::read_token_lists(request.ids, /*equal=*/true);
  spec::ModelShape shape = checkpoint::stored_shape(request.model);
  shape.mtp_depth = 0;  // the reference has no modules of multi-token prediction
  check_positions(lists, shape);
  for (const auto& list : lists) check_tokens(list, shape);
  const bool encoder = shape.num_encoder_layers > 0;  // it reads the lists, and its decoder is to give them again
  const bool causal = shape.causal && !encoder;
  const spec::LayoutConfig layout{.tp = world.size()};
  spec::LayoutTask task;
  task.shape = shape;
  task.ranks = world.size();
  task.batch_rows = world.size();
  parallel::check_layout(layout, {}, task);
  const auto groups =
      parallel::form(layout, shape, world, /*length=*/1, parallel::init_device_exchange(request.device, world));
  const at::Device device = groups->device;
  const at::Tensor ids = as_tensor(lists).to(device);
  if (causal && ids.size(1) < 2) {
    throw ConfigError(fmt::format("{} holds one token a list, but a next-token loss takes two", request.ids.string()));
  }
  checkpoint::OpenOptions options;
  options.device = device;
  options.shape = shape;
  options.build.parallel = &groups->parallel;
  const auto model = checkpoint::open_model(request.model, options).model;
  const auto whole = models::build(shape);  // names and shapes, without memory
  if (world.rank() == 0) log_info("{}: {} parameters", request.model.string(), whole->params.elements());

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
  std::map<std::string, at::Tensor> gradients;
  for (const nn::Param& param : model->params)
    gradients.emplace(param.name, whole_gradient(param, groups->parallel.mesh, world));
  for (const models::PublishedTensor& tensor : models::published_tensors(*whole, known)) {
    if (tensor.optional) continue;  // a tied weight's other name
    const at::Tensor gradient = models::published_view(tensor, gradients.at(tensor.param->name));
    const std::string name = "grad_norm." + tensor.name;
    specs.push_back({.name = name, .dtype = formats::Dtype::kF32});
    norms.emplace_back(name, Scalar(at::linalg_vector_norm(gradient, 2, {}, false, at::kDouble).item<double>()));
  }
  result.tensors = static_cast<std::int64_t>(norms.size());
  if (world.rank() != 0) return result;
  formats::SafetensorsWriter writer(request.out, formats::make_safetensors_header(specs, {}));
  const at::Tensor here = logits.cpu().contiguous();
  writer.write("logits",
               {static_cast<const std::byte*>(here.const_data_ptr()), static_cast<std::size_t>(here.nbytes())});
  writer.write("loss", Scalar(result.loss).bytes());
  for (const auto& [name, norm] : norms) writer.write(name, norm.bytes());
  writer.finish();
  return result;
}

}  // namespace trireme::serve
