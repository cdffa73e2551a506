#include "trireme/base/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trireme {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

TEST(Error, PrintsAsOneBlockWithContextAndHint) {
  ConfigError error("ranks must be at least 1,\nbut is 0", "set comm.ranks = 1");
  error.add_context("while reading recipes/tiny.toml");
  EXPECT_EQ(error.block(),
            "configuration error: ranks must be at least 1,\n"
            "  but is 0\n"
            "  while reading recipes/tiny.toml\n"
            "  hint: set comm.ranks = 1\n");
}

TEST(Error, TraceShowsWhereItWasThrownOnlyWhenAsked) {
  const IoError error("disk full");
  EXPECT_THAT(error.block(false), Not(HasSubstr("thrown at")));
  EXPECT_THAT(error.block(true), HasSubstr("thrown at:\n    "));
}

TEST(Error, GainsContextOnItsWayOut) {
  try {
    with_context("while training", [] { with_context("while saving step 7", [] { throw IoError("disk full"); }); });
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.context(), ElementsAre("while saving step 7", "while training"));
    EXPECT_STREQ(error.kind(), "i/o error") << "the kind survives";
  }
  EXPECT_EQ(with_context("while adding", [] { return 2 + 2; }), 4);
}

TEST(Error, SaysWhetherTryingAgainMayHelp) {
  EXPECT_FALSE(ConfigError("x").retry_may_help());
  EXPECT_FALSE(InternalError("x").retry_may_help());
  EXPECT_TRUE(IoError("x").retry_may_help());
  EXPECT_TRUE(CommError("x").retry_may_help());
}

TEST(Check, NamesTheConditionTheReasonAndTheValues) {
  const int a = 3, b = 2;
  EXPECT_NO_THROW(TRIREME_CHECK(b < a, "fine"));
  try {
    TRIREME_CHECK(a < b, "a must stay below b: {} and {}", a, b);
    FAIL();
  } catch (const InternalError& error) {
    EXPECT_THAT(error.message(), HasSubstr("a must stay below b: 3 and 2 (a < b does not hold at "));
    EXPECT_THAT(error.message(), HasSubstr("error_test.cpp:"));
    EXPECT_THAT(error.hint(), HasSubstr("report"));
  }
}

}  // namespace
}  // namespace trireme
