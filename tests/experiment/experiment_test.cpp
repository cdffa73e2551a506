#include "trireme/experiment/experiment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>

#include "tests/errors.h"
#include "tests/files.h"
#include "trireme/base/error.h"
#include "trireme/experiment/overview.h"
#include "trireme/experiment/simulate.h"

namespace trireme::experiment {
namespace {

using ::testing::HasSubstr;

Experiment sample_experiment() {
  return {.name = "lr, of tiny",
          .search = "sha",
          .options = {.space = parse_space(std::vector<std::string>{"optim.learning_rate=log(1e-4,1e-1)",
                                                                    "optim.kind=choice(adamw|lion)"}),
                      .seed = 3,
                      .trials = 8,
                      .max_steps = 16},
          .sets = {"train.hash_every=0"},
          .directory = "/tmp",
          .created = 12.5};
}

class ExperimentTest : public OwnFolder {
 protected:
  ExperimentFolder made() const {
    const ExperimentFolder folder(folder_ / "sweep");
    folder.create(sample_experiment(), "[run]\n");
    return folder;
  }
  /// A journal as a sweep would leave it.
  static Journal write_journal(const ExperimentFolder& folder) {
    const Experiment experiment = sample_experiment();
    const auto search = make_search(experiment.search, experiment.options);
    const Journal journal = simulate(*search, {.curve = [](const Setting& setting, std::int64_t step) {
                              return std::stod(setting[0].value) + 1.0 / static_cast<double>(step);
                            }}).journal;
    JournalFile file(folder);
    for (const auto& entry : journal) file.append(entry);
    return journal;
  }
};

TEST_F(ExperimentTest, ComesBackFromItsFolder) {
  EXPECT_EQ(made().read(), sample_experiment());
  EXPECT_EQ(read_all(folder_ / "sweep/recipe.toml"), "[run]\n");
}

TEST_F(ExperimentTest, AFolderHoldsOneExperiment) {
  const ExperimentFolder folder = made();
  EXPECT_THAT(words_of([&] { folder.create(sample_experiment(), ""); }), HasSubstr("trireme experiments resume"));
  EXPECT_THAT(words_of([&] { ExperimentFolder(folder_).read(); }), HasSubstr("holds no experiment"));
}

TEST_F(ExperimentTest, DamageIsNamedWithItsPlace) {
  const ExperimentFolder folder = made();
  write_all(folder.path() / "experiment.json", "{\"version\":1");
  EXPECT_THAT(words_of([&] { folder.read(); }), HasSubstr("experiment.json"));
  write_all(folder.journal(), "{\"result\":{\"trial\":0,\"step\":1,\"value\":1,\"end\":\"reached\"}}\nrubbish\n");
  EXPECT_THAT(words_of([&] { folder.read_journal(); }), HasSubstr("journal.jsonl:2"));
  write_all(folder.journal(), "{\"result\":{\"trial\":0,\"step\":1,\"value\":1,\"end\":\"vanished\"}}\n");
  EXPECT_THAT(words_of([&] { folder.read_journal(); }), HasSubstr("\"vanished\" is unknown"));
}

TEST_F(ExperimentTest, TheJournalComesBackExactly) {
  const ExperimentFolder folder = made();
  Journal journal = write_journal(folder);
  EXPECT_EQ(folder.read_journal(), journal);
  const Job copy{.trial = 9, .draw = 2, .from = 4, .until = 16, .setting = {{"a", "1|2"}}, .copy_of = 3};
  const Result nan{.trial = 9, .step = 4, .value = std::numeric_limits<double>::quiet_NaN()};
  {
    JournalFile file(folder);
    file.append(copy);
    file.append(nan);
  }
  journal.emplace_back(copy);
  journal.emplace_back(nan);
  EXPECT_EQ(folder.read_journal(), journal);
}

TEST_F(ExperimentTest, ALineThatACrashHasCutIsLeftOutAndThenRemoved) {
  const ExperimentFolder folder = made();
  const Journal journal = write_journal(folder);
  const std::string whole = read_all(folder.journal());
  write_all(folder.journal(), whole + "{\"result\":{\"tri");
  EXPECT_EQ(folder.read_journal(), journal);
  { const JournalFile file(folder); }
  EXPECT_EQ(read_all(folder.journal()), whole);
}

TEST_F(ExperimentTest, OneProcessAtATimeRunsIt) {
  const ExperimentFolder folder = made();
  EXPECT_FALSE(folder.is_locked());
  const ExperimentLock lock(folder);
  EXPECT_TRUE(folder.is_locked());
  EXPECT_THAT(words_of([&] { const ExperimentLock second(folder); }), HasSubstr("another process runs"));
}

TEST_F(ExperimentTest, WishesStayUntilTheyAreTakenBack) {
  const ExperimentFolder folder = made();
  EXPECT_EQ(folder.wanted(), Wanted::kRunning);
  folder.want(Wanted::kPaused);
  EXPECT_EQ(folder.wanted(), Wanted::kPaused);
  folder.want(Wanted::kStopped);
  EXPECT_EQ(folder.wanted(), Wanted::kStopped);
  folder.want(Wanted::kRunning);
  EXPECT_EQ(folder.wanted(), Wanted::kRunning);
}

TEST_F(ExperimentTest, AnOverviewHasStatesLossesAndTheBest) {
  const ExperimentFolder folder = made();
  const Journal journal = write_journal(folder);
  const Overview overview = overview_of(folder);
  EXPECT_EQ(overview.state, ExperimentState::kDone);
  ASSERT_EQ(overview.trials.size(), 8U);
  EXPECT_EQ(overview.best->trial, best_of(journal)->trial);
  EXPECT_EQ(overview.trials[static_cast<std::size_t>(overview.best->trial)].state, TrialState::kDone);
  EXPECT_EQ(std::ranges::count(overview.trials, TrialState::kStopped, &TrialView::state), 6) << "8 trials, 2 go on";
  EXPECT_EQ(overview.steps, 8 * 4 + 2 * 12);
  EXPECT_THAT(table_text(overview), HasSubstr("lr, of tiny: sha, done: 8 trials begun"));
  EXPECT_THAT(table_text(overview, 3), HasSubstr("and 5 more"));
  const std::string csv = csv_text(overview);
  EXPECT_TRUE(csv.starts_with("trial,draw,state,step,optim.learning_rate,optim.kind,loss@4,loss@16\n")) << csv;
  EXPECT_EQ(std::ranges::count(csv, '\n'), 9);
}

TEST_F(ExperimentTest, AnUnfinishedOneIsPausedAndStopsWhenAsked) {
  const ExperimentFolder folder = made();
  const auto search = make_search("sha", sample_experiment().options);
  {
    JournalFile file(folder);
    const Job first = *search->next();
    file.append(first);
    file.append(Result{.trial = first.trial, .step = first.until, .value = 2});
    file.append(*search->next());
  }
  Overview overview = overview_of(folder);
  EXPECT_EQ(overview.state, ExperimentState::kPaused);
  EXPECT_EQ(overview.trials[0].state, TrialState::kPaused);
  EXPECT_EQ(overview.trials[1].state, TrialState::kQueued);
  const std::vector<int> running{1};
  EXPECT_EQ(overview_of(folder, &running).trials[1].state, TrialState::kRunning);
  folder.want(Wanted::kStopped);
  overview = overview_of(folder);
  EXPECT_EQ(overview.state, ExperimentState::kStopped);
  EXPECT_EQ(overview.trials[0].state, TrialState::kStopped);
}

}  // namespace
}  // namespace trireme::experiment
