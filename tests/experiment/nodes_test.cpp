// Trials on nodes of a Slurm allocation: a stand-in for srun notes who is started where, and runs it here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include "tests/errors.h"
#include "tests/experiment/trainer.h"
#include "trireme/base/env.h"
#include "trireme/base/log.h"
#include "trireme/experiment/sweep.h"
#include "trireme/experiment/trial_run.h"

namespace trireme::experiment {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class NodesTest : public OwnFolder {
 protected:
  NodesTest() {
    divert_log([](std::string_view) {});
    // In place of `trireme`: `supervise` runs what follows its --, `train` is the trainer of the other tests.
    write_script("program", R"sh(
if [ "$1" = supervise ]; then
  while [ "$1" != -- ]; do shift; done
  shift
  exec "$@"
fi
exec $here/trainer -- program "$@")sh");
    write_trainer(folder_, "0.002");
    // More tasks on a node than it has slots would be seen in the names of files there.
    write_script("srun", R"sh(
for word; do
  case $word in --nodelist=*) nodes=${word#*=} ;; --ntasks=*) tasks=${word#*=} ;; --mpi=*) mpi=${word#*=} ;; esac
done
while [[ $1 == --* ]]; do shift; done
each=$((tasks / $(tr ',' '\n' <<<$nodes | wc -l)))
for node in ${nodes//,/ }; do
  mkdir -p $here/busy/$node
  for i in $(seq $each); do touch $here/busy/$node/$$.$i; done
  echo "$node $(ls $here/busy/$node | wc -l)" >>$here/most
done
echo "$nodes $tasks $mpi" >>$here/steps
"$@"
status=$?
rm -f $here/busy/*/$$.*
exit $status)sh");
    path_ = *env_by_name("PATH");
    ::setenv("PATH", (folder_.string() + ":" + path_).c_str(), 1);
  }
  ~NodesTest() override {
    ::setenv("PATH", path_.c_str(), 1);
    divert_log(nullptr);
  }

  void write_script(const std::string& name, const std::string& text) const {
    write_all(folder_ / name, "#!/bin/bash\nhere=" + folder_.string() + text + "\n");
    fs::permissions(folder_ / name, fs::perms::owner_all);
  }
  ExperimentFolder make(const std::string& search, int trials, int slots_per_trial) const {
    const ExperimentFolder folder(folder_ / "sweep");
    folder.create({.name = "sweep",
                   .search = search,
                   .options = {.space = parse_space(std::vector<std::string>{"optim.learning_rate=log(1e-4,1e-1)"}),
                               .seed = 11,
                               .trials = trials,
                               .max_steps = 16},
                   .sets = {},
                   .directory = folder_,
                   .slots_per_trial = slots_per_trial},
                  read_all(fs::path(TRIREME_RECIPES) / "tiny.toml"));
    return folder;
  }
  SweepOptions options(const ExperimentFolder& folder, std::vector<launch::Allocation::Node> nodes) const {
    return {.experiments = {folder.path()},
            .allocation = {.nodes = std::move(nodes)},
            .program = {.program = (folder_ / "program").string()},
            .look = std::chrono::milliseconds(5)};
  }
  std::set<std::string> lines(const std::string& file) const {
    std::istringstream text(read_all(folder_ / file));
    std::set<std::string> all;
    for (std::string line; std::getline(text, line);) all.insert(line);
    return all;
  }

  std::string path_;
};

TEST_F(NodesTest, TrialsAreStepsOnNodesThatHaveASlotForThem) {
  const ExperimentFolder folder = make("random", 10, 1);
  const SweepEnd end = run_sweeps(options(folder, {{.name = "n1", .slots = 2, .cores = 2}, {.name = "n2"}}));
  EXPECT_EQ(end.overviews.at(0).state, ExperimentState::kDone);
  EXPECT_EQ(end.overviews[0].trials.size(), 10U);
  EXPECT_EQ(lines("steps"), (std::set<std::string>{"n1 1 none", "n2 1 none"})) << "both nodes, one task each";
  for (const std::string& most : lines("most")) EXPECT_THAT(most, ::testing::AnyOf("n1 1", "n1 2", "n2 1"));
}

TEST_F(NodesTest, AGangWiderThanANodeHasATaskForEachRankOnWholeNodes) {
  const ExperimentFolder folder = make("asha", 3, 4);
  const SweepEnd end =
      run_sweeps(options(folder, {{.name = "n1", .slots = 2, .cores = 4}, {.name = "n2", .slots = 2, .cores = 4}}));
  EXPECT_EQ(end.overviews.at(0).state, ExperimentState::kDone);
  EXPECT_THAT(lines("steps"), ElementsAre("n1,n2 4 pmix"));
  EXPECT_EQ(lines("most"), (std::set<std::string>{"n1 2", "n2 2"}));
}

TEST_F(NodesTest, ASweepOnNodesIsTheOneOnThisMachine) {
  const ExperimentFolder folder = make("asha", 6, 1);
  const SweepEnd nodes = run_sweeps(options(folder, {{.name = "n1"}}));
  ASSERT_TRUE(nodes.overviews[0].best);
  const Best best = *nodes.overviews[0].best;
  fs::rename(folder.path(), folder_ / "on-nodes");
  const SweepEnd here = run_sweeps(options(make("asha", 6, 1), {}));
  ASSERT_TRUE(here.overviews[0].best);
  EXPECT_EQ(here.overviews[0].best->trial, best.trial);
  EXPECT_EQ(here.overviews[0].best->value, best.value);
}

TEST_F(NodesTest, ATrialKnowsItsPartOfANode) {
  const ExperimentFolder folder = make("random", 1, 2);
  const Job job{.trial = 0, .until = 4, .setting = {{"optim.learning_rate", "0.001"}}};
  const TrialPlace part{.nodes = {{.name = "n7", .slots = 2, .cores = 8, .megabytes = 500}}};
  const auto words = trial_command(folder, folder.read(), job, {.threads = 4}, part).words;
  for (const char* word : {"--nodelist=n7", "--ntasks=1", "--cpus-per-task=8", "--mem=500M", "--mpi=none",
                           "comm.transport=threads", "--ranks", "train.threads=4"}) {
    EXPECT_THAT(words, Contains(word));
  }
  const TrialPlace two{.nodes = {{.name = "a", .cores = 4}, {.name = "b", .cores = 4}}, .mpi = "pmix_v4"};
  const auto wide = trial_command(folder, folder.read(), job, {.threads = 4}, two).words;
  for (const char* word : {"--nodelist=a,b", "--ntasks=2", "--cpus-per-task=4", "--mpi=pmix_v4"})
    EXPECT_THAT(wide, Contains(word));
  EXPECT_THAT(wide, Not(Contains("comm.transport=threads"))) << "srun's tasks are the ranks";
}

TEST_F(NodesTest, TrialsOnGpusHaveOneForEachSlot) {
  const ExperimentFolder folder = make("random", 1, 2);
  const Job job{.trial = 0, .until = 4, .setting = {{"optim.learning_rate", "0.001"}}};
  Experiment experiment = folder.read();
  const TrialPlace here{.slots = {1, 2}};
  EXPECT_THAT(trial_command(folder, experiment, job, {}, here).words, Not(Contains("env"))) << "on the CPU";
  experiment.sets = {"run.device=cuda"};
  ::setenv("CUDA_VISIBLE_DEVICES", "4,5,7", 1);
  const auto words = trial_command(folder, experiment, job, {}, here).words;
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  ASSERT_GT(words.size(), 2U);
  EXPECT_EQ(words[0], "env");
  EXPECT_EQ(words[1], "CUDA_VISIBLE_DEVICES=5,7");
  EXPECT_EQ(devices_of_slots({0, 3}, std::nullopt), "0,3");
  EXPECT_THAT(words_of([] { devices_of_slots({2}, "GPU-a,GPU-b"); }),
              AllOf(HasSubstr("slot 2"), HasSubstr("--slots 2")));
  const TrialPlace part{.nodes = {{.name = "n7", .slots = 2, .cores = 8}}};
  EXPECT_THAT(trial_command(folder, experiment, job, {}, part).words, Contains("--gpus-per-task=2"));
}

TEST_F(NodesTest, ASlotWithoutAGpuIsRefusedBeforeAnythingTrains) {
  const ExperimentFolder folder = make("random", 1, 2);
  const auto check = [&](const std::string& device, int slots, const GpusHere& gpus) {
    check_gpus_of_slots(folder.recipe(), {"run.device=" + device}, slots, gpus);
  };
  EXPECT_THAT(words_of([&] { check("cuda", 2, {.visible = "0"}); }),
              AllOf(HasSubstr("slot 1 has no GPU"), HasSubstr("--slots 1")));
  EXPECT_THAT(words_of([&] { check("cuda", 3, {.count = 2}); }),
              AllOf(HasSubstr("slot 2 has no GPU: this machine has 2 GPUs"), HasSubstr("--slots 2")));
  EXPECT_NO_THROW(check("cuda", 2, {.visible = "0,0"})) << "two slots may share one";
  EXPECT_NO_THROW(check("cuda", 2, {.count = 2}));
  EXPECT_NO_THROW(check("cuda", 2, {})) << "not known: the trials will tell";
  EXPECT_NO_THROW(check("cpu", 9, {.visible = "0", .count = 1}));
}

}  // namespace
}  // namespace trireme::experiment
