#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/cli/run.h"
#include "trireme/base/data_files.h"

namespace trireme::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string tiny_recipe() { return (data_folders().front() / "tiny.toml").string(); }

Outcome dry(std::vector<std::string> words) {
  std::vector<std::string> all = {"launch", tiny_recipe()};
  all.insert(all.end(), words.begin(), words.end());
  all.emplace_back("--dry-run");
  return run(all);
}

TEST(Launch, DryRunPrintsTheBatchScriptAndNothingElse) {
  const Outcome outcome = dry({"--slurm", "--ranks", "4", "--nodes", "2", "--time", "4h", "--set", "train.steps=40"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(outcome.out.starts_with("#!/bin/bash\n#SBATCH --job-name=tiny\n")) << outcome.out;
  EXPECT_THAT(outcome.out, HasSubstr("#SBATCH --ntasks-per-node=2\n"));
  EXPECT_THAT(outcome.out, HasSubstr("--set train.steps=40 --out runs/tiny\n"));
}

TEST(Launch, SecretsAreNoPartOfACommand) {
  ::setenv("TRIREME_TOKEN", "a secret of many letters", 1);
  ::setenv("TRIREME_TOKEN_FILE", "/shared/token", 1);
  const Outcome outcome = dry({"--hosts", "node1,node2", "--ranks", "2"});
  ::unsetenv("TRIREME_TOKEN");
  ::unsetenv("TRIREME_TOKEN_FILE");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out + outcome.err, Not(HasSubstr("a secret of many letters")));
  EXPECT_THAT(outcome.out, HasSubstr("TRIREME_TOKEN_FILE=/shared/token"));
}

TEST(Launch, RefusesALayoutThatDoesNotFitTheRanks) {
  const Outcome outcome = dry({"--slurm", "--ranks", "7", "--set", "layout.tp=2"});
  EXPECT_EQ(outcome.code, kExitUsage);
  EXPECT_THAT(outcome.err, HasSubstr("7"));
  EXPECT_EQ(outcome.out, "") << "nothing would be submitted";
}

TEST(Launch, RefusesWhatDoesNotFitIntoMemoryAndNamesIt) {
  const std::string model = (data_folders().front() / "models" / "gpt3-175b.toml").string();
  const std::vector<std::string> words = {"launch",
                                          model,
                                          "--slurm",
                                          "--cluster",
                                          "dgx-h100",
                                          "--set",
                                          "run.device=cuda",
                                          "--set",
                                          "data.synthetic.kind=markov",
                                          "--set",
                                          "data.synthetic.vocab_size=16",
                                          "--set",
                                          "train.steps=10",
                                          "--dry-run"};
  std::vector<std::string> one = words;
  one.insert(one.end(), {"--nodes", "1"});
  const Outcome refused = run(one);
  EXPECT_EQ(refused.code, kExitUsage) << refused.out;
  EXPECT_THAT(refused.err, HasSubstr("but a device has 80.0")) << refused.err;
}

TEST(Launch, RefusesMoreRanksANodeThanItHasDevices) {
  const Outcome outcome = dry({"--slurm", "--cluster", "dgx-h100", "--ranks", "16", "--ranks-per-node", "16"});
  EXPECT_EQ(outcome.code, kExitUsage);
  EXPECT_THAT(outcome.err,
              HasSubstr("16 ranks need a device each, but a node of dgx-h100 has 8 -> --ranks-per-node 8"));
  const Outcome fixed = dry({"--slurm", "--cluster", "dgx-h100", "--ranks", "16", "--ranks-per-node", "8"});
  EXPECT_EQ(fixed.code, 0) << fixed.err;
  EXPECT_THAT(fixed.out, HasSubstr("#SBATCH --nodes=2\n"));
}

TEST(Launch, AsksThePlannerForTheFewestNodesWhereNothingSays) {
  const Outcome outcome = dry({"--slurm", "--cluster", "dgx-h100"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("#SBATCH --nodes=1\n#SBATCH --ntasks=1\n"));
}

TEST(Launch, SweepsEveryCombinationAndChecksEach) {
  const Outcome outcome =
      dry({"--slurm", "--sweep", "optim.learning_rate=1e-3,3e-3", "--sweep", "run.seed=1,2", "--out", "runs/s"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("#SBATCH --array=0-3\n"));
  EXPECT_THAT(
      outcome.out,
      HasSubstr("  2) run=runs/s/2; set -- \"$@\" --set optim.learning_rate=3e-3 --set run.seed=1 --out runs/s/2 ;;"));
  const Outcome wrong = dry({"--slurm", "--sweep", "optim.beta1=0.9,2"});
  EXPECT_EQ(wrong.code, kExitUsage);
  EXPECT_THAT(wrong.err, HasSubstr("optim.beta1"));
  EXPECT_EQ(dry({"--hosts", "a", "--sweep", "run.seed=1,2"}).code, kExitUsage);
}

TEST(Launch, WantsExactlyOneLauncherAndItsOwnSettings) {
  EXPECT_THAT(dry({}).err, HasSubstr("add one of --slurm, --jobset, --hosts and --node-rank"));
  EXPECT_THAT(dry({"--slurm", "--hosts", "a"}).err, HasSubstr("--slurm and --hosts both say who starts the ranks"));
  EXPECT_THAT(dry({"--slurm", "--image", "x"}).err, HasSubstr("--image means nothing with --slurm"));
}

TEST(Launch, HostsSayHowManyRanks) {
  const Outcome outcome = dry({"--hosts", "a:2,[fd00::7]:2", "--env", "GREETING=good day"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("# rank 3 on fd00::7\nssh "));
  EXPECT_THAT(outcome.out, HasSubstr("WORLD_SIZE=4"));
  EXPECT_THAT(dry({"--hosts", "a:2", "--ranks", "4"}).err, HasSubstr("there is room for 2 ranks, but the run has 4"));
  EXPECT_THAT(dry({"--hosts", "a", "--env", "NO_SUCH_VARIABLE_HERE"}).err, HasSubstr("NO_SUCH_VARIABLE_HERE"));
  EXPECT_THAT(dry({"--hosts", "a", "--env", "1x=2"}).err, HasSubstr("no name of a variable"));
}

/// A program in place of trireme shows what a rank is started with.
TEST(Launch, ReallyStartsTheRanksOfThisNode) {
  const auto folder = std::filesystem::temp_directory_path() / fmt::format("trireme-launch-cli-{}", ::getpid());
  std::filesystem::create_directories(folder);
  const auto program = folder / "program";
  std::ofstream(program) << "#!/bin/sh\necho \"$RANK of $WORLD_SIZE: $*\" >" << (folder / "said").string()
                         << ".$RANK\n";
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  const Outcome outcome =
      run({"launch", tiny_recipe(), "--node-rank", "0", "--ranks", "2", "--program", program.string()});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  std::ifstream said(folder / "said.1");
  std::string line;
  std::getline(said, line);
  EXPECT_THAT(line, HasSubstr("1 of 2: train " + tiny_recipe()));
  EXPECT_THAT(line, HasSubstr("--out runs/tiny"));
  std::ofstream(program) << "#!/bin/sh\n[ $RANK = 0 ] || exit 5\n";
  EXPECT_EQ(run({"launch", tiny_recipe(), "--node-rank", "0", "--ranks", "2", "--program", program.string()}).code,
            kExitFailed);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace trireme::cli
