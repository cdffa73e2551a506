// tests/spec/contradiction.h -- values that contradict each other are found under their key, and following the hint
// resolves it.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "trireme/spec/recipe.h"

namespace trireme::spec {

struct FoundProblem {
  const char *key, *reason, *hint;
};

/// `fix`: what the hint says, as --set.
inline void expect_contradiction(const std::vector<std::string>& sets, const FoundProblem& expected,
                                 const std::vector<std::string>& fix) {
  try {
    (void)load_recipe({.sets = sets});
    FAIL() << "was taken";
  } catch (const config::ProblemsError& error) {
    ASSERT_THAT(error.problems(), testing::ElementsAre(testing::Field(&config::Problem::key, expected.key)));
    EXPECT_THAT(error.problems()[0].reason, testing::HasSubstr(expected.reason));
    EXPECT_THAT(error.problems()[0].hint, testing::HasSubstr(expected.hint));
  }
  std::vector<std::string> fixed = sets;
  fixed.insert(fixed.end(), fix.begin(), fix.end());
  EXPECT_NO_THROW((void)load_recipe({.sets = fixed}));
}

}  // namespace trireme::spec
