#include "trireme/spec/compress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/spec/contradiction.h"
#include "trireme/spec/rules.h"

namespace trireme::spec {
namespace {

TEST(CompressConfig, KeysThatTheKindDoesNotReadAreProblems) {
  expect_contradiction({"compress.kind=dgc", "compress.rank=8"},
                       {"compress.rank", "compress.kind = \"dgc\" does not use it", "compress.kind = \"powersgd\""},
                       {"compress.kind=powersgd"});
  expect_contradiction({"compress.start=5"}, {"compress.start", "does not use it", "compress.kind"},
                       {"compress.kind=powersgd"});
}

TEST(CompressConfig, FragmentsDivideTheInterval) {
  expect_contradiction({"compress.kind=diloco", "compress.interval=10", "compress.fragments=4"},
                       {"compress.fragments", "does not divide the interval of 10 steps", "compress.interval = 12"},
                       {"compress.interval=12"});
  expect_contradiction({"compress.kind=diloco", "compress.interval=10", "compress.delay=10"},
                       {"compress.delay", "is sent again after", "compress.delay = 9"}, {"compress.delay=9"});
  expect_contradiction({"compress.kind=diloco", "compress.outer_momentum=0"},
                       {"compress.outer_nesterov", "momentum", "outer_nesterov = false"},
                       {"compress.outer_nesterov=false"});
}

/// What is refused says what the alternative costs; following the hint works.
TEST(CompressRules, SayWhatTheAlternativeCosts) {
  expect_contradiction({"compress.kind=powersgd", "layout.zero=2"},
                       {"layout.zero", "4 bytes a parameter on every rank", "layout.zero = 1"}, {"layout.zero=1"});
  expect_contradiction({"compress.kind=onebit-adam", "layout.zero=1"},
                       {"layout.zero", "8 bytes a parameter", "layout.zero = 0"}, {"layout.zero=0"});
  for (const char* kind : {"compress.kind=qsgd", "compress.kind=diloco"})
    EXPECT_NO_THROW((void)load_recipe({.sets = {kind, "precision.compute=fp16"}})) << kind;
  expect_contradiction({"compress.kind=dgc", "optim.kind=sgd", "optim.momentum=0.8"},
                       {"optim.momentum", "keeps the momentum itself", "compress.momentum = 0.8"},
                       {"optim.momentum=0", "compress.momentum=0.8"});
  expect_contradiction({"compress.kind=onebit-adam", "optim.kind=lamb"},
                       {"compress.kind", "freezes Adam's variance", "optim.kind = \"adamw\""}, {"optim.kind=adamw"});
  expect_contradiction({"compress.kind=diloco", "health.compare_replicas=10"},
                       {"health.compare_replicas", "lets differ", "health.compare_replicas = 0"},
                       {"health.compare_replicas=0"});
}

TEST(CompressConfig, FitsIntoTheStepsOfAComparison) {
  CompressConfig diloco{.kind = CompressKind::kDiloco};
  EXPECT_EQ(fit_into_steps(diloco, 9), "compress.interval = 3");
  EXPECT_EQ(interval_of(diloco), 3);
  CompressConfig late{.kind = CompressKind::kPowerSgd, .start = 1000};
  EXPECT_EQ(fit_into_steps(late, 5), "compress.start = 2");
  CompressConfig onebit{.kind = CompressKind::kOnebitAdam};
  EXPECT_EQ(fit_into_steps(onebit, 5), "compress.freeze_after = 2");
  CompressConfig plain{.kind = CompressKind::kQsgd};
  EXPECT_EQ(fit_into_steps(plain, 5), "");
}

}  // namespace
}  // namespace trireme::spec
