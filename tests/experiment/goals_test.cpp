// What early stopping is for, on a thousand synthetic curves.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/experiment/curves.h"
#include "trireme/experiment/simulate.h"

namespace trireme::experiment {
namespace {

constexpr std::int64_t kSteps = 1024;

SearchOptions goal_options(std::uint64_t seed, int trials) {
  return {.space = Curves::space(), .seed = seed, .trials = trials, .max_steps = kSteps};
}

/// Steps until the best trial, trained to the end, is among the best 1 % of all settings.
std::int64_t steps_to_top(const char* name, std::uint64_t seed, const Curves& curves, const std::vector<int>& ranks) {
  const auto search = make_search(name, goal_options(seed, 2000));
  const Simulated done = simulate(
      *search, {.curve = [&](const Setting& setting, std::int64_t step) { return curves.loss(setting, step); },
                .enough =
                    [&](const Journal& journal, std::int64_t) {
                      const Result& last = std::get<Result>(journal.back());
                      if (last.step < kSteps) return false;
                      const auto best = best_of(journal);
                      return ranks[static_cast<std::size_t>(Curves::index_of(best->setting))] < Curves::kCount / 100;
                    }});
  return done.steps;
}

std::vector<int> final_ranks(const Curves& curves) {
  std::vector<double> losses;
  for (int i = 0; i < Curves::kCount; ++i) losses.push_back(curves.loss(i, kSteps));
  std::vector<int> ranks;
  for (const double own : losses) {
    ranks.push_back(static_cast<int>(std::ranges::count_if(losses, [&](double other) { return other < own; })));
  }
  return ranks;
}

std::int64_t median_steps(const char* name, const Curves& curves, const std::vector<int>& ranks) {
  std::vector<std::int64_t> steps;
  for (std::uint64_t seed = 0; seed < 50; ++seed) steps.push_back(steps_to_top(name, seed, curves, ranks));
  std::ranges::nth_element(steps, steps.begin() + 25);
  return steps[25];
}

TEST(Goals, AshaFindsATopSettingWithAnEighthOfRandomSearchsSteps) {
  const Curves curves(1);
  const std::vector<int> ranks = final_ranks(curves);
  const std::int64_t random = median_steps("random", curves, ranks);
  for (const char* name : {"asha", "asha-stopping"}) {
    const std::int64_t asha = median_steps(name, curves, ranks);
    RecordProperty(name, static_cast<int>(random / asha));
    EXPECT_LE(asha * 8, random) << name << ": " << asha << " steps, random search " << random;
  }
}

TEST(Goals, SixteenWorkersAreTenTimesAsFast) {
  const Curves curves(2);
  const auto time_with = [&](int workers) {
    return simulate(*make_search("asha", goal_options(3, 3000)),
                    {.curve = [&](const Setting& setting, std::int64_t step) { return curves.loss(setting, step); },
                     .workers = workers})
        .time;
  };
  EXPECT_GE(time_with(1), 10 * time_with(16));
}

TEST(Goals, SlowAndFailingWorkersChangeTheResultLittle) {
  const Curves curves(3);
  const std::vector<int> ranks = final_ranks(curves);
  std::vector<int> differences;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const auto rank_with = [&](bool trouble) {
      const Random random(seed, "trouble");
      SimulateOptions options{
          .curve = [&](const Setting& setting, std::int64_t step) { return curves.loss(setting, step); },
          .workers = 16};
      if (trouble) {
        options.slowness = [](int worker) { return worker % 2 == 0 ? 2.0 : 1.0; };
        options.fails = [&](const Job& job) {
          return job.from == 0 && random.uniform(static_cast<std::uint64_t>(job.trial)) < 0.25;
        };
      }
      const Simulated done = simulate(*make_search("asha", goal_options(seed, 400)), options);
      return ranks[static_cast<std::size_t>(Curves::index_of(best_of(done.journal)->setting))];
    };
    differences.push_back(std::abs(rank_with(true) - rank_with(false)));
  }
  std::ranges::nth_element(differences, differences.begin() + 10);
  EXPECT_LE(differences[10], 1) << "ranks of 1,000 settings, median of 20 seeds";
}

}  // namespace
}  // namespace trireme::experiment
