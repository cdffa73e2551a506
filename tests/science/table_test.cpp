#include "trireme/science/table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/errors.h"

namespace trireme::science {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(Csv, ReadsQuotesLineEndsAndBlankLines) {
  const Table table = parse_csv(
      "\xEF\xBB\xBF"
      "a, \"b, c\" ,d\r\n1,\"x \"\"y\"\"\",3\n\n4,\"two\nlines\",6",
      "t.csv");
  EXPECT_THAT(table.names, ElementsAre("a", "b, c", "d"));
  EXPECT_THAT(table.cells, ElementsAre(ElementsAre("1", "x \"y\"", "3"), ElementsAre("4", "two\nlines", "6")));
}

TEST(Csv, WritesFieldsThatReadBack) {
  for (const std::string field : {"plain", "a,b", "say \"so\"", "two\nlines"}) {
    EXPECT_EQ(parse_csv("n,m\n" + csv_field(field) + ",1\n", "t").cells[0][0], field);
  }
}

TEST(Csv, SaysWhereALineIsWrong) {
  EXPECT_THAT(words_of([] { parse_csv("a,b\n1,2\n3\n", "t.csv"); }), HasSubstr("t.csv:3: 1 fields"));
  EXPECT_THAT(words_of([] { parse_csv("a,b\n\n1,\n", "t.csv"); }), HasSubstr("t.csv:3: field 2 is empty"));
  EXPECT_THAT(words_of([] { parse_csv("a,a\n1,2\n", "t.csv"); }), HasSubstr("same name"));
  EXPECT_THAT(words_of([] { parse_csv("a,b\n", "t.csv"); }), HasSubstr("no rows"));
  EXPECT_THAT(words_of([] { parse_csv("a\n\"1\n", "t.csv"); }), HasSubstr("does not end"));
}

TEST(Columns, StandardiseInputsAndAddAConstant) {
  const Table table = parse_csv("x,y\n1,10\n3,20\n5,60\n", "t.csv");
  const Columns columns = choose_columns(table, {.targets = {"y"}, .inputs = {}});
  EXPECT_THAT(columns.inputs, ElementsAre("x"));
  const Samples samples = to_samples(table, columns);
  EXPECT_NEAR(samples.inputs(0, 0), -2 / std::sqrt(8.0 / 3), 1e-15);
  EXPECT_EQ(samples.inputs(0, 1), 1);
  EXPECT_EQ(samples.targets(2, 0), 60);
  const Samples one = pick(samples, {2});
  EXPECT_EQ(one.count(), 1U);
  EXPECT_EQ(one.targets(0, 0), 60);
}

TEST(Columns, TakeATargetWithWordsAsClasses) {
  const Table table = parse_csv("x,kind\n1,b\n2,a\n3,b\n", "t.csv");
  const Columns columns = choose_columns(table, {.targets = {"kind"}, .inputs = {}});
  EXPECT_EQ(columns.family, Family::kMultinomial);
  EXPECT_THAT(columns.classes, ElementsAre("a", "b"));
  EXPECT_EQ(to_samples(table, columns).targets(0, 1), 1);
  const Table numbers = parse_csv("x,kind\n1,0\n2,1\n3,0\n", "t.csv");
  EXPECT_EQ(choose_columns(numbers, {.targets = {"kind"}, .inputs = {}}).family, Family::kGaussian);
  EXPECT_EQ(choose_columns(numbers, {.targets = {"kind"}, .inputs = {}, .classes = true}).family, Family::kMultinomial);
  const Table other = parse_csv("x,kind\n1,z\n", "u.csv");
  EXPECT_THAT(words_of([&] { to_samples(other, columns); }), AllOf(HasSubstr("\"z\""), HasSubstr("a and b")));
}

TEST(Columns, RefuseWhatCannotBeRegressedOn) {
  const Table table = parse_csv("x,y,word,same\n1,2,p,1\n2,3,q,1\n", "t.csv");
  const auto choose = [&](std::vector<std::string> targets, std::vector<std::string> inputs) {
    return words_of([&] { choose_columns(table, {.targets = targets, .inputs = inputs}); });
  };
  EXPECT_THAT(choose({"z"}, {}), AllOf(HasSubstr("no column \"z\""), HasSubstr("x, y, word and same")));
  EXPECT_THAT(choose({"y"}, {}), AllOf(HasSubstr("\"word\" has \"p\" in data row 1"), HasSubstr("--inputs")));
  EXPECT_THAT(choose({"y"}, {"same"}), HasSubstr("1 everywhere"));
  EXPECT_THAT(choose({"y"}, {"y"}), HasSubstr("named twice"));
  EXPECT_THAT(choose({"y", "word"}, {"x"}), HasSubstr("several targets"));
  EXPECT_THAT(choose({}, {"x"}), HasSubstr("--target"));
}

}  // namespace
}  // namespace trireme::science
