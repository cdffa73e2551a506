// Schedules as text and JSON: there and back, and what a slip of the pen is told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "trireme/base/error.h"
#include "trireme/schedule/builders.h"
#include "trireme/schedule/check.h"
#include "trireme/schedule/passes.h"

namespace trireme::schedule {
namespace {

using testing::HasSubstr;

constexpr const char* kByHand =
    "# two ranks, written by hand\n"
    "name: mine\n"
    "micros: 2\n"
    "chunks: 0 1\n"
    "rank 0: F0\tF1 R0 B0 B1 G O\n"
    "rank 1: F0 B0 F1 I1 W1 VS0 G O VD0  # versions\n";

std::string message_of(const std::string& text) {
  try {
    read(text);
    return "";
  } catch (const Error& error) {
    return error.message();
  }
}

std::vector<Schedule> samples() {
  std::vector<Schedule> all;
  for (const Kind& kind : kinds()) {
    const Schedule plain = build(kind.name, {.ranks = 4, .micros = 8, .chunks_per_rank = kind.default_chunks});
    all.push_back(plain);
    all.push_back(add_transfers(plain));
    if (kind.asynchronous)
      all.push_back(build(kind.name, {.ranks = 3, .micros = 4, .chunks_per_rank = kind.default_chunks, .steps = 3}));
  }
  all.push_back(parse(kByHand));
  return all;
}

TEST(ScheduleText, ReadsBackWhatItWrote) {
  for (const Schedule& schedule : samples()) EXPECT_EQ(parse(to_text(schedule)), schedule) << schedule.name;
}

TEST(ScheduleText, ReadsBackItsJson) {
  for (const Schedule& schedule : samples()) EXPECT_EQ(read(to_json(schedule)), schedule) << schedule.name;
}

TEST(ScheduleText, OneWrittenByHandRuns) {
  EXPECT_EQ(check(parse(kByHand)).faults, std::vector<std::string>{});
  EXPECT_EQ(check(parse(kByHand)).peak_versions, (std::vector<int>{1, 2}));
}

TEST(ScheduleText, ShowsTransfersAndUpdates) {
  EXPECT_EQ(to_text(add_transfers(build("1f1b", {.ranks = 2, .micros = 1}))),
            "name: 1f1b\n"
            "micros: 1\n"
            "chunks: 0 1\n"
            "rank 0: RG0 F0 SA0 WRG0 B0 G O WSA0\n"
            "rank 1: RA0 WRA0 F0 B0 SG0 G O WSG0\n");
}

TEST(ScheduleText, ErrorsNameRankAndPosition) {
  const std::string header = "micros: 2\nchunks: 0 1 1\n";
  EXPECT_EQ(message_of(header + "rank 0: F0 Q1\n"), "rank 0, position 1: \"Q1\": no such instruction");
  EXPECT_EQ(message_of(header + "rank 0: F0 F2\n"), "rank 0, position 1: \"F2\": \"2\" is no micro");
  EXPECT_EQ(message_of(header + "rank 0: F0.3\n"), "rank 0, position 0: \"F0.3\": \"3\" is no chunk");
  EXPECT_THAT(message_of(header + "rank 0: F0\nrank 1: F0\n"), HasSubstr("rank 1, position 0: \"F0\""));
  EXPECT_THAT(message_of(header + "rank 0: F0+W1\n"), HasSubstr("only a forward and a whole backward overlap"));
  EXPECT_THAT(message_of(header + "rank 1: F0\n"), HasSubstr("\"rank 0\" is expected"));
  EXPECT_THAT(message_of(header + "rank 0: F0\n"), HasSubstr("on rank 1, but there are 1 ranks"));
  EXPECT_THAT(message_of("rank 0: F0\n"), HasSubstr("micros: 0 is not between 1"));
  EXPECT_THAT(message_of("stages: 4\n"), HasSubstr("\"stages\" is no line of a schedule"));
  EXPECT_THAT(message_of("weight: stash\n"), HasSubstr("did you mean \"weights\"?"));
  EXPECT_THAT(message_of("weights: stashed\n"), HasSubstr("did you mean \"stash\"?"));
  EXPECT_THAT(message_of("micros: 2\nupdate-every: 3\nchunks: 0\nrank 0: F0\n"), HasSubstr("update-every: 3"));
  EXPECT_THAT(message_of(R"({"micros": 2, "chunk": [[0]], "ranks": []})"), HasSubstr("did you mean \"chunks\"?"));
  EXPECT_THAT(message_of("{\"micros\": 2}"), HasSubstr("no schedule in JSON"));
  EXPECT_THAT(message_of(R"({"micros": 2, "chunks": [[0]], "ranks": [["F0", "F9"]]})"),
              HasSubstr("rank 0, position 1: \"F9\""));
}

TEST(ScheduleText, BrokenTextIsAnErrorNeverACrash) {
  std::mt19937 random(7);
  std::vector<std::string> texts;
  for (const Schedule& schedule : samples()) {
    texts.push_back(to_text(schedule));
    texts.push_back(to_json(schedule));
  }
  const std::string letters = "0123456789.FBIWRSAGVLDPO+:| \n#{}[]\",-\xff";
  int read_well = 0, refused = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string text = texts[random() % texts.size()];
    for (unsigned change = 0, changes = 1 + random() % 4; change < changes; ++change) {
      const std::size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text[at] = letters[random() % letters.size()];
          break;
        case 1:
          text.erase(at, 1 + random() % 8);
          break;
        default:
          text.insert(at, 1, letters[random() % letters.size()]);
      }
      if (text.empty()) text = "x";
    }
    try {
      check(read(text));
      ++read_well;
    } catch (const ConfigError&) {
      ++refused;
    }
  }
  EXPECT_GT(read_well, 100);
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace trireme::schedule
