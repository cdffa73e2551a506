// VGG-16 and VGG-19 (Simonyan and Zisserman 2014, 1409.1556), configurations D and E.
#include <fmt/format.h>

#include "trireme/base/error.h"
#include "trireme/plan/graph/models.h"

namespace trireme::plan::graph {

Graph vgg(int layers, const ImageShape& image) {
  if (layers != 16 && layers != 19)
    throw ConfigError(fmt::format("there is no VGG-{} here", layers), "take vgg16 or vgg19");
  Builder build(fmt::format("vgg{}", layers));
  const int n = build.dim("n", image.batch), classes = build.dim("classes", image.classes);
  int x = build.input("image", {n, build.dim("rgb", 3), build.dim(fmt::format("h{}", image.size), image.size),
                                build.dim(fmt::format("w{}", image.size), image.size)});
  const Index channels[] = {64, 128, 256, 512, 512};
  for (int block = 0; block < 5; ++block) {
    const int convolutions = block < 2 ? 2 : layers == 16 ? 3 : 4;
    for (int i = 0; i < convolutions; ++i) {
      const std::string name = fmt::format("conv{}_{}", block + 1, i + 1);
      x = build.convolution(name, x, {.channels = channels[block] / image.width, .kernel = {3, 3}, .padding = {1, 1}});
      x = build.elementwise("relu" + name.substr(4), "relu", {x});
    }
    x = build.pooling(fmt::format("pool{}", block + 1), x, {});
  }
  const std::vector<int> dims = build.dims_of(x);
  const int features = build.dim("features", build.size(dims[1]) * build.size(dims[2]) * build.size(dims[3]));
  x = build.reshape("flatten", x, {{{dims[1], dims[2], dims[3]}, {features}}});
  for (const int number : {6, 7}) {
    x = build.linear(fmt::format("fc{}", number), x, build.dim(fmt::format("fc{}.out", number), 4096 / image.width));
    x = build.elementwise(fmt::format("relu{}", number), "relu", {x});
    x = build.elementwise(fmt::format("dropout{}", number), "dropout", {x});
  }
  x = build.linear("fc8", x, classes);
  build.loss("loss", x, build.indices("labels", {n}), classes);
  return build.finish();
}

}  // namespace trireme::plan::graph
