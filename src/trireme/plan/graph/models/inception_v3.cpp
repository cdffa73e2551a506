// Inception-v3 (Szegedy 2015, 1512.00567) as torchvision has it, with the auxiliary classifier.
#include <fmt/format.h>

#include "trireme/plan/graph/models.h"

namespace trireme::plan::graph {
namespace {

using Pair = std::array<Index, 2>;

class Inception {
 public:
  explicit Inception(const ImageShape& image) : build_("inception-v3"), image_(image) {}

  Graph run() {
    const int n = build_.dim("n", image_.batch), classes = build_.dim("classes", image_.classes);
    int x = build_.input("image", {n, build_.dim("rgb", 3), build_.dim(fmt::format("h{}", image_.size), image_.size),
                                   build_.dim(fmt::format("w{}", image_.size), image_.size)});
    x = unit("conv1", x, 32, {3, 3}, {2, 2}, {0, 0});
    x = unit("conv2", x, 32, {3, 3}, {1, 1}, {0, 0});
    x = unit("conv3", x, 64, {3, 3}, {1, 1}, {1, 1});
    x = build_.pooling("pool1", x, {.kernel = {3, 3}, .stride = {2, 2}});
    x = unit("conv4", x, 80, {1, 1}, {1, 1}, {0, 0});
    x = unit("conv5", x, 192, {3, 3}, {1, 1}, {0, 0});
    x = build_.pooling("pool2", x, {.kernel = {3, 3}, .stride = {2, 2}});
    x = block_a("mixed1", x, 32);
    x = block_a("mixed2", x, 64);
    x = block_a("mixed3", x, 64);
    x = block_b("mixed4", x);
    for (const auto& [name, channels] : {std::pair{"mixed5", 128}, {"mixed6", 160}, {"mixed7", 160}, {"mixed8", 192}})
      x = block_c(name, x, channels);
    const int labels = build_.indices("labels", {n});
    auxiliary(x, labels, classes);
    x = block_d("mixed9", x);
    x = block_e("mixed10", x);
    x = block_e("mixed11", x);
    x = build_.global_average("pool", x);
    x = build_.elementwise("dropout", "dropout", {x});
    x = build_.linear("fc", x, classes);
    build_.loss("loss", x, labels, classes);
    return build_.finish();
  }

 private:
  /// Convolution, batch norm and ReLU.
  int unit(const std::string& name, int x, Index channels, Pair kernel, Pair stride, Pair padding) {
    x = build_.convolution(name, x,
                           {.channels = std::max<Index>(channels / image_.width, 1),
                            .kernel = kernel,
                            .stride = stride,
                            .padding = padding,
                            .bias = false});
    return build_.elementwise(name + ".relu", "relu", {build_.batch_norm(name + ".bn", x)});
  }
  /// That keeps heights and widths.
  int same(const std::string& name, int x, Index channels, Pair kernel = {1, 1}) {
    return unit(name, x, channels, kernel, {1, 1}, {kernel[0] / 2, kernel[1] / 2});
  }
  int halved(const std::string& name, int x, Index channels) { return unit(name, x, channels, {3, 3}, {2, 2}, {0, 0}); }
  int pooled(const std::string& name, int x) {
    return build_.pooling(name, x, {.function = "average", .kernel = {3, 3}, .stride = {1, 1}, .padding = {1, 1}});
  }
  int joined(const std::string& name, const std::vector<int>& branches) {
    Index channels = 0;
    for (const int branch : branches) channels += build_.size(build_.dims_of(branch)[1]);
    return build_.concat(name, branches, build_.dim(name + ".c", channels));
  }

  int block_a(const std::string& name, int x, Index pool_channels) {
    const int one = same(name + ".1x1", x, 64);
    const int five = same(name + ".5x5_2", same(name + ".5x5_1", x, 48), 64, {5, 5});
    const int three =
        same(name + ".3x3_3", same(name + ".3x3_2", same(name + ".3x3_1", x, 64), 96, {3, 3}), 96, {3, 3});
    const int pool = same(name + ".pool_1x1", pooled(name + ".pool", x), pool_channels);
    return joined(name, {one, five, three, pool});
  }
  int block_b(const std::string& name, int x) {
    const int three = halved(name + ".3x3", x, 384);
    const int twice =
        halved(name + ".twice_3", same(name + ".twice_2", same(name + ".twice_1", x, 64), 96, {3, 3}), 96);
    return joined(name, {three, twice, build_.pooling(name + ".pool", x, {.kernel = {3, 3}, .stride = {2, 2}})});
  }
  int block_c(const std::string& name, int x, Index channels) {
    const int one = same(name + ".1x1", x, 192);
    int seven = same(name + ".7_1", x, channels);
    seven = same(name + ".7_2", seven, channels, {1, 7});
    seven = same(name + ".7_3", seven, 192, {7, 1});
    int twice = same(name + ".twice_1", x, channels);
    twice = same(name + ".twice_2", twice, channels, {7, 1});
    twice = same(name + ".twice_3", twice, channels, {1, 7});
    twice = same(name + ".twice_4", twice, channels, {7, 1});
    twice = same(name + ".twice_5", twice, 192, {1, 7});
    return joined(name, {one, seven, twice, same(name + ".pool_1x1", pooled(name + ".pool", x), 192)});
  }
  int block_d(const std::string& name, int x) {
    const int three = halved(name + ".3x3_2", same(name + ".3x3_1", x, 192), 320);
    int seven = same(name + ".7_1", x, 192);
    seven = same(name + ".7_2", seven, 192, {1, 7});
    seven = same(name + ".7_3", seven, 192, {7, 1});
    seven = halved(name + ".7_4", seven, 192);
    return joined(name, {three, seven, build_.pooling(name + ".pool", x, {.kernel = {3, 3}, .stride = {2, 2}})});
  }
  int block_e(const std::string& name, int x) {
    const auto fork = [&](const std::string& branch, int from) {
      return joined(branch, {same(branch + "_1x3", from, 384, {1, 3}), same(branch + "_3x1", from, 384, {3, 1})});
    };
    const int one = same(name + ".1x1", x, 320);
    const int three = fork(name + ".3x3", same(name + ".3x3_1", x, 384));
    const int twice = fork(name + ".twice", same(name + ".twice_2", same(name + ".twice_1", x, 448), 384, {3, 3}));
    return joined(name, {one, three, twice, same(name + ".pool_1x1", pooled(name + ".pool", x), 192)});
  }
  /// A second loss in the middle, which counts less; what it weighs is the trainer's.
  void auxiliary(int x, int labels, int classes) {
    x = build_.pooling("aux.pool", x, {.function = "average", .kernel = {5, 5}, .stride = {3, 3}});
    x = same("aux.conv1", x, 128);
    x = unit("aux.conv2", x, 768, {5, 5}, {1, 1}, {0, 0});
    x = build_.global_average("aux.mean", x);
    x = build_.linear("aux.fc", x, classes);
    build_.loss("aux.loss", x, labels, classes);
  }

  Builder build_;
  const ImageShape image_;
};

}  // namespace

Graph inception_v3(const ImageShape& image) { return Inception(image).run(); }

}  // namespace trireme::plan::graph
