// AlexNet with one column, as torchvision has it (Krizhevsky 2014, 1404.5997).
#include <fmt/format.h>

#include "trireme/plan/graph/models.h"

namespace trireme::plan::graph {

Graph alexnet(const ImageShape& image) {
  Builder build("alexnet");
  const int n = build.dim("n", image.batch), classes = build.dim("classes", image.classes);
  int x = build.input("image", {n, build.dim("rgb", 3), build.dim(fmt::format("h{}", image.size), image.size),
                                build.dim(fmt::format("w{}", image.size), image.size)});
  const auto convolution = [&](int number, Index channels, Index kernel, Index stride, Index padding) {
    x = build.convolution(fmt::format("conv{}", number), x,
                          {.channels = channels / image.width,
                           .kernel = {kernel, kernel},
                           .stride = {stride, stride},
                           .padding = {padding, padding}});
    x = build.elementwise(fmt::format("relu{}", number), "relu", {x});
  };
  const auto pool = [&](int number) {
    x = build.pooling(fmt::format("pool{}", number), x, {.kernel = {3, 3}, .stride = {2, 2}});
  };
  convolution(1, 64, 11, 4, 2);
  pool(1);
  convolution(2, 192, 5, 1, 2);
  pool(2);
  convolution(3, 384, 3, 1, 1);
  convolution(4, 256, 3, 1, 1);
  convolution(5, 256, 3, 1, 1);
  pool(5);
  const std::vector<int> dims = build.dims_of(x);
  const int features = build.dim("features", build.size(dims[1]) * build.size(dims[2]) * build.size(dims[3]));
  x = build.reshape("flatten", x, {{{dims[1], dims[2], dims[3]}, {features}}});
  for (const int number : {6, 7}) {
    x = build.elementwise(fmt::format("dropout{}", number), "dropout", {x});
    x = build.linear(fmt::format("fc{}", number), x, build.dim(fmt::format("fc{}.out", number), 4096 / image.width));
    x = build.elementwise(fmt::format("relu{}", number), "relu", {x});
  }
  x = build.linear("fc8", x, classes);
  build.loss("loss", x, build.indices("labels", {n}), classes);
  return build.finish();
}

}  // namespace trireme::plan::graph
