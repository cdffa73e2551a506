#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "tests/cli/run.h"
#include "trireme/base/data_files.h"

namespace trireme::cli {
namespace {

using ::testing::HasSubstr;

std::string fixture(const std::string& name) {
  return (data_folders().front().parent_path() / "tests" / "fixtures" / "topology" / name).string();
}

TEST(Cluster, ShowsANodeAndThePathBetweenTwoDevices) {
  const Outcome outcome = run({"cluster", "show", "dgx-1v"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("dgx-1v: 128 x v100, 8 a node"));
  const Outcome pair = run({"cluster", "show", "superpod-h100", "--pair", "1,17"});
  EXPECT_EQ(pair.out, "GPU 1 and 17: one rail: 1 switch, 50 GB/s\n");
  EXPECT_EQ(run({"cluster", "show", "superpod-h100", "--pair", "1,256"}).code, kExitUsage);
}

TEST(Cluster, ImportWritesAFileThatOtherCommandsTake) {
  const auto file = std::filesystem::temp_directory_path() / fmt::format("trireme-cluster-{}.toml", ::getpid());
  const Outcome outcome =
      run({"cluster", "import", "--nvidia-smi", fixture("h100-8.txt"), "--device", "h100", "--network", "ndr",
           "--slurm-topology", fixture("topology.conf"), "--name", "mine", "-o", file.string()});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Outcome shown = run({"cluster", "show", file.string()});
  EXPECT_THAT(shown.out, HasSubstr("mine: 512 x h100, 8 a node"));
  const Outcome estimate = run({"launch", (data_folders().front() / "tiny.toml").string(), "--slurm", "--cluster",
                                file.string(), "--nodes", "2", "--dry-run"});
  EXPECT_EQ(estimate.code, 0) << estimate.err;
  EXPECT_THAT(estimate.out, HasSubstr("#SBATCH --ntasks=16\n"));
  std::filesystem::remove(file);
  EXPECT_THAT(
      run({"cluster", "import", "--nvidia-smi", fixture("h100-8.txt"), "--device", "h100", "--network", "ndx"}).err,
      HasSubstr("did you mean \"ndr\"?"));
  EXPECT_EQ(run({"cluster", "import", "--nccl", "no-such-file"}).code, kExitUsage);
}

TEST(Cluster, LinkSimulatesBesideTheFormulas) {
  const Outcome outcome = run({"cluster", "link", "--rate", "ndr", "--propagation-us", "2", "--blocks", "520"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("line rate      400 Gbit/s of 425 on the wire"));
  EXPECT_THAT(outcome.out, HasSubstr("8 packets in the receiver's 520 blocks"));
  EXPECT_THAT(outcome.out, HasSubstr("20000 delivered, 20000 sent, 0 lost"));
  EXPECT_EQ(run({"cluster", "link", "--blocks", "3"}).code, kExitUsage);
}

}  // namespace
}  // namespace trireme::cli
