// Every layer's values and gradients against autograd on the same mathematics.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/nn/layer_cases.h"
#include "trireme/base/random.h"
#include "trireme/nn/autograd_layer.h"

namespace trireme::nn {
namespace {

struct Result {
  at::Tensor y;
  Tensors dx;
  std::map<std::string, at::Tensor> gradients;
};

/// Numbers rounded to `type` and then held in `as`.
at::Tensor seed_gradient(const at::Tensor& y, at::ScalarType type, at::ScalarType as) {
  at::Tensor dy = at::empty(y.sizes(), at::kDouble);
  Random(5, "gradient").fill_normal(0, std::span(dy.data_ptr<double>(), static_cast<std::size_t>(dy.numel())));
  return dy.to(type).to(as);
}

/// Inputs and gradients are rounded to `type`; the layer computes with them in `as`.
Result run(Layer& layer, Params& params, const LayerCase& layer_case, at::ScalarType type, at::ScalarType as,
           bool deferred = false) {
  Context context = case_context(layer_case);
  Tape tape;
  Tensors inputs = case_inputs(layer_case, type);
  for (at::Tensor& input : inputs) input = input.to(as);
  const Tensors out = layer.forward(inputs, context, &tape);
  tape.set_deferring(deferred);
  Tensors gradients{seed_gradient(out[0], type, as)};
  Result result{out[0], layer.backward(std::move(gradients), context, tape), {}};
  EXPECT_TRUE(tape.empty()) << "frames left on the tape";
  if (deferred) {
    for (const Param& param : params) {
      if (param.placement.shape.size() == 2) {
        EXPECT_TRUE(param.gradient_empty) << param.name << " was not deferred";
      }
    }
    tape.run_weight_gradients();
  }
  for (Param& param : params) {
    EXPECT_FALSE(param.gradient_empty) << "no gradient of " << param.name;
    result.gradients[param.name] = param.gradient;
  }
  return result;
}

/// The oracle as a layer, in double, on the same weights.
Result run_oracle(Params& params, const LayerCase& layer_case, at::ScalarType type) {
  std::vector<Param*> list;
  for (Param& param : params) list.push_back(&param);
  Context context = case_context(layer_case);
  AutogradLayer oracle(list, [&](const Tensors& inputs, const Tensors& values) {
    NamedWeights weights;
    for (std::size_t i = 0; i < list.size(); ++i) weights[list[i]->name] = values[i];
    return Tensors{layer_case.oracle(inputs, weights, context)};
  });
  return run(oracle, params, layer_case, type, at::kDouble);
}

/// The largest difference by the oracle's norm, which is what rounding scales with.
double difference(const at::Tensor& ours, const at::Tensor& theirs) {
  const double norm = theirs.to(at::kDouble).norm().item<double>();
  return (ours.to(at::kDouble) - theirs.to(at::kDouble)).norm().item<double>() / std::max(norm, 1e-12);
}

void expect_close(const Result& ours, const Result& theirs, double tolerance, const char* what) {
  EXPECT_LE(difference(ours.y, theirs.y), tolerance) << what << ": value";
  ASSERT_EQ(ours.dx.size(), theirs.dx.size());
  for (std::size_t i = 0; i < ours.dx.size(); ++i) {
    EXPECT_LE(difference(ours.dx[i], theirs.dx[i]), tolerance) << what << ": gradient of input " << i;
  }
  for (const auto& [name, gradient] : theirs.gradients) {
    EXPECT_LE(difference(ours.gradients.at(name), gradient), tolerance) << what << ": gradient of " << name;
  }
}

class Layers : public testing::TestWithParam<LayerCase> {};

TEST_P(Layers, EqualAutogradInDouble) {
  Params params, same;
  const auto layer = GetParam().build(params);
  GetParam().build(same);
  fill_weights(params, Precision::kFp64);
  fill_weights(same, Precision::kFp64);
  expect_close(run(*layer, params, GetParam(), at::kDouble, at::kDouble), run_oracle(same, GetParam(), at::kDouble),
               1e-12, "fp64");
}

TEST_P(Layers, AreNearAutogradInEveryPrecision) {
  struct Near {
    Precision precision;
    double tolerance;
  };
  for (const auto& [precision, tolerance] :
       {Near{Precision::kFp32, 2e-6}, Near{Precision::kBf16, 0.03}, Near{Precision::kFp16, 0.004}}) {
    Params params, exact;
    const auto layer = GetParam().build(params);
    GetParam().build(exact);
    fill_weights(params, precision);
    allocate(exact, Precision::kFp64);
    auto ours = params.begin();
    for (Param& param : exact) {  // the very numbers that the layer sees
      param.master.copy_((ours++)->value);
      publish(param);
    }
    const auto type = compute_type(precision);
    const Result result = run(*layer, params, GetParam(), type, type);
    // The oracle computes in double what the layer was given in its own type.
    expect_close(result, run_oracle(exact, GetParam(), type), tolerance, at::toString(type));
  }
}

TEST_P(Layers, GiveTheSameBitsWhenWeightGradientsAreDeferred) {
  Params at_once, later;
  const auto layer = GetParam().build(at_once), other = GetParam().build(later);
  fill_weights(at_once, Precision::kFp32);
  fill_weights(later, Precision::kFp32);
  const Result now = run(*layer, at_once, GetParam(), at::kFloat, at::kFloat);
  const Result after = run(*other, later, GetParam(), at::kFloat, at::kFloat, /*deferred=*/true);
  EXPECT_TRUE(at::equal(now.y, after.y));
  for (std::size_t i = 0; i < now.dx.size(); ++i) EXPECT_TRUE(at::equal(now.dx[i], after.dx[i]));
  for (const auto& [name, gradient] : now.gradients) EXPECT_TRUE(at::equal(gradient, after.gradients.at(name))) << name;
}

TEST_P(Layers, AddUpGradientsOverMicrobatches) {
  Params params;
  const auto layer = GetParam().build(params);
  fill_weights(params, Precision::kFp64);
  const Result once = run(*layer, params, GetParam(), at::kDouble, at::kDouble);
  std::map<std::string, at::Tensor> first;
  for (const auto& [name, gradient] : once.gradients) first[name] = gradient.clone();
  const Result twice = run(*layer, params, GetParam(), at::kDouble, at::kDouble);
  for (const auto& [name, gradient] : twice.gradients) {
    EXPECT_LE(difference(gradient, first.at(name) * 2), 1e-13) << name;
  }
  zero_grad(params);
  const Result again = run(*layer, params, GetParam(), at::kDouble, at::kDouble);
  for (const auto& [name, gradient] : again.gradients) EXPECT_TRUE(at::equal(gradient, first.at(name))) << name;
}

class LayersWithWeights : public Layers {};

TEST_P(LayersWithWeights, LeaveAFrozenParameterWithoutGradient) {
  Params params;
  const auto layer = GetParam().build(params);
  fill_weights(params, Precision::kFp32);
  for (Param& param : params) param.trainable = false;
  Context context = case_context(GetParam());
  Tape tape;
  const Tensors out = layer->forward(case_inputs(GetParam(), at::kFloat), context, &tape);
  layer->backward({seed_gradient(out[0], at::kFloat, at::kFloat)}, context, tape);
  for (const Param& param : params) EXPECT_TRUE(param.gradient_empty) << param.name;
}

std::vector<LayerCase> cases_with_weights() {
  std::vector<LayerCase> cases = layer_cases({});
  std::erase_if(cases, [](const LayerCase& layer_case) {
    Params params;
    layer_case.build(params);
    return params.size() == 0;
  });
  return cases;
}

/// And what is kept for backward is the same.
TEST(Branches, AddTheirOutputToAResidualThatStays) {
  int branches = 0;
  for (const LayerCase& layer_case : layer_cases({})) {
    SCOPED_TRACE(layer_case.name);
    Params params;
    const auto layer = layer_case.build(params);
    auto* branch = dynamic_cast<ResidualLayer*>(layer.get());
    if (branch == nullptr) continue;
    ++branches;
    fill_weights(params, Precision::kFp64);
    Context context = case_context(layer_case);
    const at::Tensor x = case_inputs(layer_case, at::kDouble)[0];
    Tape tape, other;
    const at::Tensor y = branch->forward(x, context, &tape);
    const at::Tensor residual = seed_gradient(y, at::kDouble, at::kDouble), before = residual.clone();
    const ResidualSum sum = branch->forward_add(residual, x, context, &other);
    const at::Tensor total = sum.delta.defined() ? sum.residual + sum.delta : sum.residual;
    EXPECT_LE(difference(total, y + before), 1e-14);
    EXPECT_TRUE(at::equal(residual, before));
    const at::Tensor dx = branch->backward(before.clone(), context, tape);
    EXPECT_TRUE(at::equal(branch->backward(before.clone(), context, other), dx));
  }
  EXPECT_GE(branches, 4) << "attention and MLPs";
}

INSTANTIATE_TEST_SUITE_P(All, LayersWithWeights, testing::ValuesIn(cases_with_weights()),
                         [](const auto& test) { return test.param.name; });
INSTANTIATE_TEST_SUITE_P(All, Layers, testing::ValuesIn(layer_cases({})),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace trireme::nn
