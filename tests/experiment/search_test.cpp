#include "trireme/experiment/search.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "trireme/base/error.h"
#include "trireme/experiment/simulate.h"

namespace trireme::experiment {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

SearchOptions options_of(int trials, std::int64_t max_steps) {
  return {.space = parse_space(std::vector<std::string>{"x=uniform(0,1)"}),
          .seed = 5,
          .trials = trials,
          .max_steps = max_steps};
}

double x_of(const Setting& setting) { return std::stod(setting.at(0).value); }
/// The nearer x is to 0.3, the better; longer is better.
double bowl(const Setting& setting, std::int64_t step) {
  return std::abs(x_of(setting) - 0.3) + 1.0 / static_cast<double>(step);
}

/// Trials that were trained until each step.
std::map<std::int64_t, int> reached(const Journal& journal) {
  std::map<std::int64_t, int> out;
  for (const auto& entry : journal) {
    if (const Result* result = std::get_if<Result>(&entry)) ++out[result->step];
  }
  return out;
}

std::vector<std::string> names() {
  std::vector<std::string> out;
  for (const SearchKind& kind : search_kinds()) out.emplace_back(kind.name);
  return out;
}

class EverySearch : public ::testing::TestWithParam<std::string> {
 protected:
  static SearchOptions options() {
    SearchOptions options = options_of(20, 64);
    options.space = parse_space(std::vector<std::string>{"x=uniform(0,1,5)", "y=choice(a,b)"});
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(Searches, EverySearch, ::testing::ValuesIn(names()), [](const auto& kind) {
  std::string name = kind.param;
  std::ranges::replace(name, '-', '_');
  return name;
});

TEST_P(EverySearch, ReplaysFromAnyPrefixOfItsJournal) {
  const auto search = make_search(GetParam(), options());
  const Simulated whole = simulate(*search, {.curve = bowl, .workers = 3});
  ASSERT_FALSE(whole.journal.empty());
  for (std::size_t cut = 0; cut <= whole.journal.size(); cut += 7) {
    const Journal prefix(whole.journal.begin(), whole.journal.begin() + static_cast<std::ptrdiff_t>(cut));
    const auto again = make_search(GetParam(), options());
    replay(*again, prefix);
    // What is left happens as it did.
    for (std::size_t i = cut; i < whole.journal.size(); ++i) {
      if (const Job* job = std::get_if<Job>(&whole.journal[i])) {
        EXPECT_EQ(again->next(), *job);
      } else {
        again->tell(std::get<Result>(whole.journal[i]));
      }
    }
    EXPECT_EQ(again->next(), std::nullopt);
  }
}

TEST_P(EverySearch, TrainsSomethingToTheEndAndAsksForNoStepTwice) {
  const auto search = make_search(GetParam(), options());
  const Simulated done = simulate(*search, {.curve = bowl, .workers = 4});
  std::map<int, std::int64_t> at;
  for (const auto& entry : done.journal) {
    if (const Job* job = std::get_if<Job>(&entry)) {
      EXPECT_LT(job->from, job->until);
      if (job->copy_of) {
        EXPECT_EQ(at[*job->copy_of], job->from);
      } else {
        EXPECT_EQ(at[job->trial], job->from) << "trial " << job->trial;
      }
      at[job->trial] = job->until;
    }
  }
  EXPECT_EQ(best_of(done.journal)->step, 64);
  EXPECT_EQ(search->evaluation_steps().back(), 64);
}

TEST_P(EverySearch, EndsWhenTrialsCrashOrCannotBeTrained) {
  for (const Result::End end : {Result::End::kFailed, Result::End::kInvalid}) {
    const auto search = make_search(GetParam(), options());
    int results = 0;
    std::vector<Job> open;
    while (true) {
      while (const auto job = search->next()) open.push_back(*job);
      if (open.empty()) break;
      const Job job = open.back();
      open.pop_back();
      ASSERT_LT(++results, 5000);
      const bool bad = results % 3 != 0;
      search->tell({.trial = job.trial,
                    .step = job.until,
                    .value = bowl(job.setting, job.until),
                    .end = bad ? end : Result::End::kReached});
    }
    EXPECT_GT(results, 5);
  }
}

TEST_P(EverySearch, EndsWhenNothingCanBeTrained) {
  const auto search = make_search(GetParam(), options());
  int results = 0;
  while (const auto job = search->next()) {
    ASSERT_LT(++results, 5000);
    search->tell({.trial = job->trial, .end = Result::End::kInvalid});
  }
}

TEST(Search, UnknownNamesAndOptionsAreRefused) {
  EXPECT_THROW(make_search("asha", {.space = {}, .trials = 0, .max_steps = 1}), ConfigError);
  EXPECT_THROW(make_search("asha", {.space = {}, .trials = 1, .max_steps = 1, .min_steps = 2}), ConfigError);
  try {
    make_search("ahsa", options_of(1, 1));
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.block(), HasSubstr("did you mean \"asha\"?"));
  }
}

TEST(Search, AJournalOfAnotherSearchIsRefused) {
  const auto search = make_search("random", options_of(4, 10));
  const Simulated done = simulate(*search, {.curve = bowl});
  SearchOptions other = options_of(4, 10);
  other.seed = 6;
  EXPECT_THROW(replay(*make_search("random", other), done.journal), ConfigError);
  const Journal stray{Result{.trial = 3, .step = 10}};
  EXPECT_THROW(replay(*make_search("random", options_of(4, 10)), stray), ConfigError);
}

TEST(Search, ReplayGivesTheJobsThatHaveNoResultYet) {
  const auto search = make_search("random", options_of(4, 10));
  Journal journal;
  for (int i = 0; i < 3; ++i) journal.emplace_back(*search->next());
  journal.emplace_back(Result{.trial = 1, .step = 10, .value = 2});
  const std::vector<Job> open = replay(*make_search("random", options_of(4, 10)), journal);
  ASSERT_EQ(open.size(), 2U);
  EXPECT_EQ(open[0].trial, 0);
  EXPECT_EQ(open[1].trial, 2);
}

TEST(Search, TheBestIsAmongThoseThatWereTrainedLongest) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Journal journal{Job{.trial = 0, .until = 4},  Result{.trial = 0, .step = 4, .value = 1},
                        Job{.trial = 1, .until = 8},  Result{.trial = 1, .step = 8, .value = 2},
                        Job{.trial = 2, .until = 8},  Result{.trial = 2, .step = 8, .value = nan},
                        Job{.trial = 3, .until = 16}, Result{.trial = 3, .step = 16, .end = Result::End::kFailed}};
  EXPECT_EQ(best_of(journal)->trial, 1);
  EXPECT_FALSE(best_of({}));
}

TEST(Grid, TrainsEveryCombinationOnce) {
  SearchOptions options = options_of(1, 10);
  options.space = parse_space(std::vector<std::string>{"a=int(1,2)", "b=choice(x,y)", "c=int(5,6) if b=y"});
  const auto search = make_search("grid", options);
  std::vector<std::string> settings;
  while (const auto job = search->next()) settings.push_back(to_text(job->setting));
  EXPECT_THAT(settings, ElementsAre("a=1 b=x", "a=1 b=y c=5", "a=1 b=y c=6", "a=2 b=x", "a=2 b=y c=5", "a=2 b=y c=6"));
}

TEST(LatinHypercube, DrawsFromEveryStratumOfEveryParameterOnce) {
  SearchOptions options = options_of(17, 10);
  options.space = parse_space(std::vector<std::string>{"x=uniform(0,1)", "y=uniform(0,1)"});
  const auto search = make_search("lhs", options);
  std::set<int> strata[2];
  while (const auto job = search->next()) {
    for (std::size_t i = 0; i < 2; ++i) strata[i].insert(static_cast<int>(std::stod(job->setting[i].value) * 17));
  }
  EXPECT_EQ(strata[0].size(), 17U);
  EXPECT_EQ(strata[1].size(), 17U);
}

TEST(SuccessiveHalving, RungsHaveTheirCountsWhoeverIsFaster) {
  for (const int workers : {1, 3, 16}) {
    const auto search = make_search("sha", options_of(64, 1024));
    const Simulated done = simulate(*search, {.curve = bowl, .workers = workers});
    EXPECT_THAT(reached(done.journal),
                ElementsAre(std::pair(16, 64), std::pair(64, 16), std::pair(256, 4), std::pair(1024, 1)));
    EXPECT_EQ(best_of(done.journal)->trial,
              best_of(simulate(*make_search("sha", options_of(64, 1024)), {.curve = bowl}).journal)->trial);
  }
}

TEST(Hyperband, TrainsThePapersNumberOfTrials) {
  SearchOptions options = options_of(1, 81);
  options.divisor = 3;
  const Simulated done = simulate(*make_search("hyperband", options), {.curve = bowl, .workers = 5});
  EXPECT_THAT(reached(done.journal), ElementsAre(std::pair(1, 81), std::pair(3, 27 + 34), std::pair(9, 9 + 11 + 15),
                                                 std::pair(27, 3 + 3 + 5 + 8), std::pair(81, 1 + 1 + 1 + 2 + 5)));
}

TEST(AshaPromotion, PromotesTheTopOfTheHighestRungFirst) {
  SearchOptions options = options_of(100, 16);
  options.rungs = 3;  // 1, 4, 16
  const auto search = make_search("asha", options);
  // Losses fall with the trial's number, so the newest is always the best.
  const auto finish = [&](const Job& job) {
    search->tell({.trial = job.trial, .step = job.until, .value = static_cast<double>(-job.trial)});
  };
  std::vector<std::pair<int, std::int64_t>> jobs;
  for (int i = 0; i < 6; ++i) {
    const Job job = *search->next();
    jobs.emplace_back(job.trial, job.until);
    finish(job);
  }
  // Four at the bottom: the best of them goes on, and so does the next new one that is best of four or more.
  EXPECT_THAT(jobs, ElementsAre(std::pair(0, 1), std::pair(1, 1), std::pair(2, 1), std::pair(3, 1), std::pair(3, 4),
                                std::pair(4, 1)));
}

TEST(AshaPromotion, TrainsOneToTheEndWithFewTrials) {
  const Simulated done = simulate(*make_search("asha", options_of(3, 1024)), {.curve = bowl});
  EXPECT_EQ(best_of(done.journal)->step, 1024);
  EXPECT_EQ(reached(done.journal)[1024], 1);
}

TEST(AshaStopping, StopsWhoIsNotAmongTheBest) {
  SearchOptions options = options_of(8, 16);
  options.rungs = 3;
  const auto search = make_search("asha-stopping", options);
  std::vector<std::pair<int, std::int64_t>> jobs;
  while (const auto job = search->next()) {
    jobs.emplace_back(job->trial, job->until);
    search->tell({.trial = job->trial, .step = job->until, .value = static_cast<double>(job->trial)});
  }
  // The first always goes on; the later ones are all worse; the eighth would have to be second at most.
  EXPECT_THAT(jobs, ElementsAre(std::pair(0, 1), std::pair(0, 4), std::pair(0, 16), std::pair(1, 1), std::pair(2, 1),
                                std::pair(3, 1), std::pair(4, 1), std::pair(5, 1), std::pair(6, 1), std::pair(7, 1)));
}

TEST(AdaptiveAsha, StartsTheTrialsOfEveryBracket) {
  SearchOptions options = options_of(100, 1024);
  options.rungs = 4;
  const auto search = make_search("adaptive-asha", options);
  const Simulated done = simulate(*search, {.curve = bowl, .workers = 8});
  std::map<std::int64_t, int> first;
  for (const auto& entry : done.journal) {
    if (const Job* job = std::get_if<Job>(&entry); job != nullptr && job->from == 0) ++first[job->until];
  }
  EXPECT_THAT(first, ElementsAre(std::pair(16, 70), std::pair(64, 22), std::pair(256, 8)));
}

TEST(AdaptiveAsha, KeepsToItsConcurrency) {
  SearchOptions options = options_of(100, 1024);
  options.concurrent = 11;
  const auto search = make_search("adaptive-asha", options);
  int running = 0;
  while (search->next()) ++running;
  EXPECT_EQ(running, 11);
}

TEST(Pbt, TheWorstQuarterCopiesTheBestQuarter) {
  SearchOptions options = options_of(8, 80);
  options.rounds = 2;
  const auto search = make_search("pbt", options);
  std::map<int, double> x;
  while (const auto job = search->next()) {
    if (job->from > 0) {
      ASSERT_EQ(job->from, 40);
      if (!job->copy_of) {
        EXPECT_LT(job->trial, 6) << "the two worst are gone";
      } else {
        EXPECT_GE(job->trial, 8);
        EXPECT_LT(*job->copy_of, 2) << "one of the two best";
        const double ratio = x_of(job->setting) / x[*job->copy_of];
        const bool perturbed = std::abs(ratio - 0.8) < 1e-4 || std::abs(ratio - 1.2) < 1e-4 || x_of(job->setting) == 1;
        EXPECT_TRUE(perturbed || x_of(job->setting) == x_of(random_setting(options.space, options.seed, job->trial)));
      }
    }
    x[job->trial] = x_of(job->setting);
    search->tell({.trial = job->trial, .step = job->until, .value = static_cast<double>(job->trial)});
  }
  EXPECT_EQ(x.size(), 10U);
}

TEST(MedianStopping, StopsWhatIsWorseThanTheMedian) {
  SearchOptions options = options_of(12, 80);
  options.rounds = 4;
  const Simulated done = simulate(*make_search("median", options), {.curve = bowl});
  const auto counts = reached(done.journal);
  EXPECT_EQ(counts.at(20), 12);
  EXPECT_LT(counts.at(80), 12);
  EXPECT_GE(counts.at(80), 3);
}

TEST(Tpe, GathersWhereLossesAreLow) {
  int near = 0, far = 0;
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    SearchOptions options = options_of(60, 10);
    options.space = parse_space(std::vector<std::string>{"x=uniform(0,1)", "y=log(1e-4,1)", "z=choice(a,b,c)"});
    options.seed = seed;
    const auto search = make_search("tpe", options);
    for (int i = 0; const auto job = search->next(); ++i) {
      const double x = x_of(job->setting), y = std::log10(std::stod(job->setting[1].value));
      const double loss = std::abs(x - 0.3) + std::abs(y + 2) / 4 + (job->setting[2].value == "b" ? 0 : 0.3);
      search->tell({.trial = job->trial, .step = 10, .value = loss});
      if (i >= 30) (std::abs(x - 0.3) < 0.15 && job->setting[2].value == "b" ? near : far) += 1;
    }
  }
  // Random draws would be there with a chance of a tenth.
  EXPECT_GT(near, far / 2);
}

}  // namespace
}  // namespace trireme::experiment
