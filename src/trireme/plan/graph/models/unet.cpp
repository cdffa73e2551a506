// U-Net (Ronneberger 2015, 1505.04597) with padded convolutions, so that what is joined has one size, and a
// segmentation of the whole image as its loss.
#include <fmt/format.h>

#include "trireme/plan/graph/models.h"

namespace trireme::plan::graph {

Graph unet(Index channels, Index image_channels, const ImageShape& image, bool batch_norm) {
  Builder build("unet");
  const int n = build.dim("n", image.batch), classes = build.dim("classes", image.classes);
  const int h = build.dim(fmt::format("h{}", image.size), image.size);
  const int w = build.dim(fmt::format("w{}", image.size), image.size);
  int x = build.input("image", {n, build.dim("image.c", image_channels), h, w});
  const auto twice = [&](const std::string& name, Index to) {
    for (const int i : {1, 2}) {
      x = build.convolution(fmt::format("{}.conv{}", name, i), x,
                            {.channels = to, .kernel = {3, 3}, .padding = {1, 1}, .bias = !batch_norm});
      if (batch_norm) x = build.batch_norm(fmt::format("{}.bn{}", name, i), x);
      x = build.elementwise(fmt::format("{}.relu{}", name, i), "relu", {x});
    }
  };
  std::vector<int> skips;
  for (int level = 0; level < 4; ++level) {
    twice(fmt::format("down{}", level + 1), channels << level);
    skips.push_back(x);
    x = build.pooling(fmt::format("pool{}", level + 1), x, {});
  }
  twice("bottom", channels << 4);
  for (int level = 3; level >= 0; --level) {
    const std::string name = fmt::format("up{}", level + 1);
    x = build.transposed_convolution(name, x, channels << level, 2);
    x = build.concat(name + ".join", {skips[static_cast<std::size_t>(level)], x},
                     build.dim(name + ".joined", 2 * (channels << level)));
    twice(name, channels << level);
  }
  x = build.convolution("head", x, {.channels = image.classes, .channel_dim = "classes"});
  build.loss("loss", x, build.indices("labels", {n, h, w}), classes);
  return build.finish();
}

}  // namespace trireme::plan::graph
