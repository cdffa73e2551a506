#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "tests/base/config_sample.h"

namespace trireme::sample {
namespace {

using config::Input;
using config::load;
using config::Problem;
using config::ProblemsError;
using testing::AllOf;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;

Input text(std::string toml, std::vector<std::string> sets = {}) {
  return {.file = "x.toml", .text = std::move(toml), .sets = std::move(sets)};
}

std::vector<Problem> problems_of(const Input& input) {
  try {
    (void)load<All>(input);
    return {};
  } catch (const ProblemsError& error) {
    return error.problems();
  }
}

/// The one problem there is.
Problem problem_of(const Input& input) {
  const auto problems = problems_of(input);
  EXPECT_EQ(problems.size(), 1u);
  return problems.empty() ? Problem{} : problems.front();
}

TEST(ConfigRead, NothingGivesTheDefaultsOfTheStructs) {
  const auto loaded = load<All>({});
  EXPECT_EQ(loaded.value, All());
  EXPECT_THAT(loaded.origins, IsEmpty());
}

TEST(ConfigRead, EveryTypeComesFromTheFile) {
  const auto [all, origins] = load<All>(text(kText));
  const Basics& basics = all.basics;
  EXPECT_TRUE(basics.on);
  EXPECT_EQ(basics.ranks, 4);
  EXPECT_EQ(basics.steps, 20'000);
  EXPECT_EQ(basics.buffer, 3LL << 29);
  EXPECT_EQ(basics.link, 12'500'000'000);
  EXPECT_EQ(basics.rate, 0.5);
  EXPECT_EQ(basics.name, "a \"b\" \\ c");
  EXPECT_EQ(basics.shape, Shape::kSquare);
  EXPECT_THAT(basics.shapes, ElementsAre(Shape::kRound, Shape::kSquare));
  EXPECT_EQ(basics.deadline, 90min);
  EXPECT_THAT(basics.sizes, ElementsAre(3, 4, 5));
  EXPECT_EQ(basics.inner.limit, 7);
  EXPECT_THAT(basics.inner.tags, ElementsAre("x", "y"));
  EXPECT_THAT(all.blend, ElementsAre(Entry{"one", 1}, Entry{"two", 0.25}));
  EXPECT_EQ(origins.at("basics.on"), "x.toml:2");
  EXPECT_EQ(origins.at("basics.inner.limit"), "x.toml:15");
  EXPECT_EQ(origins.at("blend.1.weight"), "x.toml:23");
  EXPECT_FALSE(origins.contains("blend.0.weight")) << "a default has no origin";
}

TEST(ConfigRead, SetIsReadByTheTypeOfTheKey) {
  const auto [all, origins] =
      load<All>(text(kText, {"basics.on=false", "basics.ranks=8", "basics.steps=1.5M", "basics.buffer=64 MB",
                             "basics.rate=3e-4", "basics.name=1f1b", "basics.shape=round", "basics.deadline=500ms",
                             "basics.deadline=30s", "basics.sizes=7,8", "basics.inner.limit=", "basics.shapes=[round]",
                             "basics.inner.tags=[\"a,b\", \"c\"]", "blend.1.path=a=b"}));
  const Basics& basics = all.basics;
  EXPECT_FALSE(basics.on);
  EXPECT_EQ(basics.ranks, 8);
  EXPECT_EQ(basics.steps, 1'500'000);
  EXPECT_EQ(basics.buffer, 64'000'000);
  EXPECT_EQ(basics.rate, 3e-4);
  EXPECT_EQ(basics.name, "1f1b");
  EXPECT_EQ(basics.shape, Shape::kRound);
  EXPECT_EQ(basics.deadline, 30s) << "the last one wins";
  EXPECT_THAT(basics.sizes, ElementsAre(7, 8));
  EXPECT_EQ(basics.inner.limit, std::nullopt);
  EXPECT_THAT(basics.shapes, ElementsAre(Shape::kRound));
  EXPECT_THAT(basics.inner.tags, ElementsAre("a,b", "c"));
  EXPECT_EQ(all.blend[1].path, "a=b");
  EXPECT_EQ(origins.at("basics.ranks"), "--set");
}

TEST(ConfigRead, ReportsAllProblemsAtOnceInTheOrderOfTheFile) {
  const auto problems = problems_of(text(R"([basics]
ranks = 0
shape = "sqare"
nmae = "x"
deadline = 30
[blend]
)",
                                         {"basics.rate=2"}));
  EXPECT_THAT(problems, ElementsAre(AllOf(Field(&Problem::where, "x.toml:2"), Field(&Problem::key, "basics.ranks")),
                                    AllOf(Field(&Problem::where, "x.toml:3"), Field(&Problem::key, "basics.shape")),
                                    AllOf(Field(&Problem::where, "x.toml:4"), Field(&Problem::key, "basics.nmae")),
                                    AllOf(Field(&Problem::where, "x.toml:5"), Field(&Problem::key, "basics.deadline")),
                                    AllOf(Field(&Problem::where, "x.toml:6"), Field(&Problem::key, "blend")),
                                    AllOf(Field(&Problem::where, "--set"), Field(&Problem::key, "basics.rate"))));
}

TEST(ConfigRead, TheErrorIsOneReadableTable) {
  try {
    (void)load<All>(text("[basics]\nranks = 0\nshape = \"sqare\"\n"));
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.block(),
              "configuration error: x.toml has 2 problems:\n"
              "  x.toml:2  basics.ranks  must be at least 1, but is 0\n"
              "  x.toml:3  basics.shape  \"sqare\" is unknown; did you mean \"square\"? -> one of round, square\n");
  }
}

TEST(ConfigRead, WrongTypesSayWhatWasExpectedAndWhatWasFound) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"ranks = \"4\"", "expected a whole number, found the text \"4\""},
      {"ranks = 4.0", "expected a whole number, found the number 4"},
      {"ranks = 99", "must be at most 64, but is 99"},
      {"on = 1", "expected true or false, found the number 1"},
      {"rate = \"fast\"", "expected a number, found the text \"fast\""},
      {"rate = 0", "must be above 0, but is 0.0"},
      {"rate = nan", "must be a finite number, but is nan"},
      {"name = 1979-05-27", "expected a text, found a date or time"},
      {"name = [1]", "expected a text, found a list of 1"},
      {"shape = {a = 1}", "expected one of round, square, found a table"},
      {"buffer = \"64Q\"", "\"64Q\" is not a size in bytes: unknown unit \"Q\""},
      {"deadline = 30", "expected a duration with its unit, found the number 30"},
      {"deadline = \"1us\"", "must be at least 1ms, but is \"1us\""},
      {"sizes = 3", "expected a list, each a whole number, found the number 3"},
      {"sizes = [1, -2]", "item 1 of the list: must be at least 0, but is -2"},
      {"shapes = [\"round\", \"oval\"]", "item 1 of the list: \"oval\" is unknown"},
      {"inner = 3", "is a section, found the number 3"},
      {"inner = {limit = 3000000000}", "must be at most 2147483647, but is 3000000000"},
  };
  for (const auto& [line, reason] : cases) {
    const Problem problem = problem_of(text("[basics]\n" + line + "\n"));
    EXPECT_EQ(problem.where, "x.toml:2") << line;
    EXPECT_THAT(problem.reason, HasSubstr(reason)) << line;
  }
}

