// AmoebaNet-D (Real 2018, 1802.01548) as GPipe scales it (Huang 2018, 1811.06965, table 1): normal cells join the
// states 0, 3, 4 and 6, which gives the paper's counts. The second half of a factorised reduction reads pixels shifted
// by one; here both halves read the same ones, which changes neither counts nor costs.
#include <fmt/format.h>

#include "trireme/base/error.h"
#include "trireme/plan/graph/models.h"

namespace trireme::plan::graph {
namespace {

enum class CellOp { kNone, kConv1, kConv3, kConv7, kAverage, kMax2, kMax3 };
struct CellStep {
  int state;
  CellOp op;
};

constexpr CellStep kNormalCell[] = {{1, CellOp::kConv1},   {1, CellOp::kMax3},  {1, CellOp::kNone}, {0, CellOp::kConv7},
                                    {0, CellOp::kConv1},   {0, CellOp::kConv7}, {2, CellOp::kMax3}, {2, CellOp::kNone},
                                    {1, CellOp::kAverage}, {5, CellOp::kConv1}};
constexpr CellStep kReductionCell[] = {
    {0, CellOp::kMax2}, {0, CellOp::kMax3}, {2, CellOp::kNone}, {1, CellOp::kConv3},   {2, CellOp::kConv7},
    {2, CellOp::kMax3}, {3, CellOp::kNone}, {1, CellOp::kMax2}, {2, CellOp::kAverage}, {3, CellOp::kConv1}};

class Amoeba {
 public:
  Amoeba(int layers, Index filters, const ImageShape& image)
      : build_(fmt::format("amoebanet-d-{}-{}", layers, filters)),
        image_(image),
        layers_(layers),
        channels_(filters / 4) {}

  Graph run() {
    const int n = build_.dim("n", image_.batch), classes = build_.dim("classes", image_.classes);
    int x = build_.input("image", {n, build_.dim("rgb", 3), build_.dim(fmt::format("h{}", image_.size), image_.size),
                                   build_.dim(fmt::format("w{}", image_.size), image_.size)});
    x = build_.convolution(
        "stem1", x, {.channels = channels_, .kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}, .bias = false});
    x = build_.batch_norm("stem1.bn", x);
    previous_ = before_ = x;
    cell("stem2", true);
    cell("stem3", true);
    for (int group = 0; group < 3; ++group) {
      if (group > 0) cell(fmt::format("cell{}_reduction", 2 * group), true);
      for (int i = 0; i < layers_ / 3; ++i) cell(fmt::format("cell{}_normal{}", 2 * group + 1, i + 1), false);
    }
    x = build_.global_average("pool", previous_);
    x = build_.linear("fc", x, classes);
    build_.loss("loss", x, build_.indices("labels", {n}), classes);
    return build_.finish();
  }

 private:
  /// ReLU, convolution and batch norm. Channels are the cell's again, so that states can be added.
  int unit(const std::string& name, int x, ConvolutionShape shape, int channel) {
    shape.bias = false;
    shape.channels = build_.size(channel);
    x = build_.convolution(name, build_.elementwise(name + ".relu", "relu", {x}), shape);
    return renamed(name, build_.batch_norm(name + ".bn", x), channel);
  }
  int renamed(const std::string& name, int x, int channel) {
    return build_.reshape(name + ".rename", x, {{{build_.dims_of(x)[1]}, {channel}}});
  }
  int factorized(const std::string& name, int x, int channel) {
    x = build_.elementwise(name + ".relu", "relu", {x});
    const ConvolutionShape half{.channels = build_.size(channel) / 2, .stride = {2, 2}, .bias = false};
    const std::vector<int> halves{build_.convolution(name + ".1", x, half), build_.convolution(name + ".2", x, half)};
    x = build_.concat(name + ".both", halves, build_.dim(name + ".c", build_.size(channel)));
    return renamed(name, build_.batch_norm(name + ".bn", x), channel);
  }

