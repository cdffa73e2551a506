#include "trireme/spmd/images.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/upsample_bilinear2d.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/device/tensor_buffer.h"

namespace trireme::spmd {
namespace {

/// A whole tensor out of ranks' blocks; where several ranks have one, their mean, which is what each of them has.
at::Tensor gathered(comm::Group& world, const std::vector<std::int64_t>& sizes, const at::Tensor& block,
                    const Place& place) {
  std::int64_t elements = 1;
  for (const std::int64_t size : sizes) elements *= size;
  at::Tensor both = at::zeros({2, elements}, at::kDouble);
  if (block.defined()) {
    box_of(both[0].view(sizes), place).copy_(block);
    box_of(both[1].view(sizes), place).fill_(1);
  }
  world.all_reduce(device::to_buffer(both), comm::Reduce::kSum).wait();
  return (both[0] / both[1]).view(sizes);
}

}  // namespace

ImageBatches::ImageBatches(const pg::Graph& forward, const ImageSet& images, std::uint64_t seed)
    : images_(images), seed_(seed), type_(at::kFloat) {
  for (std::size_t i = 0; i < forward.tensors.size(); ++i) {
    const pg::Tensor& tensor = forward.tensors[i];
    if (tensor.role != pg::Role::kInput) continue;
    if (tensor.dtype == pg::DType::kInt32 && tensor.dims.size() == 1) labels_.push_back(static_cast<int>(i));
    if (tensor.dtype == pg::DType::kInt32 || tensor.dims.size() != 4) continue;
    input_ = static_cast<int>(i);
    type_ = scalar_type(tensor.dtype);
    for (const int dim : tensor.dims) sizes_.push_back(forward.size(dim));
  }
  if (input_ < 0 || labels_.empty())
    throw ConfigError(fmt::format("graph {} does not classify images", forward.name),
                      "take one that does, such as resnet50");
  const int most = *std::ranges::max_element(images.labels);
  for (const pg::Op& op : forward.ops) {
    if (op.kind == pg::OpKind::kSoftmaxLoss && forward.size(op.dims[0]) <= most)
      throw ConfigError(fmt::format("graph {} has {} classes, and images have labels up to {}", forward.name,
                                    forward.size(op.dims[0]), most),
                        "take a graph with more classes");
  }
  batch_ = static_cast<std::size_t>(sizes_[0]);
  if (batch_ > size())
    throw ConfigError(fmt::format("a step has {} samples, and there are {} images", batch_, size()), "say --batch");
}

Values ImageBatches::of_step(const Values& start, std::int64_t step) const {
  const std::size_t per_epoch = size() / batch_;
  const auto epoch = static_cast<std::size_t>(step) / per_epoch, turn = static_cast<std::size_t>(step) % per_epoch;
  std::vector<std::size_t> order(size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const Random random(seed_, fmt::format("images/epoch {}", epoch));
  for (std::size_t i = size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i, i)]);
  return with(start, {order.begin() + static_cast<std::ptrdiff_t>(turn * batch_),
                      order.begin() + static_cast<std::ptrdiff_t>((turn + 1) * batch_)});
}

Values ImageBatches::in_order(const Values& start, std::size_t begin) const {
  std::vector<std::size_t> samples;
  for (std::size_t i = 0; i < batch_; ++i) samples.push_back(std::min(begin + i, size() - 1));
  return with(start, samples);
}

Values ImageBatches::with(const Values& start, const std::vector<std::size_t>& samples) const {
  const auto pixels = static_cast<std::size_t>(images_.side) * static_cast<std::size_t>(images_.side);
  at::Tensor image = at::empty({sizes_[0], 1, images_.side, images_.side}, at::kFloat),
             label = at::empty({sizes_[0]}, at::kLong);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    std::copy_n(images_.pixels.begin() + static_cast<std::ptrdiff_t>(samples[i] * pixels), pixels,
                image.mutable_data_ptr<float>() + i * pixels);
    label.mutable_data_ptr<std::int64_t>()[i] = images_.labels[samples[i]];
  }
  image = at::upsample_bilinear2d(image * 2 - 1, {sizes_[2], sizes_[3]}, false);
  Values values = start;
  values[static_cast<std::size_t>(input_)] = in_channels_last(image.expand(sizes_).to(type_));
  for (const int labels : labels_) values[static_cast<std::size_t>(labels)] = label;
  return values;
}

double accuracy_of(const pg::Graph& forward, const Executor& executor, const ImageBatches& images, const Values& start,
                   comm::Group& world) {
  Values values = start;
  for (std::size_t i = 0; i < forward.tensors.size(); ++i) {
    const int tensor = static_cast<int>(i);
    if (forward.tensors[i].role != pg::Role::kParameter || !start[i].defined()) continue;
    const bool holds = executor.holds(tensor);
    values[i] = gathered(world, start[i].sizes().vec(), holds ? executor.parameter(tensor) : at::Tensor(),
                         holds ? executor.parameter_place(tensor) : Place{})
                    .to(start[i].scalar_type());
  }
  RunningStatistics running;
  const RunningStatistics& own = executor.statistics();
  for (const pg::Op& op : forward.ops) {
    if (!is_batch_norm(op)) continue;
    const std::vector<std::int64_t> sizes{2, start[static_cast<std::size_t>(op.inputs[1])].size(0)};
    const auto found = own.find(op.name);
    Place place;
    if (found != own.end()) place = {{0, found->second.origin}, {2, found->second.moments.size(1)}};
    running[op.name] = {gathered(world, sizes, found != own.end() ? found->second.moments : at::Tensor(), place), 0};
  }
  double right = 0;
  if (world.rank() == 0) {
    for (std::size_t begin = 0; begin < images.size(); begin += images.batch()) {
      const Values inputs = images.in_order(values, begin);
      const at::Tensor logits = run_logits(forward, inputs, running);
      const auto count = static_cast<std::int64_t>(std::min(images.batch(), images.size() - begin));
      at::Tensor labels;
      for (const pg::Op& op : forward.ops) {
        if (op.kind == pg::OpKind::kSoftmaxLoss) labels = inputs[static_cast<std::size_t>(op.inputs[1])];
      }
      right += logits.argmax(1).eq(labels).narrow(0, 0, count).sum().item<double>();
    }
  }
  world.broadcast(comm::Buffer{&right, 1, comm::DType::kF64}, 0).wait();
  return right / static_cast<double>(images.size());
}

}  // namespace trireme::spmd