TEST(ConfigRead, UnknownKeysAreSuggestedFromNearbyThenFromElsewhere) {
  EXPECT_EQ(problem_of(text("[basics]\nrank = 1")).reason, "unknown key; did you mean \"basics.ranks\"?");
  EXPECT_EQ(problem_of(text("[basic]\nranks = 1")).reason, "unknown key; did you mean \"basics\"?");
  EXPECT_EQ(problem_of(text("[basics]\nlimit = 1")).reason, "unknown key; did you mean \"basics.inner.limit\"?");
  EXPECT_EQ(problem_of(text("ranks = 1")).reason, "unknown key; did you mean \"basics.ranks\"?");
  EXPECT_EQ(problem_of(text("[basics.inner]\ncolour = 1")).reason,
            "unknown key; the keys of [basics.inner] are limit and tags");
  EXPECT_EQ(problem_of(text("", {"basics.rank=1"})).reason, "unknown key; did you mean \"basics.ranks\"?");
}

TEST(ConfigRead, RetiredKeysNameTheirSuccessor) {
  EXPECT_EQ(problem_of(text("[basics]\nspeed = 1")).reason, "unknown key; did you mean \"basics.rate\"?");
  EXPECT_EQ(problem_of(text("", {"basics.speed=1"})).reason, "unknown key; did you mean \"basics.rate\"?");
  EXPECT_EQ(problem_of(text("[[mixture]]\npath = \"x\"")).reason, "unknown key; did you mean \"blend\"?");
}

TEST(ConfigRead, ReservedSectionsSayForWhat) {
  // Near to "basics", and yet not what was meant.
  const std::string reason = "is reserved for what stands below the basics";
  EXPECT_EQ(problem_of(text("[basis]\nranks = 1")).reason, reason);
  EXPECT_EQ(problem_of(text("", {"basis.ranks=1"})).reason, reason);
}

