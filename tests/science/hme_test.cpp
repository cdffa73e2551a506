#include "trireme/science/hme.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "tests/errors.h"
#include "tests/science/support.h"
#include "trireme/science/decision_tree.h"
#include "trireme/science/hme_drawing.h"
#include "trireme/science/hme_fit.h"

namespace trireme::science {
namespace {

using testing::HasSubstr;

Samples wavy(std::size_t count, std::uint64_t seed) {
  const Random random(seed, "noise");
  return draw_samples(count, 2, 1, seed, [&](std::size_t t, std::span<const double> x) {
    return std::vector{std::abs(x[0]) + std::sin(2 * x[1]) + 0.1 * random.normal(t)};
  });
}

Samples classes(std::size_t count, std::uint64_t seed) {
  const Random random(seed, "class");
  return draw_samples(count, 2, 3, seed, [&](std::size_t t, std::span<const double> x) {
    const double flip = random.uniform(t);
    const std::size_t truth = x[0] * x[1] > 0 ? 0 : x[0] > 0 ? 1 : 2;
    return one_hot(flip < 0.1 ? (truth + 1) % 3 : truth, 3);
  });
}

/// Whether the likelihood of each iteration is that of the one before, or more; rounding may take a little.
void expect_never_falls(const EmReport& report) {
  for (std::size_t i = 1; i < report.log_likelihoods.size(); ++i) {
    EXPECT_GE(report.log_likelihoods[i], report.log_likelihoods[i - 1] - 1e-12) << "iteration " << i;
  }
}

class EveryTree : public testing::TestWithParam<std::vector<int>> {};

TEST_P(EveryTree, LikelihoodNeverFallsInRegression) {
  const Samples samples = wavy(250, 11);
  for (int restart = 0; restart < 3; ++restart) {
    EmOptions options{.iterations = 60, .tolerance = -1};
    Hme model = random_start(gaussian_columns(2), GetParam(), samples, options, restart);
    const EmReport report = run_em(model, samples, options);
    EXPECT_EQ(report.log_likelihoods.size(), 61U);
    expect_never_falls(report);
    EXPECT_NEAR(report.log_likelihoods.back(), evaluate(model, samples).log_likelihood, 1e-9);
  }
}

TEST_P(EveryTree, LikelihoodNeverFallsInClassification) {
  const Samples samples = classes(250, 12);
  for (int restart = 0; restart < 2; ++restart) {
    EmOptions options{.iterations = 40, .tolerance = -1};
    Hme model = random_start(class_columns(2, 3), GetParam(), samples, options, restart);
    expect_never_falls(run_em(model, samples, options));
  }
}

TEST_P(EveryTree, PosteriorsAreWhatBayesRuleGivesForEachPath) {
  const Samples samples = wavy(20, 13);
  const Hme model = random_start(gaussian_columns(2), GetParam(), samples, {}, 1);
  const std::size_t gates = model.gates.size(), experts = model.experts.size();
  Forward at;
  for (std::size_t t = 0; t < samples.count(); ++t) {
    forward(model, samples.inputs.row(t), at);
    const double log_likelihood = posteriors(model, samples.targets.row(t), at);
    double paths = 0, evidence = 0, sum = 0;
    for (std::size_t e = 0; e < experts; ++e) {
      paths += std::exp(at.log_path[e]);
      evidence += std::exp(at.log_path[e] + at.log_density[e]);
    }
    EXPECT_NEAR(paths, 1, 1e-12);
    EXPECT_NEAR(log_likelihood, std::log(evidence), 1e-10);
    for (std::size_t e = 0; e < experts; ++e) {
      EXPECT_NEAR(at.responsibility[gates + e], std::exp(at.log_path[e] + at.log_density[e]) / evidence, 1e-10);
      sum += at.responsibility[gates + e];
    }
    EXPECT_NEAR(sum, 1, 1e-12);
    for (const auto& shares : at.posterior) EXPECT_NEAR(std::accumulate(shares.begin(), shares.end(), 0.0), 1, 1e-12);
  }
}

TEST_P(EveryTree, JsonGivesTheSameModelBack) {
  const Samples samples = wavy(50, 14);
  const Hme model = fit_by_em(gaussian_columns(2), GetParam(), samples, {.iterations = 5, .restarts = 1});
  EXPECT_EQ(hme_from_json(to_json(model), "model.json"), model);
}

INSTANTIATE_TEST_SUITE_P(Branchings, EveryTree,
                         testing::Values(std::vector<int>{}, std::vector<int>{2}, std::vector<int>{3},
                                         std::vector<int>{2, 2}, std::vector<int>{3, 2}, std::vector<int>{2, 2, 3}));

TEST(Hme, OneExpertIsOrdinaryLeastSquares) {
  const Samples samples = wavy(80, 15);
  EmReport report;
  const Hme model = fit_by_em(gaussian_columns(2), {}, samples, {}, &report);
  Matrix plain(1, 3);
  RidgeUse ridge;
  fit_least_squares(samples.inputs, std::vector<double>(80, 1.0), samples.targets, plain, ridge);
  double variance = 0;
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(model.experts[0].weights(0, i), plain(0, i), 1e-10);
  for (std::size_t t = 0; t < 80; ++t) {
    variance += std::pow(samples.targets(t, 0) - dot(plain.row(0), samples.inputs.row(t)), 2) / 80;
  }
  EXPECT_NEAR(model.experts[0].variances[0], variance, 1e-10);
  EXPECT_TRUE(report.converged);
  EXPECT_EQ(model.parameters(), 4U);
}

TEST(Hme, OneClassifyingExpertIsSoftmaxRegression) {
  const Samples samples = classes(120, 16);
  const Hme model = fit_by_em(class_columns(2, 3), {}, samples, {.iterations = 50, .tolerance = 0});
  Matrix plain(3, 3);
  RidgeUse ridge;
  fit_softmax(samples.inputs, std::vector<double>(120, 1.0), samples.targets, plain, {}, ridge);
  for (std::size_t i = 0; i < 9; ++i) EXPECT_NEAR(model.experts[0].weights.values[i], plain.values[i], 1e-6);
}

TEST(Hme, RecoversAPiecewiseLinearGenerator) {
  // Four pieces, by the signs of two inputs; each its own plane.
  constexpr double kPlanes[4][3] = {{1, 2, 0}, {-2, 1, 3}, {0.5, -1, -3}, {3, -2, 1}};
  const Random random(17, "noise");
  const auto piece = [](std::span<const double> x) { return (x[0] > 0 ? 1 : 0) + (x[1] > 0 ? 2 : 0); };
  const auto truth = [&](std::span<const double> x) { return dot(std::span(kPlanes[piece(x)]), x); };
  const auto generate = [&](std::size_t count, std::uint64_t seed) {
    return draw_samples(count, 2, 1, seed, [&](std::size_t t, std::span<const double> x) {
      return std::vector{truth(x) + 0.05 * random.normal(seed * 100000 + t)};
    });
  };
  const Samples samples = generate(800, 1), held_out = generate(400, 2);
  EmReport report;
  const Hme model = fit_by_em(gaussian_columns(2), {2, 2}, samples, {.iterations = 100, .restarts = 6}, &report);
  expect_never_falls(report);
  std::vector<int> found(4, 0);
  for (const Expert& expert : model.experts) {
    for (int i = 0; i < 4; ++i) {
      const double away = std::hypot(expert.weights(0, 0) - kPlanes[i][0], expert.weights(0, 1) - kPlanes[i][1],
                                     expert.weights(0, 2) - kPlanes[i][2]);
      if (away < 0.05) ++found[static_cast<std::size_t>(i)];
    }
    EXPECT_NEAR(std::sqrt(expert.variances[0]), 0.05, 0.01);
  }
  EXPECT_EQ(found, std::vector<int>({1, 1, 1, 1})) << "each plane by one expert";
  Forward at;
  int right = 0;
  for (std::size_t t = 0; t < held_out.count(); ++t) {  // whose region a sample lies in
    forward(model, held_out.inputs.row(t), at);
    const auto most = static_cast<std::size_t>(std::ranges::max_element(at.log_path) - at.log_path.begin());
    right += std::abs(at.means(most, 0) - truth(held_out.inputs.row(t))) < 0.1 ? 1 : 0;
  }
  EXPECT_GT(right, 388) << "97 % of the held-out samples";
  const Quality linear = evaluate(fit_by_em(gaussian_columns(2), {}, samples, {}), held_out);
  EXPECT_LT(evaluate(model, held_out).error, 0.05 * linear.error);
}

TEST(Hme, FindsTheGateOfAPlantedClassMixture) {
  const Samples samples = classes(800, 18), held_out = classes(300, 19);
  const Hme model = fit_by_em(class_columns(2, 3), {2}, samples, {});
  const Hme linear = fit_by_em(class_columns(2, 3), {}, samples, {});
  EXPECT_LT(evaluate(model, held_out).error, evaluate(linear, held_out).error - 0.05)
      << "signs of a product are not linear";
  EXPECT_GT(evaluate(model, held_out).log_likelihood, evaluate(linear, held_out).log_likelihood);
}

TEST(Hme, ColumnsThatAreTheSameAreFittedWithAReportedRidge) {
  Samples samples = wavy(100, 20);
  for (std::size_t t = 0; t < 100; ++t) samples.inputs(t, 1) = samples.inputs(t, 0);
  EmReport report;
  fit_by_em(gaussian_columns(2), {2}, samples, {.iterations = 20, .tolerance = -1, .restarts = 1}, &report);
  EXPECT_GT(report.ridge.systems, 0);
  EXPECT_GT(report.ridge.largest, 0);
  expect_never_falls(report);
}

TEST(Hme, AnExpertOnOnePointIsHeldByTheFloorOfItsVariance) {
  // Two samples and four experts: without a floor a density could grow without bound.
  const Samples samples = wavy(5, 21);
  EmReport report;
  const Hme model = fit_by_em(gaussian_columns(2), {2, 2}, samples, {.iterations = 50, .tolerance = -1}, &report);
  EXPECT_GT(report.floored_variances, 0);
  expect_never_falls(report);
  for (const double value : report.log_likelihoods) EXPECT_TRUE(std::isfinite(value));
}

TEST(OnlineHme, LearnsInOnePassWhatALinearFitCannot) {
  const Random random(22, "noise");
  const auto corner = [&](std::size_t count, std::uint64_t seed) {
    return draw_samples(count, 2, 1, seed, [&](std::size_t t, std::span<const double> x) {
      return std::vector{std::abs(x[0]) + 0.1 * random.normal(seed * 100000 + t)};
    });
  };
  const Samples samples = corner(6000, 1), held_out = corner(500, 2);
  const Hme online = fit_online(gaussian_columns(2), {2}, samples, {}, {});
  const Hme linear = fit_by_em(gaussian_columns(2), {}, samples, {});
  EXPECT_GT(evaluate(linear, held_out).error, 0.9);
  EXPECT_LT(evaluate(online, held_out).error, 0.15) << "the noise alone is 0.03";
}

TEST(OnlineHme, FollowsAChangeWithForgettingAndNotWithout) {
  const auto signed_line = [](double slope) {
    return draw_samples(800, 1, 1, 24,
                        [=](std::size_t, std::span<const double> x) { return std::vector{slope * x[0]}; });
  };
  const Samples before = signed_line(1), after = signed_line(-1);
  const auto slope_after = [&](double forgetting) {
    OnlineHme online(Hme::make(gaussian_columns(1), {}), {.forgetting = forgetting, .annealing = 1});
    for (const Samples* samples : {&before, &after}) {
      for (std::size_t t = 0; t < 800; ++t) online.observe(samples->inputs.row(t), samples->targets.row(t));
    }
    return online.model().experts[0].weights(0, 0);
  };
  EXPECT_NEAR(slope_after(0.98), -1, 0.01);
  EXPECT_NEAR(slope_after(1), 0, 0.01) << "the mean of all that was seen";
  EXPECT_THAT(message_of<ConfigError>([] { OnlineHme(Hme::make(gaussian_columns(1), {}), {.forgetting = 0}); }),
              HasSubstr("forgetting factor of 0"));
}

TEST(OnlineHme, ClassifiesToo) {
  const Samples samples = classes(8000, 25), held_out = classes(400, 26);
  const Hme online = fit_online(class_columns(2, 3), {2, 2}, samples, {}, {.epochs = 2});
  EXPECT_LT(evaluate(online, held_out).error, 0.25);
}

TEST(Hme, RefusesTreesThatAreNone) {
  EXPECT_THAT(message_of<ConfigError>([] { Hme::make(gaussian_columns(1), {2, 1}); }), HasSubstr("1 branches"));
  EXPECT_THAT(message_of<ConfigError>([] { Hme::make(gaussian_columns(1), {100, 100}); }), HasSubstr("4096"));
}

TEST(HmeJson, SaysWhatIsWrong) {
  const Hme model = Hme::make(gaussian_columns(1), {2});
  std::string text = to_json(model);
  EXPECT_THAT(message_of([] { hme_from_json("{}", "m.json"); }), HasSubstr("m.json is no hierarchical mixture"));
  EXPECT_THAT(message_of([] { hme_from_json("{", "m.json"); }), HasSubstr("m.json"));
  const std::size_t at = text.find("\"branching\": [\n    2");
  ASSERT_NE(at, std::string::npos) << text;
  text.replace(at, 20, "\"branching\": [\n    3 ");
  EXPECT_THAT(message_of([&] { hme_from_json(text, "m.json"); }), HasSubstr("experts"));
}

TEST(DecisionTree, CutsWhereThePiecesMeet) {
  const Samples samples = draw_samples(300, 2, 1, 27, [](std::size_t, std::span<const double> x) {
    return std::vector{x[1] > 0.5 ? (x[0] > -1 ? 4.0 : 1.0) : -2.0};
  });
  const DecisionTree tree = fit_tree(Family::kGaussian, samples, 3);
  EXPECT_EQ(tree.leaves(), 3U);
  EXPECT_EQ(tree.nodes[0].input, 1);
  EXPECT_NEAR(tree.nodes[0].threshold, 0.5, 0.05);
  EXPECT_NEAR(evaluate(tree, samples).error, 0, 1e-12);
  EXPECT_EQ(fit_tree(Family::kGaussian, samples, 9).leaves(), 3U) << "nothing is left to split";
  const Samples marked = classes(500, 28);
  EXPECT_LT(evaluate(fit_tree(Family::kMultinomial, marked, 4), marked).error, 0.5);
}

TEST(HmeDrawing, NamesExpertsByTheirWayDownTheTree) {
  const Hme model = Hme::make(gaussian_columns(1), {2, 3});
  EXPECT_EQ(expert_name(model, 0), "1.1");
  EXPECT_EQ(expert_name(model, 4), "2.2");
  EXPECT_EQ(expert_name(Hme::make(gaussian_columns(1), {}), 0), "1");
}

/// The legend's longest line, at what its letters take in the mean, ends within the picture.
TEST(HmeDrawing, IsAsWideAsItsLegend) {
  const Samples samples = wavy(60, 29);
  const Hme model = fit_by_em(gaussian_columns(2), {2, 2}, samples, {.iterations = 10, .restarts = 1});
  const std::string svg = draw_regions(model, samples, {0}, true);
  const auto number_after = [&](const std::string& words, std::size_t from) {
    return std::stod(svg.substr(svg.find(words, from) + words.size()));
  };
  const double width = number_after(" width=\"", 0);
  double end = 0;
  for (std::size_t at = svg.find(">expert "); at != std::string::npos; at = svg.find(">expert ", at + 1)) {
    const std::size_t begin = svg.rfind("<text", at);
    end = std::max(end, number_after("x=\"", begin) + 6.5 * static_cast<double>(svg.find("</text>", at) - at - 2));
  }
  EXPECT_GT(end, 820) << "a legend that needs room: expert, share and deviation";
  EXPECT_GE(width, end);
}

TEST(HmeDrawing, DrawsOneAndTwoInputsAndEscapesNames) {
  Columns columns = gaussian_columns(2);
  columns.inputs[0] = "<b>&x";
  const Samples samples = wavy(60, 29);
  const Hme model = fit_by_em(columns, {2, 2}, samples, {.iterations = 10, .restarts = 1});
  const std::vector<std::size_t> order = inputs_by_gates(model);
  EXPECT_EQ(order.size(), 2U);
  for (const auto& inputs : {std::vector<std::size_t>{0}, std::vector<std::size_t>{0, 1}}) {
    const std::string svg = draw_regions(model, samples, inputs, true);
    EXPECT_THAT(svg, HasSubstr("xmlns"));
    EXPECT_THAT(svg, HasSubstr("expert 2.1"));
    EXPECT_THAT(svg, HasSubstr("&lt;b&gt;&amp;x"));
    EXPECT_EQ(svg.find("nan"), std::string::npos);
  }
  EXPECT_THAT(regions_page(model, samples, {0, 1}, {-2, -1}), HasSubstr("<td>1</td><td>-1.000000</td>"));
}

}  // namespace
}  // namespace trireme::science
