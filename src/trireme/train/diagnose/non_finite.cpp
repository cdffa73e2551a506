#include "trireme/train/diagnose/non_finite.h"

#include <ATen/ops/isfinite.h>
#include <fmt/format.h>

#include "trireme/train/engine/feed.h"

namespace trireme::train {
namespace {

bool is_finite(const at::Tensor& tensor) {
  return !tensor.defined() || !tensor.is_floating_point() || at::isfinite(tensor).all().item<bool>();
}
bool are_finite(const nn::Tensors& tensors) { return std::all_of(tensors.begin(), tensors.end(), &is_finite); }

/// Places in the order in which a step visits them: parameters, outputs of layers, gradients of their inputs. A number
/// for each, so that ranks can agree on the smallest.
constexpr std::int64_t kNowhere = std::int64_t{1} << 62;

struct Places {
  const models::Model& model;
  std::int64_t params() const { return static_cast<std::int64_t>(model.params.size()); }
  std::int64_t layers() const { return static_cast<std::int64_t>(model.layers.size()); }
  std::int64_t output(std::size_t layer) const { return params() + static_cast<std::int64_t>(layer); }
  std::int64_t gradient(std::size_t layer) const {
    return params() + 2 * layers() - 1 - static_cast<std::int64_t>(layer);
  }
  std::string text(std::int64_t place) const {
    if (place == kNowhere) return "computed again, everything is finite: the numbers differ from run to run";
    if (place < params()) {
      return fmt::format("first in the weights of {}", std::next(model.params.begin(), place)->name);
    }
    place -= params();
    const bool forward = place < layers();
    const auto layer = static_cast<std::size_t>(forward ? place : 2 * layers() - 1 - place);
    return fmt::format("first in {} {}", forward ? "the output of" : "the gradients of", model.layers[layer].name);
  }
};

/// To the end, whatever is found: other ranks may be waiting for what this one passes on.
std::int64_t find_in_backward(models::Model& model, nn::Context& context, nn::Tape& tape, const Places& places) {
  nn::Tensors gradients(1);
  std::int64_t first = kNowhere;
  for (std::size_t i = model.layers.size(); i-- > 0;) {
    gradients = model.layers[i].layer->backward(std::move(gradients), context, tape);
    bool finite = are_finite(gradients);
    for (const nn::Param& param : model.params) finite = finite && (param.gradient_empty || is_finite(param.gradient));
    if (!finite) first = std::min(first, places.gradient(i));
  }
  return first;
}

std::int64_t find_here(models::Model& model, std::span<data::Batch> batches,
                       const std::function<nn::Context()>& make_context, const nn::TokenSplit& tokens,
                       at::Device device, const Places& places) {
  std::int64_t first = kNowhere, number = 0;
  for (const nn::Param& param : model.params) {
    if (!is_finite(param.value)) first = std::min(first, number);
    ++number;
  }
  for (data::Batch& batch : batches) {
    nn::zero_grad(model.params);
    nn::Context context = make_context();
    nn::Tape tape;
    nn::Tensors x = feed(batch, context, model.shape);
    nn::take_tokens(x, context, tokens);
    move_to(device, x, context, model.shape);
    for (std::size_t i = 0; i < model.layers.size(); ++i) {
      x = model.layers[i].layer->forward(std::move(x), context, &tape);
      if (!are_finite(x)) first = std::min(first, places.output(i));
    }
    first = std::min(first, find_in_backward(model, context, tape, places));
  }
  return first;
}

}  // namespace

std::string first_not_finite(models::Model& model, std::span<data::Batch> batches,
                             const std::function<nn::Context()>& make_context, comm::Group& world,
                             const nn::TokenSplit& tokens, at::Device device) {
  const Places places{model};
  const std::int64_t mine = find_here(model, batches, make_context, tokens, device, places);
  std::int64_t first = mine, rank = 0;
  if (world.size() > 1) {
    world.all_reduce(comm::Buffer{&first, 1, comm::DType::kI64}, comm::Reduce::kMin).wait();
    rank = mine == first ? world.rank() : world.size();
    world.all_reduce(comm::Buffer{&rank, 1, comm::DType::kI64}, comm::Reduce::kMin).wait();
  }
  const std::string text = places.text(first);
  return world.size() > 1 && first >= places.params() && first != kNowhere ? fmt::format("{} on rank {}", text, rank)
                                                                           : text;
}

}  // namespace trireme::train
