#include "trireme/observe/machine.h"

#include <gmock/gmock.h>

#include "tests/observe/run_folder.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/observe/peak_file.h"

namespace trireme::observe {
namespace {

using ::testing::HasSubstr;

class MachineFacts : public RunFolder {};

TEST_F(MachineFacts, AreThoseOfTheKernel) {
  const Machine machine = this_machine();
  EXPECT_GE(machine.cpus, 1);
  EXPECT_GE(machine.usable_cpus, 1);
  EXPECT_LE(machine.usable_cpus, machine.cpus);
  EXPECT_GT(machine.memory, std::uint64_t{1} << 28);
  EXPECT_LE(machine.memory_available, machine.memory);
  EXPECT_FALSE(machine.limits.empty());
  EXPECT_THAT(machine.system, ::testing::StartsWith("Linux"));
}

TEST_F(MachineFacts, SpaceIsThatOfTheNearestFolderThatExists) {
  const auto space = disk_space(folder_ / "not" / "yet");
  ASSERT_TRUE(space);
  EXPECT_EQ(space->folder, folder_);
  EXPECT_GT(space->total, 0U);
  EXPECT_TRUE(space->writable);
}

class PeakFile : public RunFolder {
 protected:
  std::filesystem::path path() const { return folder_ / "cache" / "peak.json"; }
};

TEST_F(PeakFile, KeepsOneFigureForEachPrecisionAndNumberOfThreads) {
  EXPECT_EQ(peak_flops("fp32", 2, path()), std::nullopt);
  keep_peak_flops("fp32", 2, 1.25e11, path());
  keep_peak_flops("bf16", 2, 5e11, path());
  keep_peak_flops("fp32", 4, 2e11, path());
  keep_peak_flops("fp32", 2, 1.5e11, path());
  EXPECT_EQ(peak_flops("fp32", 2, path()), 1.5e11);
  EXPECT_EQ(peak_flops("fp32", 4, path()), 2e11);
  EXPECT_EQ(peak_flops("bf16", 2, path()), 5e11);
  EXPECT_EQ(peak_flops("bf16", 4, path()), std::nullopt);
}

TEST_F(PeakFile, KnowsNothingOfAnotherProcessor) {
  write(path(), R"({"cpu":"abacus","flops":{"fp32":{"2":7}}})");
  EXPECT_EQ(peak_flops("fp32", 2, path()), std::nullopt);
  keep_peak_flops("bf16", 2, 5e11, path());
  EXPECT_THAT(read(path()), ::testing::Not(HasSubstr("fp32"))) << "another processor's figures are dropped";
}

TEST_F(PeakFile, TakesADamagedFileForNone) {
  std::string said;
  divert_log([&](std::string_view line) { said += line; });
  for (const char* text : {"", "[]", "{", R"({"cpu":1})", "null"}) {
    write(path(), text);
    EXPECT_EQ(peak_flops("fp32", 2, path()), std::nullopt) << text;
  }
  divert_log(nullptr);
  EXPECT_THAT(said, HasSubstr("measure again with trireme doctor"));
}

}  // namespace
}  // namespace trireme::observe
