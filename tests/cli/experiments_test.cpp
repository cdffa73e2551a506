// trireme sweep and trireme experiments, as far as nothing is trained: tests/program/sweep.sh trains.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/run.h"
#include "tests/files.h"
#include "trireme/experiment/experiment.h"

namespace trireme::cli {
namespace {

using experiment::Experiment;
using experiment::ExperimentFolder;
using ::testing::HasSubstr;

class ExperimentsCommand : public OwnFolder {
 protected:
  ExperimentsCommand() : path_((folder_ / "lr").string()) {}

  /// An experiment of one trial that was evaluated at its first rung.
  void make() const {
    const ExperimentFolder folder(path_);
    const Experiment made{
        .name = "lr",
        .options = {.space = experiment::parse_space(std::vector<std::string>{"optim.learning_rate=log(1e-4,1e-1)"}),
                    .trials = 4,
                    .max_steps = 16}};
    folder.create(made, "");
    const auto search = experiment::make_search("asha", made.options);
    experiment::JournalFile journal(folder);
    journal.append(*search->next());
    journal.append(experiment::Result{.trial = 0, .step = 1, .value = 2.5});
  }
  static Outcome sweep(const std::vector<std::string>& more) {
    std::vector<std::string> words{"sweep", TRIREME_RECIPES "/tiny.toml"};
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  }

  std::string path_;
};

TEST_F(ExperimentsCommand, ASweepNeedsParametersTheRecipeHas) {
  EXPECT_THAT(sweep({"--out", path_}).err, HasSubstr("--param 'optim.learning_rate=log(1e-4,1e-2)'"));
  const Outcome unknown = sweep({"--out", path_, "--param", "optim.learning_rat=log(1e-4,1e-2)"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("learning_rate"));
  EXPECT_THAT(sweep({"--out", path_, "--param", "optim.learning_rate=lgo(1,2)"}).err,
              HasSubstr("did you mean \"log\"?"));
  EXPECT_THAT(sweep({"--out", path_, "--search", "ahsa", "--param", "optim.learning_rate=log(1e-4,1e-2)"}).err,
              HasSubstr("did you mean \"asha\"?"));
  EXPECT_THAT(sweep({"--out", path_, "--search", "grid", "--param", "optim.learning_rate=log(1e-4,1e-2)"}).err,
              HasSubstr("optim.learning_rate=log(0.0001,0.01,4)"));
  EXPECT_FALSE(std::filesystem::exists(path_)) << "nothing is made for a sweep that is refused";
}

TEST_F(ExperimentsCommand, ASweepDoesNotWriteOverAnother) {
  make();
  EXPECT_THAT(sweep({"--out", path_, "--param", "optim.learning_rate=log(1e-4,1e-2)"}).err,
              HasSubstr("trireme experiments resume " + path_));
}

TEST_F(ExperimentsCommand, ShowsWhatItsFolderSays) {
  make();
  const Outcome shown = run({"experiments", "show", path_});
  EXPECT_EQ(shown.code, 0);
  EXPECT_THAT(shown.out, HasSubstr("lr: asha, paused: 1 trial begun"));
  EXPECT_THAT(run({"experiments", "best", path_}).out, HasSubstr("best: trial 0, validation loss 2.5000 at step 1"));
  EXPECT_THAT(run({"experiments", "export", path_}).out, HasSubstr("trial,draw,state,step,optim.learning_rate,loss@1"));
  EXPECT_THAT(run({"experiments", "show", folder_.string()}).err, HasSubstr("holds no experiment"));
}

TEST_F(ExperimentsCommand, PausesAndStopsWithoutAProcess) {
  make();
  EXPECT_THAT(run({"experiments", "stop", path_}).out, HasSubstr("stopped"));
  EXPECT_THAT(run({"experiments", "show", path_}).out,
              HasSubstr("lr: asha, stopped: 1 trial begun, 0 running, 1 evaluated"));
  EXPECT_THAT(run({"experiments", "pause", path_}).out, HasSubstr("paused"));
  EXPECT_EQ(ExperimentFolder(path_).wanted(), experiment::Wanted::kPaused);
}

TEST_F(ExperimentsCommand, SaysOfOneThatIsDoneThatItCannotBePaused) {
  const ExperimentFolder folder(path_);
  const Experiment done{
      .name = "lr",
      .search = "random",
      .options = {.space = experiment::parse_space(std::vector<std::string>{"optim.learning_rate=log(1e-4,1e-1)"}),
                  .trials = 1,
                  .max_steps = 16}};
  folder.create(done, "");
  {
    experiment::JournalFile journal(folder);
    journal.append(*experiment::make_search("random", done.options)->next());
    journal.append(experiment::Result{.trial = 0, .step = 16, .value = 2.5});
  }
  for (const char* what : {"pause", "stop"}) {
    EXPECT_THAT(run({"experiments", what, path_}).out, HasSubstr("it is done"));
    EXPECT_EQ(folder.wanted(), experiment::Wanted::kRunning) << what;
  }
}

TEST_F(ExperimentsCommand, ATrialThatWasStoppedBeforeItsFirstRungIsNotEvaluated) {
  const ExperimentFolder folder(path_);
  const Experiment made{
      .name = "lr",
      .options = {.space = experiment::parse_space(std::vector<std::string>{"optim.learning_rate=log(1e-4,1e-1)"}),
                  .trials = 4,
                  .max_steps = 16}};
  folder.create(made, "");
  experiment::JournalFile(folder).append(*experiment::make_search("asha", made.options)->next());
  run({"experiments", "stop", path_});
  EXPECT_THAT(run({"experiments", "show", path_}).out, HasSubstr("stopped: 1 trial begun, 0 running, 0 evaluated"));
}

TEST_F(ExperimentsCommand, ListsAStoreThatWasImported) {
  make();
  const std::string store = (folder_ / "some.db").string();
  EXPECT_THAT(run({"experiments", "list", "--store", store}).out, HasSubstr("there is no store"));
  EXPECT_THAT(run({"experiments", "import", path_, "--store", store}).out, HasSubstr("1 experiment in"));
  EXPECT_THAT(run({"experiments", "list", "--store", store}).out, HasSubstr("trial 0"));
}

}  // namespace
}  // namespace trireme::cli
