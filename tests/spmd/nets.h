// Small nets that between them have every kind of operator.
#pragma once

#include <string>

#include "trireme/plan/graph/build.h"
#include "trireme/spmd/block.h"

namespace trireme::spmd {

/// Everything with a window: strides, dilation, both kinds of pooling, a transposed convolution, batch norm, concat.
inline pg::Graph window_net(pg::Index batch = 2) {
  pg::Builder build("windows");
  const int n = build.dim("n", batch), classes = build.dim("classes", 4);
  int x = build.input("image", {n, build.dim("rgb", 4), build.dim("h16", 16), build.dim("w16", 16)});
  x = build.convolution("conv1", x, {.channels = 4, .kernel = {3, 5}, .padding = {1, 2}});
  x = build.batch_norm("bn1", x);
  x = build.elementwise("relu1", "relu", {x});
  const int skip = x;
  x = build.pooling("pool1", x, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}});
  x = build.convolution("conv2", x, {.channels = 4, .kernel = {5, 3}, .padding = {2, 1}, .bias = false});
  x = build.pooling("pool2", x, {.function = "average", .kernel = {3, 3}, .stride = {1, 1}, .padding = {1, 1}});
  x = build.transposed_convolution("up", x, 4, 2);
  x = build.concat("join", {skip, x}, build.dim("joined", 8));
  x = build.convolution("conv3", x, {.channels = 8, .kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}});
  x = build.elementwise("drop", "dropout", {x});
  x = build.global_average("mean", x);
  x = build.linear("fc", x, classes);
  build.loss("loss", x, build.indices("labels", {n}), classes);
  return build.finish();
}

/// Four fully connected layers.
inline pg::Graph perceptron() {
  pg::Builder build("mlp");
  const int n = build.dim("n", 8), classes = build.dim("classes", 4);
  int x = build.input("x", {n, build.dim("in", 8)});
  for (int layer = 0; layer < 4; ++layer) {
    const std::string name = "fc" + std::to_string(layer);
    x = build.linear(name, x, layer < 3 ? build.dim(name + ".out", 8) : classes);
    if (layer < 3) x = build.elementwise("relu" + std::to_string(layer), "relu", {x});
  }
  build.loss("loss", x, build.indices("labels", {n}), classes);
  return build.finish();
}

inline int classified(pg::Builder& build, int x, int n) {
  const int classes = build.dim("classes", 4);
  x = build.linear("fc", build.global_average("mean", x), classes);
  return build.loss("loss", x, build.indices("labels", {n}), classes);
}

/// A bottleneck of ResNet that halves the image.
inline pg::Graph residual_block() {
  pg::Builder build("residual");
  const int n = build.dim("n", 4);
  const int x = build.input("image", {n, build.dim("c", 4), build.dim("h8", 8), build.dim("w8", 8)});
  const auto unit = [&](const std::string& name, int from, const pg::ConvolutionShape& shape) {
    return build.batch_norm(name + ".bn", build.convolution(name, from, shape));
  };
  int y = build.elementwise("relu1", "relu", {unit("conv1", x, {.channels = 4, .bias = false})});
  y = unit("conv2", y, {.channels = 4, .kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}, .bias = false});
  y = build.elementwise("relu2", "relu", {y});
  y = unit("conv3", y, {.channels = 8, .bias = false, .channel_dim = "out"});
  const int skip = unit("skip", x, {.channels = 8, .stride = {2, 2}, .bias = false, .channel_dim = "out"});
  classified(build, build.elementwise("relu3", "relu", {build.elementwise("add", "add", {y, skip})}), n);
  return build.finish();
}

/// Four branches that are joined, as in Inception.
inline pg::Graph inception_block() {
  pg::Builder build("inception");
  const int n = build.dim("n", 2);
  const int x = build.input("image", {n, build.dim("c", 4), build.dim("h8", 8), build.dim("w8", 8)});
  const auto unit = [&](const std::string& name, int from, const pg::ConvolutionShape& shape) {
    return build.elementwise(name + ".relu", "relu", {build.convolution(name, from, shape)});
  };
  const int one = unit("one", x, {.channels = 4});
  const int five =
      unit("five", unit("five.in", x, {.channels = 2}), {.channels = 4, .kernel = {5, 5}, .padding = {2, 2}});
  int tall = unit("tall", x, {.channels = 4, .kernel = {1, 3}, .padding = {0, 1}});
  tall = unit("wide", tall, {.channels = 4, .kernel = {3, 1}, .padding = {1, 0}});
  int pooled = build.pooling("pool", x, {.function = "average", .kernel = {3, 3}, .stride = {1, 1}, .padding = {1, 1}});
  pooled = unit("pooled", pooled, {.channels = 4});
  classified(build, build.concat("join", {one, five, tall, pooled}, build.dim("joined", 16)), n);
  return build.finish();
}

/// Elementwise functions, broadcasts, parameters and activations that are read twice, keys that are also values.
inline pg::Graph mixed_net() {
  pg::Builder build("mixed");
  const int n = build.dim("n", 4), s = build.dim("s", 4), heads = build.dim("heads", 4), units = build.dim("units", 4);
  const int model = build.dim("model", 8), classes = build.dim("classes", 8), inner = build.dim("inner", 8);
  int x = build.input("x", {n, s, model});
  x = build.layer_norm("norm", x);
  const int q = build.dense("q", x, {model}, {heads, units}), k = build.dense("k", x, {model}, {heads, units});
  const int y = build.attention("self", q, k, k, "causal");
  x = build.dense("out", y, {heads, units}, {model});
  x = build.elementwise("gate", "multiply", {x, build.parameter("gate.weight", {s, model}), x});
  x = build.elementwise("sigmoid", "sigmoid", {x});
  const int weight = build.parameter("shared", {model, inner});
  const int up = build.einsum("up", {x, weight}, {n, s, inner});
  x = build.einsum("down", {build.elementwise("tanh", "tanh", {up}), weight}, {n, s, model});
  x = build.elementwise("bias", "add", {x, build.parameter("bias.weight", {model})});
  x = build.linear("head", x, classes, false);
  build.loss("loss", x, build.indices("labels", {n, s}), classes);
  return build.finish();
}

}  // namespace trireme::spmd
