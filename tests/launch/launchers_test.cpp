#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/launch/jobs.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/launch/host_list.h"
#include "trireme/launch/processes.h"
#include "trireme/launch/quote.h"

namespace trireme::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

const Launcher& launcher(std::string_view name) {
  const Launcher* found = find_launcher(name);
  EXPECT_NE(found, nullptr) << name;
  return *found;
}

std::string text_with(std::string_view name, const Job& job, const std::map<std::string, std::string>& given = {}) {
  return to_text(launcher(name).prepare(job, Settings(launcher(name), given)));
}

/// What each launcher needs to have no problem with small_job().
std::map<std::string, std::string> enough_for(const std::string& name) {
  if (name == "hosts") return {{"hosts", "a:2,b:2"}};
  if (name == "node-rank") return {{"node-rank", "1"}, {"master-addr", "10.0.0.1"}};
  if (name == "jobset") {
    return {{"image", "registry/trireme:1"}, {"claim", "runs"}, {"mount", "/runs"}, {"token-secret", "token"}};
  }
  return {};
}

TEST(Launchers, AllDescribeThemselvesAndTakeAJob) {
  std::set<std::string> names;
  for (const auto& one : launchers()) {
    EXPECT_TRUE(names.insert(one->name()).second);
    EXPECT_FALSE(one->meaning().empty());
    for (const Setting& setting : one->settings()) EXPECT_FALSE(setting.meaning.empty()) << setting.name;
    Job job = small_job();
    job.out = "/runs/tiny";
    const Settings settings(*one, enough_for(one->name()));
    EXPECT_TRUE(one->find_problems(job, settings).empty()) << one->name();
    const Submission submission = one->prepare(job, settings);
    EXPECT_NE(submission.text.empty(), submission.processes.empty()) << "a text or processes";
    EXPECT_EQ(submission.command.empty(), submission.text.empty());
    EXPECT_EQ(to_text(submission), to_text(one->prepare(job, settings))) << "the same job is the same text";
  }
  EXPECT_EQ(find_launcher("pbs"), nullptr);
}

/// Whatever a user calls things, scripts stay scripts of the same commands.
TEST(Launchers, OddNamesAreQuoted) {
  Job job = small_job();
  job.name = "o'brien's \"run\" $(touch /tmp/oops)";
  job.recipe = "my recipes/it's $HOME.toml";
  job.out = "/runs/a b'c\"d`e";
  job.folder = "/tmp";
  job.sets = {"run.name=x; rm -rf y"};
  job.environment = {{"A", "1\n2"}, {"B", "'"}};
  for (const auto& one : launchers()) {
    const Submission submission = one->prepare(job, Settings(*one, enough_for(one->name())));
    for (const Process& process : submission.processes) {
      // The words of the command that a shell would start, in place of starting it.
      const std::string script = process.words.back();
      int status = 0;
      run_sh(fmt::format("sh -n -c {}", sh_word(script)), "sh", &status);
      EXPECT_EQ(status, 0) << script;
    }
    if (one->name() != "slurm") continue;
    int status = 0;
    const Folder folder;
    std::ofstream(folder.path() / "job") << submission.text;
    EXPECT_EQ(run_sh(fmt::format("bash -n {}", (folder.path() / "job").string()), "sh", &status), "");
    EXPECT_EQ(status, 0);
  }
}

