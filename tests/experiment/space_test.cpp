#include "trireme/experiment/space.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/errors.h"
#include "trireme/base/error.h"

namespace trireme::experiment {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string refusal(const std::vector<std::string>& texts) {
  try {
    parse_space(texts);
  } catch (const ConfigError& error) {
    return error.block();
  }
  return "accepted";
}

TEST(Space, ReadsEveryFormAndWritesItBack) {
  for (const std::string text :
       {"optim.learning_rate=log(1e-05,0.01)", "optim.weight_decay=uniform(0,0.2,5)", "model.num_layers=int(2,8)",
        "model.ffn_size=logint(64,1024,5)", "lr_schedule.kind=choice(cosine|linear)"}) {
    const Parameter parameter = parse_parameter(text);
    EXPECT_EQ(to_text(parameter), text);
    EXPECT_EQ(parse_parameter(to_text(parameter)), parameter);
  }
  const Parameter spaced = parse_parameter(" optim.learning_rate = log( 1e-5 , 1e-2 ) ");
  EXPECT_EQ(spaced.key, "optim.learning_rate");
  EXPECT_DOUBLE_EQ(spaced.low, 1e-5);
}

TEST(Space, MistakesAreNamedWithAFormThatWorks) {
  EXPECT_THAT(refusal({"log(1,2)"}), HasSubstr("does not say which key"));
  EXPECT_THAT(refusal({"a.b=0.1"}), AllOf(HasSubstr("has no range"), HasSubstr("--set a.b=0.1")));
  EXPECT_THAT(refusal({"a.b=lgo(1,2)"}), HasSubstr("did you mean \"log\"?"));
  EXPECT_THAT(refusal({"a.b=log(1)"}), HasSubstr("1 number in its range"));
  EXPECT_THAT(refusal({"a.b=log(1,x)"}), HasSubstr("\"x\", which is not a number"));
  EXPECT_THAT(refusal({"a.b=log(2,1)"}), HasSubstr("a.b=log(1,2)"));
  EXPECT_THAT(refusal({"a.b=log(0,1)"}), HasSubstr("zero has no logarithm"));
  EXPECT_THAT(refusal({"a.b=int(1,2.5)"}), HasSubstr("a.b=uniform(1,2.5)"));
  EXPECT_THAT(refusal({"a.b=log(1,2,1)"}), HasSubstr("2 or more"));
  EXPECT_THAT(refusal({"a.b=choice(x)"}), HasSubstr("one choice only"));
  EXPECT_THAT(refusal({"a.b=choice(x,x)"}), HasSubstr("\"x\" twice"));
  EXPECT_THAT(refusal({"a.b=choice(x,)"}), HasSubstr("without a value"));
  EXPECT_THAT(refusal({"a.b=int(1,2)", "a.b=int(1,3)"}), HasSubstr("another parameter varies"));
  EXPECT_THAT(refusal({"a.b=int(1,2) if c.d=x"}), HasSubstr("depends on c.d"));
  EXPECT_THAT(refusal({"c.d=choice(xx,yy)", "a.b=int(1,2) if c.d=xy"}), HasSubstr("none of its choices"));
}

TEST(Space, HintsOfMistakesWork) {
  EXPECT_NO_THROW(parse_parameter("a.b=log(1,2)"));
  EXPECT_NO_THROW(parse_parameter("a.b=uniform(1,2.5)"));
  EXPECT_NO_THROW(grid_values(parse_parameter("a.b=log(1,2,4)")));
}

TEST(Space, UnitsMapToValuesAndBack) {
  for (const std::string text :
       {"x=log(1e-5,1e-2)", "x=uniform(-1,1)", "x=int(3,9)", "x=logint(1,1000)", "x=choice(a,b,c)", "x=int(0,1)"}) {
    const Parameter parameter = parse_parameter(text);
    for (double unit = 0; unit < 1; unit += 0.013) {
      const std::string value = value_at(parameter, unit);
      EXPECT_EQ(value_at(parameter, unit_of(parameter, value)), value) << text << " at " << unit;
    }
  }
}

TEST(Space, EveryWholeNumberIsEquallyLikelyAndNoneIsOutside) {
  const Parameter parameter = parse_parameter("x=int(3,7)");
  std::map<std::string, int> counts;
  for (int i = 0; i < 1000; ++i) ++counts[value_at(parameter, (i + 0.5) / 1000)];
  EXPECT_THAT(counts, ElementsAre(std::pair("3", 200), std::pair("4", 200), std::pair("5", 200), std::pair("6", 200),
                                  std::pair("7", 200)));
  EXPECT_EQ(value_at(parse_parameter("x=log(1e-4,1e-2)"), 0.5), "0.001");
  EXPECT_EQ(value_at(parse_parameter("x=log(1e-4,1e-2)"), 1.0), "0.01");
}

TEST(Space, GridsHaveBothEnds) {
  EXPECT_THAT(grid_values(parse_parameter("x=log(1e-4,1e-1,4)")), ElementsAre("0.0001", "0.001", "0.01", "0.1"));
  EXPECT_THAT(grid_values(parse_parameter("x=uniform(0,1,3)")), ElementsAre("0", "0.5", "1"));
  EXPECT_THAT(grid_values(parse_parameter("x=int(2,4)")), ElementsAre("2", "3", "4"));
  EXPECT_THAT(grid_values(parse_parameter("x=logint(1,100,3)")), ElementsAre("1", "10", "100"));
  EXPECT_THAT(grid_values(parse_parameter("x=choice(0.9,0.95|0.9,0.99)")), ElementsAre("0.9,0.95", "0.9,0.99"));
}

TEST(Space, AGridOfARangeAsksForTheNumberOfValues) {
  try {
    grid_values(parse_parameter("x=log(1e-4,1e-1)"));
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.block(), HasSubstr("x=log(0.0001,0.1,4)"));
  }
}

TEST(Space, ConditionsLeaveParametersOut) {
  const std::vector<std::string> texts{"optim.kind=choice(adamw,lion)",
                                       "optim.beta2=choice(0.95,0.99) if optim.kind=adamw",
                                       "x=int(1,2) if optim.beta2=0.99"};
  const Space space = parse_space(texts);
  EXPECT_EQ(to_text(setting_at(space, std::vector{0.1, 0.9, 0.9})), "optim.kind=adamw optim.beta2=0.99 x=2");
  EXPECT_EQ(to_text(setting_at(space, std::vector{0.9, 0.9, 0.9})), "optim.kind=lion");
  EXPECT_EQ(to_text(setting_at(space, std::vector{0.1, 0.1, 0.9})), "optim.kind=adamw optim.beta2=0.95");
}

TEST(Space, DrawsAreAFunctionOfSeedTrialAndDraw) {
  const Space space = parse_space(std::vector<std::string>{"x=uniform(0,1)", "y=log(1,10)"});
  EXPECT_EQ(random_setting(space, 7, 3), random_setting(space, 7, 3));
  EXPECT_NE(random_setting(space, 7, 3), random_setting(space, 7, 4));
  EXPECT_NE(random_setting(space, 7, 3), random_setting(space, 8, 3));
  EXPECT_NE(random_setting(space, 7, 3), random_setting(space, 7, 3, 1));
}

}  // namespace
}  // namespace trireme::experiment
