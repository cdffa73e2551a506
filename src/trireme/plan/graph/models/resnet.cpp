// Residual networks with bottleneck blocks: ResNet-50, 101 and 152 (He 2015, 1512.03385), and wide ones (Zagoruyko
// 2016, 1605.07146) as torchvision has them: the inner convolutions are wider.
#include <fmt/format.h>

#include <array>

#include "trireme/base/error.h"
#include "trireme/plan/graph/models.h"

namespace trireme::plan::graph {
namespace {

std::array<int, 4> resnet_blocks(int layers) {
  switch (layers) {
    case 14:  // one block a stage: for tests
      return {1, 1, 1, 1};
    case 50:
      return {3, 4, 6, 3};
    case 101:
      return {3, 4, 23, 3};
    case 152:
      return {3, 8, 36, 3};
  }
  throw ConfigError(fmt::format("there is no ResNet-{} of bottleneck blocks", layers), "take 50, 101 or 152");
}

/// Convolution and batch norm.
int resnet_unit(Builder& build, const std::string& name, int x, const ConvolutionShape& shape) {
  return build.batch_norm(name + ".bn", build.convolution(name, x, shape));
}

}  // namespace

Graph resnet(int layers, int wide, const ImageShape& image) {
  Builder build(wide == 1 ? fmt::format("resnet{}", layers) : fmt::format("wide-resnet{}-{}", layers, wide));
  const int n = build.dim("n", image.batch), classes = build.dim("classes", image.classes);
  int x = build.input("image", {n, build.dim("rgb", 3), build.dim(fmt::format("h{}", image.size), image.size),
                                build.dim(fmt::format("w{}", image.size), image.size)});
  x = resnet_unit(build, "conv1", x,
                  {.channels = 64 / image.width, .kernel = {7, 7}, .stride = {2, 2}, .padding = {3, 3}, .bias = false});
  x = build.elementwise("relu1", "relu", {x});
  x = build.pooling("pool1", x, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}});
  const std::array<int, 4> blocks = resnet_blocks(layers);
  for (int stage = 0; stage < 4; ++stage) {
    const Index planes = (64 << stage) / image.width, inner = planes * wide, outer = planes * 4;
    const std::string channel_dim = fmt::format("stage{}.c", stage + 1);
    for (int block = 0; block < blocks[static_cast<std::size_t>(stage)]; ++block) {
      const std::string name = fmt::format("stage{}.{}", stage + 1, block);
      const Index stride = stage > 0 && block == 0 ? 2 : 1;
      int y = resnet_unit(build, name + ".conv1", x, {.channels = inner, .bias = false});
      y = build.elementwise(name + ".relu1", "relu", {y});
      y = resnet_unit(
          build, name + ".conv2", y,
          {.channels = inner, .kernel = {3, 3}, .stride = {stride, stride}, .padding = {1, 1}, .bias = false});
      y = build.elementwise(name + ".relu2", "relu", {y});
      y = resnet_unit(build, name + ".conv3", y, {.channels = outer, .bias = false, .channel_dim = channel_dim});
      if (block == 0)
        x = resnet_unit(build, name + ".downsample", x,
                        {.channels = outer, .stride = {stride, stride}, .bias = false, .channel_dim = channel_dim});
      x = build.elementwise(name + ".add", "add", {y, x});
      x = build.elementwise(name + ".relu3", "relu", {x});
    }
  }
  x = build.global_average("pool", x);
  x = build.linear("fc", x, classes);
  build.loss("loss", x, build.indices("labels", {n}), classes);
  return build.finish();
}

}  // namespace trireme::plan::graph