TEST(Slurm, AsksForNodesASignalAndARequeue) {
  Job job = small_job();
  job.gpus = true;
  job.cores_per_rank = 7;
  const std::string text = text_with(
      "slurm", job, {{"partition", "gpu"}, {"time", "1d2h"}, {"signal", "180s"}, {"sbatch", "constraint=h100"}});
  for (const char* line :
       {"#!/bin/bash\n#SBATCH --job-name=tiny\n", "#SBATCH --nodes=2\n", "#SBATCH --ntasks=4\n",
        "#SBATCH --ntasks-per-node=2\n", "#SBATCH --cpus-per-task=7\n", "#SBATCH --gpus-per-node=2\n",
        "#SBATCH --partition=gpu\n", "#SBATCH --constraint=h100\n", "#SBATCH --time=1-02:00:00\n",
        "#SBATCH --requeue\n", "#SBATCH --signal=B:USR1@180\n", "#SBATCH --open-mode=append\n",
        "#SBATCH --output=/home/me/work/runs/tiny/slurm-%j.out\n", "cd /home/me/work || exit 2\n",
        "set -- /opt/trireme/bin/trireme train recipes/tiny.toml --set train.steps=40 --out runs/tiny\n",
        "srun --mpi=pmix", "[ \"$restarts\" -eq 0 ] || set -- \"$@\" --resume\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  EXPECT_THAT(text, Not(HasSubstr("--account")));
}

TEST(Slurm, ASweepIsAnArray) {
  Job job = small_job();
  job.sweep = {{.sets = {"optim.learning_rate=1e-3"}, .out = "runs/tiny/0"},
               {.sets = {"optim.learning_rate=3e-3"}, .out = "runs/tiny/1"}};
  const std::string text = text_with("slurm", job);
  EXPECT_THAT(text, HasSubstr("#SBATCH --array=0-1\n"));
  EXPECT_THAT(text, HasSubstr("/slurm-%A_%a.out\n"));
  EXPECT_THAT(text,
              HasSubstr("  1) run=runs/tiny/1; set -- \"$@\" --set optim.learning_rate=3e-3 --out runs/tiny/1 ;;\n"));
}

TEST(Slurm, ASignalThatIsShorterThanSavingIsRefused) {
  Job job = small_job();
  job.grace_seconds = 300;
  const Launcher& slurm = launcher("slurm");
  const auto problems = slurm.find_problems(job, Settings(slurm, {}));
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].key, "--signal");
  EXPECT_TRUE(slurm.find_problems(job, Settings(slurm, {{"signal", "360s"}})).empty()) << "the hint works";
  EXPECT_THROW(slurm.find_problems(job, Settings(slurm, {{"signal", "soon"}})), ConfigError);
}

TEST(Slurm, RanksOfSeveralNodesWithoutMpiNeedAToken) {
  Job job = small_job();
  const Launcher& slurm = launcher("slurm");
  const Settings without_mpi(slurm, {{"mpi", "none"}});
  const auto problems = slurm.find_problems(job, without_mpi);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].key, "--mpi");
  EXPECT_TRUE(slurm.find_problems(job, Settings(slurm, {})).empty()) << "one of the hints";
  job.environment = {{"TRIREME_TOKEN_FILE", "/home/me/work/token"}};
  EXPECT_TRUE(slurm.find_problems(job, without_mpi).empty()) << "the other";
  job.environment = {};
  job.nodes = 1, job.ranks_per_node = 4;
  EXPECT_TRUE(slurm.find_problems(job, without_mpi).empty()) << "processes of one user on one node";
}

/// The script itself, with Slurm's commands played by others: signalled, it lets the run save and asks to be requeued;
/// started again, it resumes.
TEST(Slurm, TheScriptSavesRequeuesAndResumes) {
  const Folder folder;
  Job job = small_job();
  job.ranks = job.nodes = job.ranks_per_node = 1;
  job.folder = folder.path();
  job.out = "run with 'quotes'";
  job.program = folder.script("trireme",
                              "echo \"words: $*\"; run='run with '\\''quotes'\\'\n"
                              "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do\n"
                              "  [ -e \"$run/stop\" ] && { echo saved; exit 130; }; sleep 0.2\n"
                              "done\n");
  folder.script("scontrol", "echo \"scontrol $*\"\n");
  folder.script("squeue", "date +%Y-%m-%dT%H:%M:%S\n");
  std::ofstream(folder.path() / "job") << text_with("slurm", job);
  const std::string start =
      fmt::format("cd {0}; export PATH={0}:$PATH SLURM_JOB_ID=12 SLURM_JOB_NODELIST=n1\n", folder.path().string());
  int status = 0;
  const std::string first = run_sh(start + "bash ./job & p=$!; sleep 1.5; kill -USR1 $p; wait $p", "bash", &status);
  EXPECT_EQ(status, 130) << first;
  EXPECT_THAT(first, HasSubstr("saved\n"));
  EXPECT_THAT(first, HasSubstr("scontrol requeue 12\n"));
  EXPECT_THAT(first, Not(HasSubstr("--resume")));
  EXPECT_THAT(first, HasSubstr("restart 0, "));
  const std::string second = run_sh(start + "SLURM_RESTART_COUNT=1 bash ./job", "bash", &status);
  EXPECT_EQ(status, 0) << second;
  EXPECT_THAT(second, HasSubstr("--out run with 'quotes' --resume\n"));
  EXPECT_THAT(second, Not(HasSubstr("requeue"))) << "it has finished";
}

