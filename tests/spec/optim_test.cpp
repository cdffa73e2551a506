#include "trireme/spec/optim.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/spec/contradiction.h"
#include "trireme/spec/recipe.h"

namespace trireme::spec {
namespace {

using config::Problem;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;

/// Tries every way in which the stars may stand for text.
bool plain_matches(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern[0] == '*') {
    return plain_matches(pattern.substr(1), name) || (!name.empty() && plain_matches(pattern, name.substr(1)));
  }
  return !name.empty() && (pattern[0] == '?' || pattern[0] == name[0]) &&
         plain_matches(pattern.substr(1), name.substr(1));
}

TEST(Pattern, MatchesNamesOfParameters) {
  EXPECT_TRUE(matches("layers.*.weight", "layers.11.mlp.up.weight"));
  EXPECT_TRUE(matches("*", ""));
  EXPECT_TRUE(matches("h.?.bias", "h.3.bias"));
  EXPECT_FALSE(matches("h.?.bias", "h.13.bias"));
  EXPECT_FALSE(matches("bias", "h.bias"));
}

TEST(Pattern, AgreesWithTryingEverything) {
  // All patterns of up to 5 of "ab*?" against all names of up to 5 of "ab".
  const auto all = [](const std::string& letters) {
    std::vector<std::string> words{""};
    for (std::size_t i = 0; words[i].size() < 5; ++i) {
      for (const char letter : letters) words.push_back(words[i] + letter);
    }
    return words;
  };
  const auto names = all("ab");
  int matching = 0;
  for (const std::string& pattern : all("ab*?")) {
    for (const std::string& name : names) {
      ASSERT_EQ(matches(pattern, name), plain_matches(pattern, name)) << pattern << " and " << name;
      matching += matches(pattern, name);
    }
  }
  EXPECT_GT(matching, 10000);
}

TEST(ParamRule, IsThatOfTheFirstGroupThatMatches) {
  const OptimConfig optim{.weight_decay = 0.1,
                          .groups = {{.pattern = "*.up.*", .rate = 0.5},
                                     {.pattern = "*", .rate = 2, .weight_decay = 0.3},
                                     {.pattern = "*.up.*", .rate = 7}}};
  EXPECT_EQ(rule_for(optim, "h.0.up.weight", true), (ParamRule{.rate = 0.5, .weight_decay = 0.1}));
  EXPECT_EQ(rule_for(optim, "h.0.up.bias", false), (ParamRule{.rate = 0.5, .weight_decay = 0}));
  EXPECT_EQ(rule_for(optim, "h.0.down.bias", false), (ParamRule{.rate = 2, .weight_decay = 0.3}))
      << "a decay that a group gives holds for biases too";
  EXPECT_EQ(rule_for({.weight_decay = 0.1}, "w", true), (ParamRule{.rate = 1, .weight_decay = 0.1}));
  EXPECT_EQ(rule_for({.weight_decay = 0.1}, "b", false), (ParamRule{.rate = 1, .weight_decay = 0}));
}

TEST(Optim, EveryGroupMustFindParameters) {
  const std::vector<std::string> names = {"wte", "h.0.up.weight"};
  const OptimConfig good{.groups = {{.pattern = "wt?"}, {.pattern = "h.*"}}};
  EXPECT_THAT(find_problems(good, names), IsEmpty());
  const auto problems = find_problems({.groups = {{.pattern = "h.*"}, {.pattern = "wtf"}}}, names);
  ASSERT_THAT(problems, ElementsAre(Field(&Problem::key, "optim.groups.1.pattern")));
  EXPECT_THAT(problems[0].reason, HasSubstr("\"wtf\" matches none of 2 parameters; did you mean \"wte\"?"));
}

TEST(Optim, IsReadFromARecipe) {
  const Recipe recipe = load_recipe({.text = R"(
[optim]
kind = "lamb"
learning_rate = 5e-3
weight_decay = 0.01
beta2 = 0.95
[[optim.groups]]
pattern = "*.embedding"
rate = 0.1
[precision]
compute = "fp16"
[precision.loss_scale]
initial = 1024.0
interval = "1k"
)"})
                            .value;
  EXPECT_EQ(recipe.optim, (OptimConfig{.kind = OptimizerKind::kLamb,
                                       .learning_rate = 5e-3,
                                       .weight_decay = 0.01,
                                       .beta2 = 0.95,
                                       .groups = {{.pattern = "*.embedding", .rate = 0.1}}}));
  EXPECT_EQ(recipe.precision,
            (PrecisionConfig{.compute = Precision::kFp16, .loss_scale = {.initial = 1024, .interval = 1000}}));
  EXPECT_EQ(load_recipe({.text = config::to_toml(recipe)}).value, recipe);
}

TEST(Optim, KnowsWhatItsAuthorsTook) {
  EXPECT_EQ(epsilon_of({.kind = OptimizerKind::kAdamw}), 1e-8);
  EXPECT_EQ(epsilon_of({.kind = OptimizerKind::kLamb}), 1e-6);
  EXPECT_EQ(epsilon_of({.kind = OptimizerKind::kAdagrad}), 1e-10);
  EXPECT_EQ(epsilon_of({.kind = OptimizerKind::kLamb, .epsilon = 1e-3}), 1e-3);
  EXPECT_EQ(moments_of({.kind = OptimizerKind::kAdamw}), 2);
  EXPECT_EQ(moments_of({.kind = OptimizerKind::kSgd}), 1);
  EXPECT_EQ(moments_of({.kind = OptimizerKind::kSgd, .momentum = 0}), 0);
}

/// Found under its key, and gone when the hint is followed.
struct OptimContradiction {
  const char* name;
  std::vector<std::string> sets;
  const char* key;
  const char* reason;
  const char* hint;
  std::vector<std::string> fix;
};

class TrainingContradictions : public testing::TestWithParam<OptimContradiction> {};

TEST_P(TrainingContradictions, AreFoundAndTheirHintHelps) {
  const OptimContradiction& given = GetParam();
  expect_contradiction(given.sets, {given.key, given.reason, given.hint}, given.fix);
}

INSTANTIATE_TEST_SUITE_P(
    All, TrainingContradictions,
    testing::Values(
        OptimContradiction{"MomentumOfAdam",
                           {"optim.momentum=0.8"},
                           "optim.momentum",
                           "optim.kind = \"adamw\" does not use it",
                           "set optim.kind = \"sgd\"",
                           {"optim.kind=sgd"}},
        OptimContradiction{"BetaOfSgd",
                           {"optim.kind=sgd", "optim.beta2=0.95"},
                           "optim.beta2",
                           "\"sgd\" does not use it",
                           "\"adamw\"",
                           {"optim.kind=adamw"}},
        OptimContradiction{"EpsilonOfLars",
                           {"optim.kind=lars", "optim.epsilon=1e-8"},
                           "optim.epsilon",
                           "\"lars\" does not use it",
                           "leave it out",
                           {"optim.epsilon="}},
        OptimContradiction{"TrustOfSgd",
                           {"optim.kind=sgd", "optim.trust=0.1"},
                           "optim.trust",
                           "does not use it",
                           "\"lars\"",
                           {"optim.kind=lars"}},
        OptimContradiction{"WeightNormOfAdam",
                           {"optim.kind=adam", "optim.weight_norm_max=10"},
                           "optim.weight_norm_max",
                           "does not use it",
                           "\"lamb\"",
                           {"optim.kind=lamb"}},
        OptimContradiction{"WeightNormBoundsThatCross",
                           {"optim.kind=lamb", "optim.weight_norm_min=2", "optim.weight_norm_max=1"},
                           "optim.weight_norm_max",
                           "below optim.weight_norm_min = 2",
                           "set optim.weight_norm_max = 2",
                           {"optim.weight_norm_max=2"}},
        OptimContradiction{"NesterovWithoutMomentum",
                           {"optim.kind=sgd", "optim.nesterov=true", "optim.momentum=0"},
                           "optim.nesterov",
                           "optim.momentum = 0",
                           "set optim.momentum = 0.9",
                           {"optim.momentum=0.9"}},
        OptimContradiction{"LossScaleOfBf16",
                           {"precision.compute=bf16", "precision.loss_scale.initial=8"},
                           "precision.loss_scale",
                           "precision.compute = \"bf16\" needs none",
                           "\"fp16\"",
                           {"precision.compute=fp16"}},
        OptimContradiction{"NarrowGradientsOfFp32",
                           {"precision.gradients=bf16"},
                           "precision.gradients",
                           "the type of the weights, and precision.compute is fp32",
                           "set precision.compute = \"bf16\"",
                           {"precision.compute=bf16"}},
        OptimContradiction{"Fp16GradientsOfBf16",
                           {"precision.compute=bf16", "precision.gradients=fp16"},
                           "precision.gradients",
                           "precision.compute is bf16",
                           "set precision.gradients = \"bf16\"",
                           {"precision.gradients=bf16"}},
        OptimContradiction{"LossScaleBelowItsMinimum",
                           {"precision.compute=fp16", "precision.loss_scale.initial=0.5"},
                           "precision.loss_scale.initial",
                           "is 0.5, outside of 1 to",
                           "set precision.loss_scale.initial = 1",
                           {"precision.loss_scale.initial=1"}},
        OptimContradiction{"CosineWithoutEnd",
                           {"lr_schedule.kind=cosine", "lr_schedule.warmup=2000"},
                           "lr_schedule.total",
                           "lr_schedule.kind = \"cosine\" needs it",
                           "set lr_schedule.total = 4000",
                           {"lr_schedule.total=4000"}},
        OptimContradiction{"EndOfConstant",
                           {"lr_schedule.total=100"},
                           "lr_schedule.total",
                           "lr_schedule.kind = \"constant\" does not use it",
                           "leave it out",
                           {"lr_schedule.total="}},
        OptimContradiction{"EndWithinWarmup",
                           {"lr_schedule.kind=linear", "lr_schedule.warmup=600", "lr_schedule.total=500"},
                           "lr_schedule.total",
                           "is 500, within the warm-up of 600",
                           "set lr_schedule.total = 1200",
                           {"lr_schedule.total=1200"}},
        OptimContradiction{"WsdWithoutDecay",
                           {"lr_schedule.kind=wsd", "lr_schedule.total=500"},
                           "lr_schedule.decay",
                           "needs it",
                           "set lr_schedule.decay = 100",
                           {"lr_schedule.decay=100"}},
        OptimContradiction{
            "DecayLongerThanTheRun",
            {"lr_schedule.kind=wsd", "lr_schedule.total=500", "lr_schedule.warmup=100", "lr_schedule.decay=450"},
            "lr_schedule.decay",
            "only 400 are left",
            "set lr_schedule.decay = 400",
            {"lr_schedule.decay=400"}},
        OptimContradiction{"StepWithoutBoundaries",
                           {"lr_schedule.kind=step"},
                           "lr_schedule.boundaries",
                           "needs it",
                           "set lr_schedule.boundaries = [100] and lr_schedule.factors = [0.1]",
                           {"lr_schedule.boundaries=100", "lr_schedule.factors=0.1"}},
        OptimContradiction{"FewerFactorsThanBoundaries",
                           {"lr_schedule.kind=step", "lr_schedule.boundaries=100,200", "lr_schedule.factors=0.1"},
                           "lr_schedule.factors",
                           "has 1 value for 2 boundaries",
                           "one factor for each",
                           {"lr_schedule.factors=0.1,0.1"}},
        OptimContradiction{"BoundariesThatFall",
                           {"lr_schedule.kind=step", "lr_schedule.boundaries=200,100", "lr_schedule.factors=0.1,0.1"},
                           "lr_schedule.boundaries",
                           "must be ascending",
                           "sort them",
                           {"lr_schedule.boundaries=100,200"}},
        OptimContradiction{"WarmupFromWithoutWarmup",
                           {"lr_schedule.warmup_from=0.1"},
                           "lr_schedule.warmup_from",
                           "no warm-up",
                           "leave it out",
                           {"lr_schedule.warmup_from="}},
        OptimContradiction{"MinimumOfConstant",
                           {"lr_schedule.minimum=0.1"},
                           "lr_schedule.minimum",
                           "does not use it",
                           "leave it out",
                           {"lr_schedule.minimum=0"}},
        OptimContradiction{"ScalingFromNothing",
                           {"lr_schedule.scaling=linear"},
                           "lr_schedule.reference_batch",
                           "lr_schedule.scaling = \"linear\" needs it",
                           "set lr_schedule.reference_batch",
                           {"lr_schedule.reference_batch=256"}},
        OptimContradiction{"RampFromNothing",
                           {"batch.kind=ramp", "batch.over=1G"},
                           "batch.start",
                           "batch.kind = \"ramp\" needs it",
                           "set batch.start = 1",
                           {"batch.start=1"}},
        OptimContradiction{"RampThatFalls",
                           {"batch.kind=ramp", "batch.over=1G", "batch.start=100k"},
                           "batch.start",
                           "is 100000, above batch.global_batch_tokens = 65536",
                           "set batch.start = 65536",
                           {"batch.start=65536"}},
        OptimContradiction{"BatchThatDoesNotDivide",
                           {"batch.global_batch_tokens=1000", "batch.multiple=48"},
                           "batch.global_batch_tokens",
                           "is 1000, no multiple of batch.multiple = 48",
                           "set batch.global_batch_tokens = 1008",
                           {"batch.global_batch_tokens=1008"}},
        OptimContradiction{"IncreaseOverSteps",
                           {"batch.kind=increase", "batch.maximum=1M", "lr_schedule.kind=step",
                            "lr_schedule.boundaries=10", "lr_schedule.factors=0.1"},
                           "batch.kind",
                           "step schedule over tokens",
                           "lr_schedule.unit = \"tokens\"",
                           {"lr_schedule.unit=tokens"}},
        OptimContradiction{"MaximumBelowTheFirstBatch",
                           {"batch.kind=increase", "batch.maximum=1k", "lr_schedule.kind=step",
                            "lr_schedule.boundaries=10", "lr_schedule.factors=0.1", "lr_schedule.unit=tokens"},
                           "batch.maximum",
                           "is 1000, below batch.global_batch_tokens = 65536",
                           "set batch.maximum = 65536",
                           {"batch.maximum=65536"}}),
    [](const auto& given) { return given.param.name; });

}  // namespace
}  // namespace trireme::spec
