#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/cli/run.h"
#include "tests/observe/run_folder.h"
#include "trireme/cli/doctor/doctor.h"
#include "trireme/observe/run_log.h"

namespace trireme::cli {
namespace {

using ::testing::HasSubstr;

class Runs : public observe::RunFolder {
 protected:
  std::string run_with(const std::string& name, std::uint64_t bits) {
    observe::RunLog log(folder_ / name, std::nullopt);
    for (std::int64_t step = 1; step <= 6; ++step) {
      log.step(observe::sample_step(step));
      const std::pair<std::string, std::uint64_t> tensors[] = {{"param/wte", step < 4 ? 1 : bits}, {"param/wpe", 2}};
      if (step % 2 == 0) log.hashes(step, step < 4 ? 3 : bits + 2, tensors);
    }
    return (folder_ / name).string();
  }
};

TEST_F(Runs, ReportWritesAPageIntoTheRunsFolder) {
  const std::string run_folder = run_with("a", 1);
  const Outcome outcome = run({"report", run_folder});
  EXPECT_EQ(outcome.code, kExitFine) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("1 run on"));
  EXPECT_THAT(outcome.out, HasSubstr("recipe.toml: there is none"));
  EXPECT_THAT(read(folder_ / "a" / "report.html"), ::testing::StartsWith("<!DOCTYPE html>"));
  const std::string page = (folder_ / "both.html").string();
  EXPECT_EQ(run({"report", run_folder, run_with("b", 1), "-o", page}).code, kExitFine);
  EXPECT_THAT(read(page), HasSubstr("2 runs"));
}

TEST_F(Runs, ReportOfNoRunIsAFriendlyError) {
  const Outcome outcome = run({"report", (folder_ / "nowhere").string()});
  EXPECT_EQ(outcome.code, kExitUsage);
  EXPECT_THAT(outcome.err, HasSubstr("there is no run folder"));
  EXPECT_EQ(run({"report", run_with("a", 1), "-o", (folder_ / "no" / "x.html").string()}).code, kExitFailed);
}

TEST_F(Runs, DiffSaysByItsExitCodeWhetherRunsAreEqual) {
  const std::string a = run_with("a", 1), same = run_with("same", 1), other = run_with("other", 9);
  EXPECT_EQ(run({"diff", a, same}).code, 0);
  const Outcome outcome = run({"diff", a, other});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.out, HasSubstr("differs after step 4; equal after step 2"));
  EXPECT_THAT(outcome.out, HasSubstr("1 of 2 tensors differs"));
  EXPECT_THAT(outcome.out, HasSubstr("param/wte"));
  const auto found = nlohmann::json::parse(run({"diff", a, other, "--json"}).out);
  EXPECT_EQ(found["hashes"]["step"], 4);
}

TEST_F(Runs, DiffOfDamagedFilesIsAnErrorAndNoDifference) {
  const std::string a = run_with("a", 1), b = run_with("b", 1);
  write(folder_ / "b" / "metrics.jsonl", "{}\n");
  const Outcome outcome = run({"diff", a, b});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("metrics.jsonl:1: has no field \"step\""));
}

Finding finding_of(const std::vector<Finding>& findings, const std::string& topic) {
  for (const Finding& finding : findings) {
    if (finding.topic == topic) return finding;
  }
  ADD_FAILURE() << "nothing about " << topic;
  return {};
}

TEST(Doctor, SaysWhatIsMissingAndHowToGetIt) {
  observe::Machine machine;
  machine.cpus = machine.usable_cpus = 8;
  machine.cpu_quota = 2.5;
  machine.memory = machine.memory_available = std::uint64_t{64} << 30;
  machine.memory_limit = std::uint64_t{512} << 20;
  machine.limits = {{"open files", "", 256, 4096}};
  const auto findings = check_machine(machine, ".");
  EXPECT_EQ(usable_threads(machine), 3);
  EXPECT_EQ(finding_of(findings, "memory").state, Finding::State::kNote) << "the container has less than the machine";
  EXPECT_EQ(finding_of(findings, "limits").remedy, "ulimit -n 4096");
  EXPECT_EQ(finding_of(findings, "GPU").state, Finding::State::kMissing);
  const LoadedRuntime none{.runtime = nullptr, .path = "", .error = "no library", .hint = "build it"};
  const Finding torch = finding_of(check_libraries(machine, none), "LibTorch");
  EXPECT_EQ(torch.state, Finding::State::kFatal);
  EXPECT_EQ(torch.remedy, "build it");
}

TEST(Doctor, TestsMemoryAndRanksWithoutARuntime) {
  const SelfTest test = test_machine(2, {});
  EXPECT_GT(test.memory_bytes_per_second, 1e8);
  EXPECT_TRUE(test.all_reduce_right);
  EXPECT_GT(test.all_reduce_seconds, 0);
  EXPECT_FALSE(test.fp32_flops);
  SelfTest wrong = test;
  wrong.gemm_error = 0.5;
  EXPECT_EQ(finding_of(check_test(wrong), "matrices").state, Finding::State::kFatal);
  wrong.gemm_error = 1e-6;
  wrong.fp32_flops = wrong.bf16_flops = 1e11;
  EXPECT_EQ(finding_of(check_test(wrong), "matrices").state, Finding::State::kFine);
  wrong.not_stored = "/cache/trireme is read-only";
  const Finding kept = finding_of(check_test(wrong), "matrices");
  EXPECT_EQ(kept.state, Finding::State::kNote);
  EXPECT_THAT(kept.text, HasSubstr("not stored as the peak of a run's MFU: /cache/trireme is read-only"));
  EXPECT_THAT(kept.text, testing::Not(HasSubstr("; stored in"))) << "one of the two";
  EXPECT_THAT(kept.remedy, HasSubstr("XDG_CACHE_HOME"));
  wrong.not_stored.clear();
  wrong.share = 0.3;
  EXPECT_THAT(finding_of(check_test(wrong), "matrices").text, HasSubstr("only 30 % of the time was left"));
  wrong.all_reduce_right = false;
  EXPECT_EQ(finding_of(check_test(wrong), "all_reduce").state, Finding::State::kFatal);
}

TEST(Doctor, SpeaksJson) {
  const Outcome outcome = run({"doctor", "--no-test", "--json"});
  const auto found = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(outcome.code, found["training_possible"] == true ? 0 : 1);
  EXPECT_FALSE(found.contains("test"));
  EXPECT_GE(found["findings"].size(), 10U);
}

}  // namespace
}  // namespace trireme::cli