TEST(JobSet, IsOnePodANodeThatStartsItsRanks) {
  Job job = small_job();
  job.name = "My Run";
  job.out = "/runs/tiny";
  job.program = "trireme";
  job.gpus = true;
  job.environment = {{"NCCL_DEBUG", "INFO"}};
  const std::string text = text_with("jobset", job, enough_for("jobset"));
  for (const char* line :
       {"apiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\n", "  name: \"my-run\"\n", "completions: 2\n",
        "parallelism: 2\n", "image: \"registry/trireme:1\"\n", "\"nvidia.com/gpu\": \"2\"\n",
        "- name: \"NCCL_DEBUG\"\n                value: \"INFO\"\n", "--master-addr my-run-nodes-0-0.my-run",
        "--resume --ranks 4 --nodes 2 --ranks-per-node 2", "--node-rank \\\"$JOB_COMPLETION_INDEX\\\""}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(JobSet, NeedsAnImageAndAVolumeForTheRun) {
  const Launcher& jobset = launcher("jobset");
  Job job = small_job();
  EXPECT_EQ(jobset.find_problems(job, Settings(jobset, {})).size(), 3u);
  const auto problems = jobset.find_problems(job, Settings(jobset, enough_for("jobset")));
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].hint, "--out /runs/tiny");
  job.out = "/runs/tiny";
  EXPECT_TRUE(jobset.find_problems(job, Settings(jobset, enough_for("jobset"))).empty());
  job.out = "/runs/../tiny";
  EXPECT_EQ(jobset.find_problems(job, Settings(jobset, enough_for("jobset"))).size(), 1u);
}

/// Ranks on several hosts without one are refused, and a path of this machine is nothing to a pod.
TEST(JobSet, PodsGetTheTokenFromASecretOrFromTheVolume) {
  const Launcher& jobset = launcher("jobset");
  Job job = small_job();
  job.out = "/runs/tiny";
  job.environment = {{"TRIREME_TOKEN_FILE", "/home/me/token"}};
  auto given = enough_for("jobset");
  const std::string with_secret = text_with("jobset", job, given);
  EXPECT_THAT(with_secret, HasSubstr("              env:\n              - name: TRIREME_TOKEN\n"
                                     "                valueFrom:\n                  secretKeyRef:\n"
                                     "                    name: \"token\"\n                    key: token\n"));
  EXPECT_THAT(with_secret, Not(HasSubstr("/home/me/token")));

  given.erase("token-secret");
  const auto problems = jobset.find_problems(job, Settings(jobset, given));
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].key, "--token-secret");
  EXPECT_THAT(problems[0].hint, HasSubstr("--token-secret trireme-token"));
  job.environment = {{"TRIREME_TOKEN_FILE", "/runs/secret/token"}};
  EXPECT_TRUE(jobset.find_problems(job, Settings(jobset, given)).empty()) << "it lies on the volume";
  EXPECT_THAT(text_with("jobset", job, given),
              HasSubstr("- name: \"TRIREME_TOKEN_FILE\"\n                value: \"/runs/secret/token\"\n"));
  job.environment = {};
  job.nodes = 1, job.ranks_per_node = 4;
  EXPECT_TRUE(jobset.find_problems(job, Settings(jobset, given)).empty()) << "ranks of one pod need none";
}

TEST(HostList, IsReadAsPeopleWriteIt) {
  EXPECT_THAT(parse_hosts("a:4,me@b"), ElementsAre(Host{.user = "", .address = "a", .slots = 4},
                                                   Host{.user = "me", .address = "b", .slots = {}}));
  EXPECT_THAT(parse_hosts("n[08-10]:2"), ElementsAre(Host{.user = "", .address = "n08", .slots = 2},
                                                     Host{.user = "", .address = "n09", .slots = 2},
                                                     Host{.user = "", .address = "n10", .slots = 2}));
  EXPECT_THAT(parse_hosts("[fd00::7]:2,fe80::1%eth0,me@[::1]"),
              ElementsAre(Host{.user = "", .address = "fd00::7", .slots = 2},
                          Host{.user = "", .address = "fe80::1%eth0", .slots = {}},
                          Host{.user = "me", .address = "::1", .slots = {}}));
  EXPECT_EQ(parse_hosts("me@[::1]:3")[0].login(), "me@::1");
  for (const char* bad :
       {"", "a,,b", "a:0", "a:x", "a,a", "[x]:2", "[::1", "[::1]2", "-oProxyCommand=x", "a b", ":4", "n[3-1]", "me@"}) {
    EXPECT_THROW(parse_hosts(bad), ConfigError) << bad;
  }
}

