// Every published family against what the reference implementation computed with the same directory.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/models/support.h"
#include "trireme/spec/recipe.h"

namespace trireme::models {
namespace {

std::unique_ptr<Model> load(const std::string& name, nn::Precision precision = nn::Precision::kFp32) {
  return load_published(formats::HfDirectory(fixture(name)), {.precision = precision, .build = {}});
}

/// Gradients by the names of the directory, a tied weight once.
std::map<std::string, at::Tensor> published_gradients(Model& model, const std::string& name) {
  const formats::HfDirectory directory(fixture(name));
  std::map<std::string, at::Tensor> out;
  const auto known = [&](std::string_view tensor) { return directory.find(tensor) != nullptr; };
  for (const PublishedTensor& tensor : published_tensors(model, known)) {
    if (!tensor.optional) out[tensor.name] = published_view(tensor, tensor.param->gradient);
  }
  return out;
}

void expect_gradients(const std::map<std::string, at::Tensor>& ours, const Expected& expected) {
  const auto whole = expected.below("gradient."), norms = expected.below("grad_norm.");
  std::vector<std::string> names;
  for (const auto& [name, gradient] : ours) names.push_back(name);
  EXPECT_THAT(norms, testing::UnorderedElementsAreArray(names));
  double norm_of_all = 0;
  for (const auto& name : whole)
    norm_of_all = std::max(norm_of_all, expected["gradient." + name].norm().item<double>());
  for (const auto& name : whole) {
    const at::Tensor theirs = expected["gradient." + name];
    ASSERT_EQ(ours.at(name).sizes(), theirs.sizes()) << name;
    // By its own norm; a bias of keys has a gradient of zero, which rounding makes a very small one of.
    const double tolerance = 2e-5 * theirs.norm().item<double>() + 1e-7 * norm_of_all;
    EXPECT_LE((ours.at(name) - theirs).norm().item<double>(), tolerance) << name;
  }
}

TEST(CausalFamilies, HasTheReferencesLogitsLossAndGradients) {
  for (const std::string& name : kCausalFixtures) {
    SCOPED_TRACE(name);
    const Expected expected(name);
    const auto model = load(name);
    const at::Tensor ids = fixture_ids();
    EXPECT_LE(largest(logits_of(*model, ids), expected["logits"]), 2e-5);
    nn::Context context = context_for(ids);
    context.targets = next_tokens(ids);
    EXPECT_NEAR(train_once(*model, {ids}, context), expected["loss"].item<double>(), 2e-6);
    ASSERT_EQ(context.losses.size(), 1u);
    EXPECT_EQ(context.losses[0].count, static_cast<double>(ids.size(0) * (ids.size(1) - 1)));
    const auto gradients = published_gradients(*model, name);
    expect_gradients(gradients, expected);
    for (const auto& [tensor, gradient] : gradients) {
      const double theirs = expected["grad_norm." + tensor].item<double>();
      EXPECT_NEAR(gradient.norm().item<double>(), theirs, 1e-5 * theirs) << tensor;
    }
  }
}

TEST(CausalFamilies, HasTheParametersThatItsShapeCounts) {
  for (const std::string& name : kCausalFixtures) {
    SCOPED_TRACE(name);
    const auto model = load(name);
    EXPECT_EQ(model->params.elements(), spec::count_parameters(model->shape).total());
    // And the directory has no more of them: everything stored is one of ours or foreign to every model.
    std::int64_t stored = 0;
    const formats::HfDirectory directory(fixture(name));
    for (const auto& tensor :
         published_tensors(*model, [&](auto tensor) { return directory.find(tensor) != nullptr; })) {
      if (!tensor.optional) stored += published_view(tensor, tensor.param->master).numel();
    }
    EXPECT_EQ(stored, model->params.elements());
  }
}

TEST(CausalFamilies, IsNearTheReferenceInBfloat16) {
  for (const std::string& name : kCausalFixtures) {
    SCOPED_TRACE(name);
    const Expected expected(name);
    const auto model = load(name, nn::Precision::kBf16);
    const at::Tensor ids = fixture_ids(), theirs = expected["logits"];
    const at::Tensor ours = logits_of(*model, ids);
    EXPECT_EQ(ours.scalar_type(), at::kBFloat16);
    EXPECT_LE((ours.to(at::kFloat) - theirs).norm().item<double>(), 0.03 * theirs.norm().item<double>());
    nn::Context context = context_for(ids);
    context.targets = next_tokens(ids);
    EXPECT_NEAR(train_once(*model, {ids}, context), expected["loss"].item<double>(), 0.03);
    double error = 0, norm = 0;
    for (const auto& [tensor, gradient] : published_gradients(*model, name)) {
      EXPECT_EQ(gradient.scalar_type(), at::kFloat);
      const double ratio = gradient.norm().item<double>() - expected["grad_norm." + tensor].item<double>();
      error += ratio * ratio;
      norm += std::pow(expected["grad_norm." + tensor].item<double>(), 2);
    }
    EXPECT_LE(std::sqrt(error / norm), 0.03);
  }
}

TEST(CausalFamilies, GivesTheLastTokensLogitsAlone) {
  for (const std::string& name : kCausalFixtures) {
    SCOPED_TRACE(name);
    const auto model = load(name);
    const at::Tensor ids = fixture_ids();
    nn::Context context = context_for(ids);
    EXPECT_LE(largest(model->next_logits(ids, context), Expected(name)["logits"].select(1, ids.size(1) - 1)), 2e-5);
  }
}

TEST(Bert, HasTheReferencesLogitsAndLoss) {
  const Expected expected("bert");
  const auto model = load("bert");
  const at::Tensor ids = fixture_ids();
  EXPECT_LE(largest(logits_of(*model, ids), expected["logits"]), 2e-5);
  nn::Context context = context_for(ids);
  context.targets = ids;
  EXPECT_NEAR(train_once(*model, {ids}, context), expected["loss"].item<double>(), 2e-6);
  for (const auto& [name, gradient] : published_gradients(*model, "bert")) {
    const double theirs = expected["grad_norm." + name].item<double>();
    EXPECT_NEAR(gradient.norm().item<double>(), theirs, 1e-5 * theirs + 1e-6) << name;
  }
}

TEST(Bert, HasTheReferencesMaskedLossWithTokenTypes) {
  const Expected expected("bert");
  const auto model = load("bert");
  const at::Tensor ids = fixture_ids();
  nn::Context context = context_for(ids);
  context.segments = expected["types"];
  EXPECT_LE(largest(model->forward({ids}, context, nullptr), expected["masked.logits"]), 1e-5);
  context.targets = expected["labels"];
  EXPECT_NEAR(train_once(*model, {ids}, context), expected["masked.loss"].item<double>(), 2e-6);
  expect_gradients(published_gradients(*model, "bert"), expected);
}

TEST(Families, LeaveTheSameBitsWhenRunAgain) {
  for (const std::string& name : all_fixtures()) {
    const auto model = load(name);
    const at::Tensor ids = fixture_ids();
    nn::Context context = context_for(ids);
    context.targets = next_tokens(ids);
    const double first = train_once(*model, {ids}, context);
    const auto gradients = gradients_of(*model);
    EXPECT_EQ(train_once(*model, {ids}, context), first) << name;
    for (const auto& [param, gradient] : gradients_of(*model)) {
      EXPECT_TRUE(at::equal(gradient, gradients.at(param))) << name << " " << param;
    }
  }
}

TEST(Recipes, OfPublishedModelsBuildWithTheirParameters) {
  // Building makes names and shapes, no memory: the largest takes as little as the smallest.
  for (const auto& entry : std::filesystem::directory_iterator(TRIREME_RECIPES "/models")) {
    const auto recipe = spec::load_recipe({.file = entry.path().string()}).value;
    const spec::ModelShape shape = spec::shape_of(recipe.model).value();
    EXPECT_EQ(build(shape)->params.elements(), spec::count_parameters(shape).total()) << entry.path();
  }
}

}  // namespace
}  // namespace trireme::models
