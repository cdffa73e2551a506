#include "trireme/comm/control/switchboard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/comm/control/planes.h"

namespace trireme::comm::control {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Connection 100 + r speaks for rank r. Time stands still unless a test moves it.
class SwitchboardTest : public testing::Test {
 protected:
  static constexpr Switchboard::Caller caller_of(int rank) { return 100 + static_cast<Switchboard::Caller>(rank); }
  static Message hello(int rank, int ranks = 3, const std::string& job = "job") {
    return {.type = MessageType::kHello, .rank = rank, .number = ranks, .key = job};
  }
  void join(int rank) { say(rank, hello(rank)); }
  void say(int rank, const Message& message) { board_.receive(caller_of(rank), message, now_); }

  // "0<-reply 7 yes v" a message; "!" at the end where the connection is closed after it.
  std::vector<std::string> sent() {
    std::vector<std::string> out;
    for (const auto& [to, message, close_after] : board_.take_outgoing()) {
      constexpr const char* kNames[] = {"",        "hello",    "welcome", "refused", "heartbeat", "bye",
                                        "set",     "get",      "wait",    "add",     "erase",     "reply",
                                        "failure", "announce", "notice",  "ask",     "question",  "answer"};
      std::string line = fmt::format("{}<-{}", to - 100, kNames[static_cast<int>(message.type)]);
      if (message.type == MessageType::kNotice) line += fmt::format(" {} of {}", message.number, message.rank);
      if (message.id != 0) line += fmt::format(" {}{}", message.id, message.flag ? " yes" : "");
      if (message.number != 0 && message.type == MessageType::kReply) line += fmt::format(" {}", message.number);
      if (!message.value.empty()) line += " " + message.value;
      out.push_back(line + (close_after ? "!" : ""));
    }
    return out;
  }

