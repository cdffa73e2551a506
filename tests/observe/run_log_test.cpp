#include "trireme/observe/run_log.h"

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <limits>
#include <nlohmann/json.hpp>

#include "tests/errors.h"
#include "tests/observe/run_folder.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/observe/run_reader.h"

namespace trireme::observe {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ARunLog : public RunFolder {
 protected:
  void write_steps(RunLog& log, std::int64_t first, std::int64_t last) {
    for (std::int64_t step = first; step <= last; ++step) {
      log.step(sample_step(step));
      if (step % 5 == 0)
        log.hashes(step, static_cast<std::uint64_t>(step),
                   std::vector<std::pair<std::string, std::uint64_t>>{{"b", 1}, {"a", 2}});
    }
  }
  RunFiles read_back() {
    write(folder_ / "recipe.toml", "[model]\n");
    return read_run(folder_);
  }
};

TEST_F(ARunLog, IsReadBackToTheBit) {
  RunLog log(folder_, std::nullopt);
  log.event("start", {{"model", "gpt"}, {"ranks", 4}});
  write_steps(log, 1, 12);
  log.event("eval", {{"step", 10}, {"loss", 0.1}});
  log.event("stop", {});
  const RunFiles run = read_back();
  ASSERT_EQ(run.steps.size(), 12U);
  for (std::int64_t step = 1; step <= 12; ++step)
    EXPECT_EQ(run.steps[static_cast<std::size_t>(step - 1)], sample_step(step));
  ASSERT_EQ(run.hashes.size(), 2U);
  EXPECT_EQ(run.hashes[1], (HashRecord{.step = 10, .total = 10, .tensors = {{"a", 2}, {"b", 1}}}));
  ASSERT_EQ(run.events.size(), 3U);
  EXPECT_EQ(run.events[0].kind, "start");
  EXPECT_EQ(run.events[0].text_of("model"), "gpt");
  EXPECT_GT(run.events[0].time, 1.7e9);
  EXPECT_EQ(run.events_of("eval").at(0)->number_of("loss"), 0.1);
  EXPECT_THAT(run.notes, IsEmpty());
}

TEST_F(ARunLog, KeepsTheTermsOfALossInTheirOrder) {
  RunLog log(folder_, std::nullopt);
  StepRecord several = sample_step(1), one = sample_step(2);
  several.losses = {{"loss", 2.25, 1}, {"aux_loss", 0.5, 0.01}, {"tokens_dropped", std::nan(""), 0}};
  log.step(several);
  log.step(one);
  const RunFiles run = read_back();
  ASSERT_EQ(run.steps.size(), 2U);
  ASSERT_EQ(run.steps[0].losses.size(), 3U);
  EXPECT_EQ(run.steps[0].losses[0], several.losses[0]);
  EXPECT_EQ(run.steps[0].losses[1], several.losses[1]);
  EXPECT_EQ(run.steps[0].losses[2].name, "tokens_dropped");
  EXPECT_TRUE(std::isnan(run.steps[0].losses[2].mean));
  EXPECT_THAT(run.steps[1].losses, IsEmpty());
  EXPECT_THAT(read(folder_ / "metrics.jsonl"), HasSubstr(R"("losses":{"loss":{"mean":2.25,"weight":1.0},"aux_loss")"));
  std::string events;
  for (const auto& file : fs::directory_iterator(folder_ / "tensorboard")) events += read(file.path());
  EXPECT_THAT(events, HasSubstr("losses/aux_loss"));
}

TEST_F(ARunLog, WritesTheFieldsThatAreDocumented) {
  RunLog log(folder_, std::nullopt);
  StepRecord record = sample_step(5);
  record.loss = 2.5;
  log.step(record);
  EXPECT_THAT(read(folder_ / "metrics.jsonl"), ::testing::StartsWith(R"({"step":5,"loss":2.5,"grad_norm":)"));
  EXPECT_THAT(read(folder_ / "metrics.jsonl"), HasSubstr(R"("mfu":null,"memory":3221225477,"seconds":)"));
  log.hashes(20, 0xABC, std::vector<std::pair<std::string, std::uint64_t>>{{"param/wte", 0xFFFFFFFFFFFFFFFF}});
  EXPECT_EQ(read(folder_ / "hashes.jsonl"),
            "{\"step\":20,\"total\":\"0000000000000abc\",\"tensors\":{\"param/wte\":\"ffffffffffffffff\"}}\n");
}

TEST_F(ARunLog, KeepsNumbersThatAreNotFinite) {
  RunLog log(folder_, std::nullopt);
  StepRecord record = sample_step(1);
  record.loss = std::numeric_limits<double>::quiet_NaN();
  record.grad_norm = std::numeric_limits<double>::infinity();
  record.lr = -std::numeric_limits<double>::infinity();
  log.step(record);
  log.event("eval", {{"step", 1}, {"loss", std::nan("")}});
  const RunFiles run = read_back();
  EXPECT_TRUE(std::isnan(run.steps.at(0).loss));
  EXPECT_EQ(run.steps.at(0).grad_norm, record.grad_norm);
  EXPECT_EQ(run.steps.at(0).lr, record.lr);
  EXPECT_TRUE(std::isnan(run.events.at(0).number_of("loss").value()));
  EXPECT_THAT(read(folder_ / "events.jsonl"), HasSubstr(R"("loss":"nan")"));
}

TEST_F(ARunLog, ResumedIsTheRunThatWasNeverStopped) {
  {
    RunLog log(folder_ / "whole", std::nullopt);
    write_steps(log, 1, 20);
  }
  {
    RunLog log(folder_ / "cut", std::nullopt);
    write_steps(log, 1, 13);
    log.event("eval", {{"step", 12}, {"loss", 9.0}});
  }
  {
    RunLog log(folder_ / "cut", 10);
    log.event("eval", {{"step", 12}, {"loss", 1.0}});
    write_steps(log, 11, 20);
  }
  EXPECT_EQ(read(folder_ / "cut" / "metrics.jsonl"), read(folder_ / "whole" / "metrics.jsonl"));
  EXPECT_EQ(read(folder_ / "cut" / "hashes.jsonl"), read(folder_ / "whole" / "hashes.jsonl"));
  const RunFiles run = read_run(folder_ / "cut");
  EXPECT_EQ(run.events.size(), 3U) << "eval, resume, eval: events are a history";
  const auto evals = run.events_of("eval");
  ASSERT_EQ(evals.size(), 1U) << "the first was taken back";
  EXPECT_EQ(evals[0]->number_of("loss"), 1.0);
}

TEST_F(ARunLog, ResumesAfterAnyByteThatAKillLeft) {
  {
    RunLog log(folder_, std::nullopt);
    write_steps(log, 1, 3);
    log.event("eval", {{"step", 3}, {"loss", 9.0}});
  }
  const std::string whole = read(folder_ / "metrics.jsonl"), events = read(folder_ / "events.jsonl");
  const std::size_t two = whole.rfind('\n', whole.size() - 2) + 1;
  for (std::size_t size = two; size < whole.size(); size += 7) {
    fs::resize_file(folder_ / "metrics.jsonl", size);
    fs::resize_file(folder_ / "events.jsonl", events.size() - 1);
    { RunLog log(folder_, 2); }
    EXPECT_EQ(read(folder_ / "metrics.jsonl"), whole.substr(0, two)) << size;
    EXPECT_THAT(read(folder_ / "events.jsonl"), ::testing::StartsWith(R"({"event":"resume")"));
    write(folder_ / "metrics.jsonl", whole);
    write(folder_ / "events.jsonl", events);
  }
}

TEST_F(ARunLog, FromStepZeroBeginsAgain) {
  {
    RunLog log(folder_, std::nullopt);
    write_steps(log, 1, 7);
  }
  RunLog log(folder_, 0);
  EXPECT_EQ(read(folder_ / "metrics.jsonl"), "");
  EXPECT_EQ(read(folder_ / "hashes.jsonl"), "");
}

TEST_F(ARunLog, DropsADamagedLineAloudRatherThanRefuseToResume) {
  {
    RunLog log(folder_, std::nullopt);
    write_steps(log, 1, 3);
  }
  const std::string text = read(folder_ / "metrics.jsonl");
  write(folder_ / "metrics.jsonl", std::string(30, '\0') + "\n" + text);
  std::string said;
  divert_log([&](std::string_view line) { said += line; });
  { RunLog log(folder_, 3); }
  divert_log(nullptr);
  EXPECT_THAT(said, HasSubstr("metrics.jsonl:1: no step can be read"));
  EXPECT_EQ(read(folder_ / "metrics.jsonl"), text);
}

TEST_F(ARunLog, DoesNotWriteANewRunOverAnOldOne) {
  {
    RunLog log(folder_, std::nullopt);
    write_steps(log, 1, 1);
  }
  EXPECT_THAT(words_of([&] { RunLog log(folder_, std::nullopt); }),
              ::testing::AllOf(HasSubstr("already holds a run"), HasSubstr("resume that run")));
}

TEST_F(ARunLog, GoesOnWhileTheDiskIsFull) {
  fs::create_symlink("/dev/full", folder_ / "metrics.jsonl");
  RunLog log(folder_, std::nullopt);
  for (int step = 1; step < 4; ++step) log.step(sample_step(step));
}

TEST(AnAppendFile, KeepsWhatTheDiskHasNoRoomForUpToALimit) {
  AppendFile file("/dev/full");
  const std::string piece(AppendFile::kMostKept / 2 + 1, 'x');
  file.append_or_keep(piece);
  EXPECT_THAT(words_of([&] { file.append_or_keep(piece); }),
              ::testing::AllOf(HasSubstr("the disk is full"), HasSubstr("free some space")));
}

TEST_F(ARunLog, TakesBackALineThatDidNotFit) {
  RunLog log(folder_, std::nullopt);
  log.step(sample_step(1));
  const std::string before = read(folder_ / "metrics.jsonl");
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = before.size() + 40, .rlim_max = old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string message = words_of([&] { log.step(sample_step(2)); });
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(message, HasSubstr("cannot be written"));
  EXPECT_EQ(read(folder_ / "metrics.jsonl"), before);
}

class Reader : public ARunLog {
 protected:
  std::string error_of(const std::string& metrics) {
    write(folder_ / "metrics.jsonl", metrics);
    return words_of([&] { read_run(folder_); });
  }
};

TEST_F(Reader, NamesFileLineAndField) {
  const std::string fine = line_of(to_json(sample_step(1))) + '\n';
  EXPECT_THAT(error_of(fine + "{\"step\":2}\n"), HasSubstr("metrics.jsonl:2: has no field \"loss\""));
  EXPECT_THAT(error_of(fine + "{\"step\":2.5}\n"),
              HasSubstr("metrics.jsonl:2: field \"step\" must be a whole number, but is 2.5"));
  EXPECT_THAT(error_of("{\"step\":-2}\n"), HasSubstr("must be 0 or more"));
  EXPECT_THAT(error_of(fine + "[]\n"), HasSubstr("metrics.jsonl:2: is no JSON object"));
  EXPECT_THAT(error_of(fine + "{x}\n" + fine), HasSubstr("metrics.jsonl:2: is no JSON: character 2"));
  EXPECT_THAT(error_of(fine + fine), HasSubstr("metrics.jsonl:2: step 1 stands after step 1"));
  EXPECT_THAT(error_of(fine + "\n"), HasSubstr("metrics.jsonl:2"));
}

TEST_F(Reader, ToleratesACutLastLineAndSaysSo) {
  const std::string fine = line_of(to_json(sample_step(1))) + '\n';
  write(folder_ / "metrics.jsonl", fine + "{\"step\":2,\"lo");
  const RunFiles run = read_back();
  EXPECT_EQ(run.steps.size(), 1U);
  EXPECT_THAT(run.notes, ElementsAre("metrics.jsonl:2: the last line is cut short and was left out",
                                     "events.jsonl: there is none"));
}

TEST_F(Reader, LenientlyKeepsWhatStandsBeforeTheDamage) {
  const std::string fine = line_of(to_json(sample_step(1))) + '\n';
  write(folder_ / "metrics.jsonl", fine + "garbage\n");
  write(folder_ / "events.jsonl", "");
  const RunFiles run = read_run(folder_, Reading::kLenient);
  EXPECT_EQ(run.steps.size(), 1U);
  EXPECT_THAT(run.notes, ElementsAre(HasSubstr("metrics.jsonl:2: is no JSON"), "events.jsonl: it is empty",
                                     "recipe.toml: there is none"));
}

TEST_F(Reader, SaysWhatIsNoRun) {
  EXPECT_THAT(words_of([&] { read_run(folder_ / "nowhere"); }), HasSubstr("there is no run folder"));
  EXPECT_THAT(words_of([&] { read_run(folder_); }), HasSubstr("holds no run"));
  write(folder_ / "metrics.jsonl", "");
  EXPECT_THAT(words_of([&] { read_run(folder_ / "metrics.jsonl"); }), HasSubstr("is no folder"));
}

}  // namespace
}  // namespace trireme::observe
