#include "trireme/observe/machine.h"

#include <gmock/gmock.h>

#include "tests/observe/run_folder.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/observe/mfu.h"

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
  void keep(const char* precision, int threads, double flops) {
    keep_peak(precision, threads, flops, "a test", path());
  }
  /// 0: not known.
  double flops(const char* precision, int threads) {
    return find_peak(precision, threads, path()).value_or(Peak{}).flops;
  }
};

TEST_F(PeakFile, KeepsOneFigureForEachPrecisionAndNumberOfThreads) {
  EXPECT_EQ(flops("fp32", 2), 0);
  keep("fp32", 2, 1.25e11);
  keep("bf16", 2, 5e11);
  keep("fp32", 4, 2e11);
  keep("fp32", 2, 1.5e11);
  EXPECT_EQ(flops("fp32", 2), 1.5e11);
  EXPECT_EQ(flops("fp32", 4), 2e11);
  EXPECT_EQ(flops("bf16", 2), 5e11);
  EXPECT_EQ(flops("bf16", 4), 0);
}

TEST_F(PeakFile, IsTheBestOfTheLastFewSinceWhatDisturbsMakesItLower) {
  keep("fp32", 2, 2e11);
  keep("fp32", 2, 1e11);  // while others kept the machine busy
  EXPECT_EQ(flops("fp32", 2), 2e11);
  for (int i = 0; i < 3; ++i) keep("fp32", 2, 1e11);
  EXPECT_EQ(flops("fp32", 2), 2e11);
  keep("fp32", 2, 1.1e11);  // a machine that became slower is believed at last
  EXPECT_EQ(flops("fp32", 2), 1.1e11);
}

TEST_F(PeakFile, SaysWhenAndHowItWasMeasured) {
  keep("fp32", 2, 2e11);
  const auto peak = find_peak("fp32", 2, path());
  ASSERT_TRUE(peak);
  EXPECT_EQ(peak->how, "a test");
  EXPECT_THAT(peak->when, ::testing::MatchesRegex("20[0-9][0-9]-[0-9]+-[0-9]+ [0-9]+:[0-9]+:[0-9]+ UTC"));
  EXPECT_THAT(read(path()), ::testing::AllOf(HasSubstr(peak->how), HasSubstr(peak->when)));
}

TEST_F(PeakFile, ReadsTheBareNumbersOfOlderVersions) {
  write(path(), fmt::format(R"({{"cpu":"{}","flops":{{"fp32":{{"2":7e10}}}}}})", cpu_model()));
  EXPECT_EQ(flops("fp32", 2), 7e10);
  keep("fp32", 2, 6e10);
  EXPECT_EQ(flops("fp32", 2), 7e10);
  keep("fp32", 2, 8e10);
  EXPECT_EQ(flops("fp32", 2), 8e10);
}

TEST_F(PeakFile, KnowsNothingOfAnotherProcessor) {
  write(path(), R"({"cpu":"abacus","flops":{"fp32":{"2":7}}})");
  EXPECT_EQ(flops("fp32", 2), 0);
  keep("bf16", 2, 5e11);
  EXPECT_THAT(read(path()), ::testing::Not(HasSubstr("fp32"))) << "another processor's figures are dropped";
}

TEST_F(PeakFile, TakesADamagedFileForNone) {
  std::string said;
  divert_log([&](std::string_view line) { said += line; });
  for (const char* text : {"", "[]", "{", R"({"cpu":1})", "null"}) {
    write(path(), text);
    EXPECT_EQ(flops("fp32", 2), 0) << text;
  }
  divert_log(nullptr);
  EXPECT_THAT(said, HasSubstr("measure again with trireme doctor"));
}

TEST_F(PeakFile, GivesTheMfuOfASteadyRun) {
  keep("bf16", 4, 2e11);
  Mfu mfu({.precision = "bf16", .threads = 2, .local_ranks = 2, .ranks = 2}, path());
  EXPECT_DOUBLE_EQ(mfu.of(1e11, 1).value(), 0.5);
  EXPECT_DOUBLE_EQ(mfu.of(1e11, 2).value(), 0.25);
  EXPECT_EQ(Mfu({.precision = "fp32", .threads = 4}, path()).of(1e11, 1), std::nullopt) << "never measured";
}

TEST_F(PeakFile, IsOfOneMachineSoThatManyMachinesAreNoMoreThanWhole) {
  keep("fp32", 2, 1e11);
  Mfu mfu({.threads = 1, .local_ranks = 2, .ranks = 8}, path());  // four machines
  EXPECT_DOUBLE_EQ(mfu.of(3.2e11, 1).value(), 0.8);
}

TEST_F(PeakFile, IsRaisedByAStepThatShowsItTooLow) {
  keep("fp32", 2, 1e11);  // measured on a loaded machine
  std::string said;
  divert_log([&](std::string_view line) { said += line; });
  Mfu mfu({.threads = 2}, path());
  EXPECT_DOUBLE_EQ(mfu.of(1.6e11, 1).value(), 1);
  EXPECT_THAT(said, ::testing::AllOf(HasSubstr("160 GFLOP/s"), HasSubstr("taken to be 100 (a test"),
                                     HasSubstr("trireme doctor --threads 2")));
  said.clear();
  EXPECT_DOUBLE_EQ(mfu.of(0.8e11, 1).value(), 0.5);
  EXPECT_DOUBLE_EQ(mfu.of(2e11, 1).value(), 1);
  EXPECT_EQ(said, "") << "it is said once";
  divert_log(nullptr);
  EXPECT_EQ(flops("fp32", 2), 2e11) << "later runs know";
  EXPECT_EQ(find_peak("fp32", 2, path())->how, "a step of a run");
  EXPECT_DOUBLE_EQ(Mfu({.threads = 2}, path()).of(1e11, 1).value(), 0.5);
}

TEST_F(PeakFile, IsNotWrittenForEveryStepThatCreepsUp) {
  keep("fp32", 2, 1e11);
  divert_log([](std::string_view) {});
  Mfu mfu({.threads = 2}, path());
  for (const double rate : {1.001e11, 1.002e11, 1.003e11}) EXPECT_DOUBLE_EQ(mfu.of(rate, 1).value(), 1);
  divert_log(nullptr);
  EXPECT_EQ(flops("fp32", 2), 1e11);
}

TEST(StatedPeak, IsSharedByTheGpusOfARunAndNeverRaised) {
  Mfu mfu(Peak{.flops = 989.4e12, .how = "stated", .when = {}}, 4);
  EXPECT_DOUBLE_EQ(mfu.of(4 * 989.4e12, 2).value(), 0.5);
  EXPECT_DOUBLE_EQ(mfu.of(8 * 989.4e12, 1).value(), 2);  // FP8 GEMMs
  EXPECT_DOUBLE_EQ(mfu.of(4 * 989.4e12, 2).value(), 0.5);
  EXPECT_EQ(Mfu(std::nullopt, 1).of(1, 1), std::nullopt);
}

}  // namespace
}  // namespace trireme::observe