  Switchboard::Time now_ = Clock::now();
  Switchboard board_{{.ranks = 3, .job_id = "job", .heartbeat_timeout = 10s}};
};

TEST_F(SwitchboardTest, WelcomesEachRankOnce) {
  join(0);
  join(2);
  EXPECT_THAT(sent(), ElementsAre("0<-welcome", "2<-welcome"));
  EXPECT_EQ(board_.present(), 2U);
  board_.receive(7, hello(2), now_);
  EXPECT_THAT(sent(), ElementsAre(HasSubstr("another process takes part as rank 2")));
  board_.receive(7, hello(1, 4), now_);
  EXPECT_THAT(sent(), ElementsAre(HasSubstr("it serves 3 ranks, and this process was told of 4")));
  board_.receive(7, hello(3), now_);
  EXPECT_THAT(sent(), ElementsAre(HasSubstr("no rank 3 among 3")));
  board_.receive(7, hello(1, 3, "other"), now_);
  const auto refused = sent();
  EXPECT_THAT(refused, ElementsAre(HasSubstr("serves another job")));
  EXPECT_THAT(refused[0], testing::Not(HasSubstr("other:")));  // ids are shared secrets: neither is shown
  EXPECT_FALSE(board_.knows(7));
}

TEST_F(SwitchboardTest, NothingIsDoneForStrangersOrOutOfTurn) {
  EXPECT_THROW(board_.receive(7, {.type = MessageType::kGet, .key = "k"}, now_), WireError);
  join(0);
  EXPECT_THROW(say(0, hello(0)), WireError);
  EXPECT_THROW(say(0, {.type = MessageType::kReply}), WireError);
  EXPECT_THROW(say(0, {.type = MessageType::kAnnounce, .number = 4}), WireError);
  EXPECT_THROW(say(0, {.type = MessageType::kAnnounce, .number = -1}), WireError);
}

TEST_F(SwitchboardTest, AWaitIsServedBySetOrAddAndForgottenWhenOverdue) {
  for (const int rank : {0, 1, 2}) join(rank);
  (void)sent();
  say(0, {.type = MessageType::kWait, .id = 5, .number = 1000, .key = "k"});
  say(1, {.type = MessageType::kWait, .id = 6, .number = 9000, .key = "k"});
  EXPECT_THAT(sent(), IsEmpty());
  now_ += 2s;
  board_.tick(now_);
  say(2, {.type = MessageType::kAdd, .id = 7, .number = 4, .key = "k"});
  EXPECT_THAT(sent(), ElementsAre("1<-reply 6 yes 4", "2<-reply 7 4"));
}

TEST_F(SwitchboardTest, ASilentRankIsLostAndToldSo) {
  for (const int rank : {0, 1, 2}) join(rank);
  say(0, {.type = MessageType::kAsk, .rank = 1, .id = 9, .number = 60'000, .value = "alive?"});
  (void)sent();
  now_ += 8s;
  say(0, {.type = MessageType::kHeartbeat});
  board_.heard(caller_of(2), now_);
  EXPECT_THAT(sent(), ElementsAre("0<-heartbeat"));
  now_ += 3s;
  board_.tick(now_);
  EXPECT_THAT(sent(),
              ElementsAre("1<-refused it heard nothing from this rank for 11.0 s and gave it up as lost!",
                          "0<-notice 1 of 1 rank 1 is lost: nothing was heard from it for 11.0 s (its process is "
                          "stopped or its host is down)",
                          HasSubstr("2<-notice 1 of 1"), "0<-reply 9"));
  EXPECT_FALSE(board_.knows(caller_of(1)));
  board_.receive(7, hello(1), now_);
  EXPECT_THAT(sent(), ElementsAre(HasSubstr("cannot come back; restart all ranks")));
}

TEST_F(SwitchboardTest, TheServingProcessItselfIsNotGivenUpForSilence) {
  for (const int rank : {0, 1}) join(rank);
  (void)sent();
  now_ += 60s;
  board_.heard(caller_of(1), now_);
  board_.tick(now_);
  EXPECT_THAT(sent(), ElementsAre());
  EXPECT_TRUE(board_.knows(caller_of(0)));
}

TEST_F(SwitchboardTest, ABrokenConnectionIsNewsOnlyWithoutAGoodbye) {
  for (const int rank : {0, 1, 2}) join(rank);
  (void)sent();
  say(1, {.type = MessageType::kBye});
  board_.gone(caller_of(1), "closed");
  EXPECT_THAT(sent(), ElementsAre("0<-notice 2 of 1 rank 1 left", "2<-notice 2 of 1 rank 1 left", "1<-bye!"));
  board_.gone(caller_of(2), "closed");
  EXPECT_THAT(sent(), ElementsAre("0<-notice 1 of 2 rank 2 is lost: closed"));
  board_.gone(12345, "closed");
  EXPECT_THAT(sent(), IsEmpty());
}

TEST_F(SwitchboardTest, LastWordsStandAndLateRanksHearThem) {
  join(0);
  say(0, {.type = MessageType::kAnnounce, .number = 0, .value = "out of memory"});
  board_.gone(caller_of(0), "closed");
  (void)sent();
  join(2);
  EXPECT_THAT(sent(), ElementsAre("2<-welcome", "2<-notice 0 of 0 out of memory"));
}

TEST_F(SwitchboardTest, QuestionsGoThereAndAnswersComeBack) {
  for (const int rank : {0, 1}) join(rank);
  (void)sent();
  say(0, {.type = MessageType::kAsk, .rank = 1, .id = 40, .number = 1000, .value = "where?"});
  say(0, {.type = MessageType::kAsk, .rank = 2, .id = 41, .number = 1000, .value = "where?"});
  say(0, {.type = MessageType::kAsk, .rank = 9, .id = 42, .number = 1000, .value = "where?"});
  EXPECT_THAT(sent(), ElementsAre("1<-question 1 where?", "0<-reply 41", "0<-reply 42"));
  say(0, {.type = MessageType::kAnswer, .flag = true, .id = 1, .value = "not mine to answer"});
  EXPECT_THAT(sent(), IsEmpty());
  say(1, {.type = MessageType::kAnswer, .flag = true, .id = 1, .value = "here"});
  say(1, {.type = MessageType::kAnswer, .flag = true, .id = 1, .value = "again"});
  EXPECT_THAT(sent(), ElementsAre("0<-reply 40 yes here"));
  say(0, {.type = MessageType::kAsk, .rank = 1, .id = 43, .number = -5, .value = "quick?"});
  board_.tick(now_ + 1s);
  (void)sent();
  say(1, {.type = MessageType::kAnswer, .flag = true, .id = 2, .value = "too late"});
  EXPECT_THAT(sent(), IsEmpty());
}

}  // namespace
}  // namespace trireme::comm::control