TEST(Hosts, GetRanksInTheirOrderWithTorchrunsVariables) {
  Job job = small_job();
  job.ranks = 3;
  const Submission submission =
      launcher("hosts").prepare(job, Settings(launcher("hosts"), {{"hosts", "me@a:2,[fd00::7]:2"}}));
  ASSERT_EQ(submission.processes.size(), 3u);
  const Process& last = submission.processes[2];
  EXPECT_EQ(last.name, "rank 2 on fd00::7");
  EXPECT_EQ(last.prefix, "[rank 2] ");
  EXPECT_EQ(last.words[0], "ssh");
  EXPECT_EQ(last.words[last.words.size() - 2], "fd00::7");
  for (const char* variable : {"RANK=2", "LOCAL_RANK=0", "WORLD_SIZE=3", "LOCAL_WORLD_SIZE=1", "GROUP_RANK=1",
                               "MASTER_ADDR=a", "MASTER_PORT=29500"}) {
    EXPECT_THAT(last.words.back(), HasSubstr(variable));
  }
}

TEST(Hosts, WithoutRoomForAllRanksIsRefused) {
  const Launcher& hosts = launcher("hosts");
  const Job job = small_job();
  const auto reason = [&](const char* list) {
    const auto problems = hosts.find_problems(job, Settings(hosts, {{"hosts", list}}));
    return problems.empty() ? std::string() : problems[0].reason;
  };
  EXPECT_EQ(reason("a:2,b:2"), "");
  EXPECT_EQ(reason("a,b"), "");
  EXPECT_EQ(reason("a:2,b:1"), "there is room for 3 ranks, but the run has 4");
  EXPECT_EQ(reason("a,b,c"), "3 hosts do not divide 4 ranks");
  EXPECT_EQ(reason("a:2,b"), "some hosts say how many ranks they take, others do not");
}

/// Through a stand-in for ssh that does what sshd does: gives the joined words to a shell.
TEST(Hosts, RunTheirRanksThroughWhatReachesThem) {
  const Folder folder;
  Job job = small_job();
  job.folder = folder.path();
  job.ranks = 2;
  job.out = "it's a run";
  job.environment = {{"WITH_SPACES", "a  b'c"}};
  job.program = folder.script("trireme", "echo \"$RANK/$WORLD_SIZE $MASTER_ADDR [$WITH_SPACES] $*\" >>said.$RANK\n");
  const std::string ssh = folder.script("ssh", "host=$1; shift; echo \"$host\" >>hosts; exec sh -c \"$*\"\n");
  std::filesystem::current_path(folder.path());
  const Submission submission = launcher("hosts").prepare(
      job, Settings(launcher("hosts"), {{"hosts", "a,b"}, {"ssh", ssh}, {"master-addr", "10.0.0.1"}}));
  EXPECT_EQ(run_processes(submission.processes), 0);
  std::filesystem::current_path("/");
  EXPECT_EQ(run_sh(fmt::format("sort {}/hosts", folder.path().string())), "a\nb\n");
  EXPECT_EQ(run_sh(fmt::format("cat {}/said.1", folder.path().string())),
            "1/2 10.0.0.1 [a  b'c] train recipes/tiny.toml --set train.steps=40 --out it's a run\n");
}

TEST(Node, StartsItsOwnRanksOnly) {
  Job job = small_job();
  job.ranks = 5, job.nodes = 3;
  const Launcher& node = launcher("node-rank");
  const auto of = [&](const char* number) {
    return node.prepare(job, Settings(node, {{"node-rank", number}, {"master-addr", "h"}})).processes;
  };
  EXPECT_EQ(of("0").size(), 2u);
  ASSERT_EQ(of("2").size(), 1u);
  EXPECT_EQ(of("2")[0].name, "rank 4 on node 2");
  EXPECT_THAT(of("1")[1].words.back(), HasSubstr("RANK=3 LOCAL_RANK=1 WORLD_SIZE=5 LOCAL_WORLD_SIZE=2 GROUP_RANK=1"));
  EXPECT_EQ(node.find_problems(job, Settings(node, {{"node-rank", "3"}, {"master-addr", "h"}})).size(), 1u);
  EXPECT_EQ(node.find_problems(job, Settings(node, {{"node-rank", "0"}})).size(), 1u) << "localhost of several nodes";
}

}  // namespace
}  // namespace trireme::launch
