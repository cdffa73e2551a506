// The flight recorder keeps the last calls and can be read at any time.
#include "trireme/comm/recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

namespace trireme::comm {
namespace {

using State = Recorder::State;

CallKey key_of(Op op, std::uint64_t count) {
  return CallKey{.op = op, .type = DType::kF16, .reduce = Reduce::kMax, .algorithm = Algorithm::kRing, .count = count};
}

TEST(Recorder, KeepsTheLastCallsOldestFirst) {
  Recorder recorder(3, 10);
  const std::uint32_t tp = recorder.add_group("tp"), dp = recorder.add_group("dp");
  for (std::uint64_t i = 0; i < 25; ++i) {
    const auto id =
        recorder.begin(i % 2 == 0 ? tp : dp, key_of(Op::kAllReduce, i), i, -1, static_cast<std::int64_t>(100 + i));
    if (i != 24) recorder.end(id, i == 20 ? State::kFailed : State::kDone, static_cast<std::int64_t>(1000 + i));
  }
  const auto entries = recorder.entries();
  ASSERT_EQ(entries.size(), 10u);
  for (std::size_t i = 0; i < 10; ++i) {
    EXPECT_EQ(entries[i].sequence, 15 + i);
    EXPECT_EQ(entries[i].key, key_of(Op::kAllReduce, 15 + i));
    EXPECT_EQ(entries[i].group, (15 + i) % 2 == 0 ? "tp" : "dp");
    EXPECT_EQ(entries[i].peer, -1);
    EXPECT_EQ(entries[i].started_ns, static_cast<std::int64_t>(115 + i));
  }
  EXPECT_EQ(entries[5].state, State::kFailed);
  EXPECT_EQ(entries[8].state, State::kDone);
  EXPECT_EQ(entries[8].ended_ns, 1023);
  EXPECT_EQ(entries[9].state, State::kPending);
}

TEST(Recorder, ForgetsTheEndOfACallItHasForgotten) {
  Recorder recorder(0, 2);
  const std::uint32_t group = recorder.add_group("world");
  const auto old = recorder.begin(group, key_of(Op::kBarrier, 0), 0, -1, 1);
  for (std::uint64_t i = 1; i < 4; ++i) recorder.begin(group, key_of(Op::kBarrier, 0), i, -1, 1);
  recorder.end(old, State::kFailed, 9);
  for (const auto& entry : recorder.entries()) EXPECT_EQ(entry.state, State::kPending);
}

TEST(Recorder, SpeaksJson) {
  Recorder recorder(7);
  const std::uint32_t group = recorder.add_group("world \"a\"");
  recorder.end(recorder.begin(group, key_of(Op::kAllReduce, 12), 4, -1, 1000), State::kDone, 4000);
  recorder.begin(group, key_of(Op::kSend, 5), 0, 2, 5000);
  const auto json = nlohmann::json::parse(recorder.to_json("because \xff"));
  EXPECT_EQ(json["rank"], 7);
  EXPECT_THAT(json["reason"].get<std::string>(), testing::HasSubstr("because"));
  ASSERT_EQ(json["calls"].size(), 2u);
  const auto& call = json["calls"][0];
  EXPECT_EQ(call["group"], "world \"a\"");
  EXPECT_EQ(call["op"], "all_reduce");
  EXPECT_EQ(call["sequence"], 4);
  EXPECT_EQ(call["count"], 12);
  EXPECT_EQ(call["type"], "f16");
  EXPECT_EQ(call["reduce"], "max");
  EXPECT_EQ(call["algorithm"], "ring");
  EXPECT_EQ(call["state"], "done");
  EXPECT_EQ(call["took_us"], 3.0);
  EXPECT_FALSE(call.contains("peer"));
  EXPECT_EQ(json["calls"][1]["op"], "send");
  EXPECT_EQ(json["calls"][1]["peer"], 2);
  EXPECT_EQ(json["calls"][1]["state"], "pending");
  EXPECT_FALSE(json["calls"][1].contains("took_us"));
}

TEST(Recorder, WritesAFileOrSaysInTheLogThatItCannot) {
  const auto directory =
      std::filesystem::path(testing::TempDir()) / ("trireme_recorder_test_" + std::to_string(::getpid())) / "deeper";
  std::filesystem::remove_all(directory.parent_path());
  Recorder recorder(5);
  recorder.begin(recorder.add_group("world"), key_of(Op::kBarrier, 0), 0, -1, 1);
  recorder.dump(directory.string(), "a test");
  std::ifstream file(directory / "flight-5.json");
  EXPECT_EQ(nlohmann::json::parse(file)["reason"], "a test");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory), {}), 1) << "a part of a file was left";
  recorder.dump("/proc/none/such", "a test");  // must not throw
  std::filesystem::remove_all(directory.parent_path());
}

TEST(Recorder, IsReadWhileItIsWritten) {
  Recorder recorder(0, 16);
  const std::uint32_t group = recorder.add_group("world");
  std::atomic<bool> stop{false};
  std::atomic<int> reads{0};
  std::thread reader([&] {
    for (; !stop; ++reads) {
      for (const auto& entry : recorder.entries()) {
        // Every word of an entry must come from one call.
        EXPECT_EQ(entry.key.count, entry.sequence);
        EXPECT_EQ(entry.started_ns, static_cast<std::int64_t>(entry.sequence));
      }
    }
  });
  for (std::uint64_t i = 0; i < 20'000 || reads < 100; ++i) {
    recorder.end(recorder.begin(group, key_of(Op::kAllReduce, i), i, -1, static_cast<std::int64_t>(i)), State::kDone,
                 1);
  }
  stop = true;
  reader.join();
}

}  // namespace
}  // namespace trireme::comm