  int apply(const std::string& name, CellOp op, int x, int channel, Index stride) {
    const Index c = build_.size(channel);
    const auto narrow = [&](const char* ending) { return build_.dim(name + ending, c / 4); };
    switch (op) {
      case CellOp::kNone:
        return stride == 1 ? x : factorized(name, x, channel);
      case CellOp::kAverage:
      case CellOp::kMax3:
        return build_.pooling(name, x,
                              {.function = op == CellOp::kMax3 ? "max" : "average",
                               .kernel = {3, 3},
                               .stride = {stride, stride},
                               .padding = {1, 1}});
      case CellOp::kMax2:
        return build_.pooling(name, x, {.stride = {stride, stride}});
      case CellOp::kConv1:
        return unit(name, x, {.stride = {stride, stride}}, channel);
      case CellOp::kConv3:
        x = unit(name + ".1", x, {}, narrow(".in"));
        x = unit(name + ".2", x, {.kernel = {3, 3}, .stride = {stride, stride}, .padding = {1, 1}}, narrow(".out"));
        return unit(name + ".3", x, {}, channel);
      case CellOp::kConv7:
        x = unit(name + ".1", x, {}, narrow(".in"));
        x = unit(name + ".2", x, {.kernel = {1, 7}, .stride = {1, stride}, .padding = {0, 3}}, narrow(".mid"));
        x = unit(name + ".3", x, {.kernel = {7, 1}, .stride = {stride, 1}, .padding = {3, 0}}, narrow(".out"));
        return unit(name + ".4", x, {}, channel);
    }
    return x;
  }

  void cell(const std::string& name, bool reduces) {
    if (reduces) channels_ *= 2;
    const int channel = build_.dim(name + ".c", channels_);
    std::vector<int> states{unit(name + ".reduce1", previous_, {}, channel)};
    states.push_back(reduced_before_ ? factorized(name + ".reduce2", before_, channel)
                                     : unit(name + ".reduce2", before_, {}, channel));
    const auto steps = reduces ? std::span(kReductionCell) : std::span(kNormalCell);
    for (std::size_t i = 0; i < steps.size(); i += 2) {
      std::vector<int> pair;
      for (const std::size_t k : {i, i + 1}) {
        const Index stride = reduces && steps[k].state < 2 ? 2 : 1;
        pair.push_back(apply(fmt::format("{}.op{}", name, k), steps[k].op,
                             states[static_cast<std::size_t>(steps[k].state)], channel, stride));
      }
      states.push_back(build_.elementwise(fmt::format("{}.add{}", name, i / 2), "add", pair));
    }
    std::vector<int> joined;
    for (const std::size_t state : reduces ? std::vector<std::size_t>{4, 5, 6} : std::vector<std::size_t>{0, 3, 4, 6}) {
      // One tensor for each of the parts: their channels have names of their own.
      const int part = build_.dim(fmt::format("{}.part{}", name, state), channels_);
      joined.push_back(renamed(fmt::format("{}.state{}", name, state), states[state], part));
    }
    before_ = previous_;
    previous_ = build_.concat(name + ".concat", joined,
                              build_.dim(name + ".all", channels_ * static_cast<Index>(joined.size())));
    reduced_before_ = reduces;
  }

  Builder build_;
  const ImageShape image_;
  const int layers_;
  Index channels_;
  int previous_ = -1, before_ = -1;
  bool reduced_before_ = false;
};

}  // namespace

Graph amoebanet_d(int layers, Index filters, const ImageShape& image) {
  if (layers < 3 || layers % 3 != 0)
    throw ConfigError(fmt::format("AmoebaNet-D has three groups of cells: {} layers do not divide", layers),
                      fmt::format("take {}", std::max(3, layers / 3 * 3)));
  return Amoeba(layers, filters, image).run();
}

}  // namespace trireme::plan::graph
