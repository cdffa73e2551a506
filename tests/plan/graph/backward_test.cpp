// Derived gradients: equal to finite differences, and there for every parameter of every model.
#include "trireme/plan/graph/backward.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/plan/graph/numeric.h"
#include "trireme/base/error.h"
#include "trireme/plan/graph/build.h"
#include "trireme/plan/graph/models.h"

namespace trireme::plan::graph {
namespace {

/// Everything the reference can run: convolutions of both kinds, strides, residuals, broadcasts, a shared weight.
Graph mixed_net() {
  Builder build("mixed");
  const int n = build.dim("n", 2), classes = build.dim("classes", 2), c = build.dim("c", 2);
  int x = build.input("x", {n, build.dim("rgb", 2), build.dim("h6", 6), build.dim("w6", 6)});
  x = build.convolution("conv1", x, {.channels = 2, .kernel = {3, 3}, .padding = {1, 1}, .channel_dim = "c"});
  const int skip = x;
  x = build.elementwise("tanh1", "tanh", {x});
  x = build.convolution("conv2", x,
                        {.channels = 3, .kernel = {3, 2}, .stride = {2, 2}, .padding = {1, 0}, .bias = false});
  x = build.elementwise("relu2", "relu", {x});
  x = build.transposed_convolution("up", x, 2, 2);
  x = build.reshape("rename", x, {{{build.dims_of(x)[1]}, {c}}});
  x = build.elementwise("add", "add", {x, skip});
  x = build.elementwise("gate", "multiply", {x, build.parameter("gate.weight", {c})});
  x = build.global_average("pool", x);
  const int weight = build.parameter("shared", {c, classes});
  const int y = build.einsum("fc1", {x, weight}, {n, classes});
  const int z = build.einsum("fc2", {y, weight}, {n, c});
  x = build.linear("fc3", z, build.dim("out", 2));
  build.loss("loss", x, build.indices("labels", {n}), build.dim("out", 2));
  return build.finish();
}

TEST(Backward, EqualsFiniteDifferences) {
  const Graph forward = mixed_net(), both = with_backward(forward);
  const numeric::Values start = numeric::random_values(forward, 1), values = numeric::run(both, start);
  const int loss = forward.op(forward.find_op("loss")).outputs[0];
  int compared = 0;
  for (std::size_t i = 0; i < forward.tensors.size(); ++i) {
    if (forward.tensors[i].role != Role::kParameter) continue;
    const int tensor = static_cast<int>(i), gradient = gradient_of(both, tensor);
    ASSERT_GE(gradient, 0) << forward.tensors[i].name;
    for (std::size_t k = 0; k < start.at(tensor).data.size(); ++k) {
      const double step = 1e-5;
      numeric::Values up = start, down = start;
      up.at(tensor).data[k] += step;
      down.at(tensor).data[k] -= step;
      const double slope =
          (numeric::run(forward, up).at(loss).data[0] - numeric::run(forward, down).at(loss).data[0]) / (2 * step);
      EXPECT_NEAR(values.at(gradient).data[k], slope, 1e-8) << forward.tensors[i].name << " " << k;
      ++compared;
    }
  }
  EXPECT_GT(compared, 80);
}

TEST(Backward, GivesEveryParameterOfEveryModelAGradientAndInputsNone) {
  for (const Model& model : models()) {
    const Graph both = with_backward(build_model(model.name, 4));
    for (std::size_t i = 0; i < both.tensors.size(); ++i) {
      const Tensor& tensor = both.tensors[i];
      if (tensor.role == Role::kActivation) continue;
      EXPECT_EQ(gradient_of(both, static_cast<int>(i)) >= 0, tensor.role == Role::kParameter)
          << model.name << " " << tensor.name;
    }
  }
}

TEST(Backward, OfAGraphWithoutALossIsRefused) {
  Builder build("none");
  build.elementwise("a", "relu", {build.input("x", {build.dim("n", 2)})});
  EXPECT_THROW(with_backward(build.finish()), ConfigError);
}

}  // namespace
}  // namespace trireme::plan::graph