TEST(ConfigRead, WrongSetsAreExplained) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"basics.ranks", "there is no value"},
      {"basics=3", "is a section; set one of its keys"},
      {"blend=3", "name an entry of [[blend]] by its number, 0 to 1"},
      {"blend.2.path=x", "name an entry of [[blend]] by its number, 0 to 1"},
      {"blend.-1.path=x", "name an entry of [[blend]] by its number, 0 to 1"},
      {"basics.ranks.x=3", "unknown key"},
      {"=3", "unknown key"},
      {"basics.ranks=four", "\"four\" is not a whole number"},
      {"basics.ranks=", "\"\" is not a whole number"},
      {"basics.on=yes", "expected true or false, found \"yes\""},
      {"basics.rate=fast", "\"fast\" is not a number"},
      {"basics.name=\xff\xfe", "the text is not UTF-8"},
  };
  for (const auto& [assignment, reason] : cases) {
    const Problem problem = problem_of(text(kText, {assignment}));
    EXPECT_EQ(problem.where, "--set") << assignment;
    EXPECT_THAT(problem.reason, HasSubstr(reason)) << assignment;
  }
  EXPECT_THAT(problem_of({.sets = {"blend.0.path=x"}}).reason, HasSubstr("has no entries"));
}

TEST(ConfigRead, RequiredKeysAreMissedWithTheLineOfTheirTable) {
  const Problem problem = problem_of(text("[[blend]]\npath = \"x\"\n\n[[blend]]\nweight = 1\n"));
  EXPECT_EQ(problem.where, "x.toml:4");
  EXPECT_EQ(problem.key, "blend.1.path");
  EXPECT_EQ(problem.reason, "must be given: a text");
  EXPECT_THAT(problems_of(text("[[blend]]\nweight = 1\n", {"blend.0.path=x"})), IsEmpty()) << "--set gives it too";
}

TEST(ConfigRead, ValuesAreCheckedAgainstEachOtherWhereTheyStand) {
  const Problem problem = problem_of(text("[basics]\nranks = 64\nsizes = [1]\n"));
  EXPECT_EQ(problem.where, "x.toml:2");
  EXPECT_THAT(problem.reason, HasSubstr("more than 32"));
  EXPECT_THAT(problems_of(text("[basics]\nranks = 64\nsizes = [1]\n", {"basics.ranks=32"})), IsEmpty()) << "the hint";
}

TEST(ConfigRead, WhatFollowsFromAnUnreadableValueIsNotReported) {
  EXPECT_THAT(problem_of(text("[basics]\nranks = 65\n")).reason, HasSubstr("at most 64"));
  EXPECT_THAT(problem_of(text("[basics\n")).reason, HasSubstr("not TOML"));
}

TEST(ConfigRead, SyntaxErrorsHaveTheirLine) {
  const Problem problem = problem_of(text("[basics]\non = true\nranks = = 4\n"));
  EXPECT_EQ(problem.where, "x.toml:3");
  EXPECT_THAT(problem.reason, HasSubstr("not TOML: "));
  EXPECT_EQ(problem_of(text("[basics]\nranks = 1\nranks = 2\n")).where, "x.toml:3") << "a key twice";
}

TEST(ConfigRead, AMissingFileIsSuggestedToo) {
  const std::string folder = testing::TempDir() + "trireme-config-" + std::to_string(::getpid()) + "/";
  std::filesystem::create_directories(folder);
  const std::string path = folder + "trireme-config-test.toml";
  std::ofstream(path) << kText;
  EXPECT_EQ(load<All>({.file = path}).value.basics.ranks, 4);
  try {
    (void)load<All>({.file = folder + "trireme-confg-test.toml"});
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.message(), HasSubstr("No such file"));
    EXPECT_THAT(error.message(), HasSubstr("did you mean \"trireme-config-test.toml\"?"));
  }
  std::remove(path.c_str());
  EXPECT_THROW((void)load<All>({.file = folder}), ConfigError) << "a folder is no file";
  std::filesystem::remove_all(folder);
}

struct SetByDefault {
  std::optional<int> limit = 3;
};
void describe(config::Section<SetByDefault>& section) { section.field("limit", &SetByDefault::limit, "never unset"); }

TEST(ConfigDescription, ADefectInItIsFoundAtOnce) {
  config::Section<Entry> section;
  section.field("path", &Entry::path, "");
  EXPECT_THROW(section.field("path", &Entry::path, ""), InternalError);
  EXPECT_THROW(section.field("a.b", &Entry::path, ""), InternalError);
  EXPECT_THROW(section.field("", &Entry::path, ""), InternalError);
  EXPECT_THROW(config::schema_of<SetByDefault>(), InternalError);
}

}  // namespace
}  // namespace trireme::sample
