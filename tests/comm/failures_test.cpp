// Ranks that do not arrive, throw, leave or give up: every other rank ends soon, with an error that says who and why.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/comm/outcomes.h"
#include "tests/comm/reference.h"
#include "tests/comm/values.h"
#include "trireme/comm/transports/threads.h"

namespace trireme::comm {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

/// Calls that need every rank: in the slots of the board, by pointers, and by sends and receives.
const Case kCalls[] = {
    {.op = Op::kAllReduce, .algorithm = Algorithm::kDirect, .count = 8},
    {.op = Op::kAllReduce, .algorithm = Algorithm::kDirect, .count = 100'000},
    {.op = Op::kAllReduce, .algorithm = Algorithm::kRing, .count = 8},
    {.op = Op::kAllReduce, .algorithm = Algorithm::kRing, .count = 100'000},
    {.op = Op::kBarrier, .algorithm = Algorithm::kBruck},
};

void call(Group& group, const Case& c) {
  Trial trial(c, group.size(), group.rank());
  trial.start(group).wait();
}

std::string described(const Case& c) {
  return describe(CallKey{.op = c.op, .type = DType::kF32, .algorithm = c.algorithm, .count = c.count});
}

TEST(Deadline, NamesTheCallAndTheRankThatNeverArrived) {
  for (const Case& c : kCalls) {
    SCOPED_TRACE(to_text(c));
    Gate gate;
    std::atomic<int> ended{0};
    const Outcomes outcomes = run_to_the_end(
        3,
        [&](Rank& self) {
          self.world().barrier({.algorithm = {}, .deadline = 60s}).wait();
          if (self.rank() == 2) return gate.wait();
          try {
            call(self.world(), c);
          } catch (...) {
            if (++ended == 2) gate.open();
            throw;
          }
        },
        test_options(kPatience));
    for (const int r : {0, 1}) {
      EXPECT_THAT(outcomes[r].error, AllOf(HasSubstr(described(c)), HasSubstr("number 1 of group 'world'"),
                                           HasSubstr("passed its deadline of 1.5 s"),
                                           HasSubstr("rank 2 had not arrived"), HasSubstr("number 0, done")));
      EXPECT_GE(outcomes[r].took, kPatience - 10ms);
      EXPECT_LT(outcomes[r].took, kSoon);
    }
    EXPECT_THAT(outcomes.rethrown, HasSubstr("rank 2 had not arrived"));
    EXPECT_EQ(outcomes[2].error, "");
  }
}

TEST(Deadline, UsesTheNumbersOfTheWorldInSubgroups) {
  Gate gate;
  const Outcomes outcomes = run_to_the_end(
      4,
      [&](Rank& self) {
        const auto pairs = self.world().split(self.rank() % 2, -self.rank(), "pairs");  // 2, 0 and 3, 1
        if (self.rank() != 3) {
          if (self.rank() == 1) {
            const struct OpenAtEnd {
              Gate& gate;
              ~OpenAtEnd() { gate.open(); }
            } at_end{gate};
            pairs->barrier({.algorithm = {}, .deadline = kPatience}).wait();
          }
          return;
        }
        gate.wait();
      },
      test_options());
  EXPECT_THAT(outcomes[1].error, AllOf(HasSubstr("group 'pairs'"), HasSubstr("rank 3 had not arrived"),
                                       HasSubstr("it has made no call there")));
  EXPECT_THAT(outcomes[1].hint, HasSubstr("log of rank 3"));
}

TEST(Deadline, HoldsForReceivesThatAreNeverSentAndSendsThatAreNeverReceived) {
  for (const bool sends : {false, true}) {
    Gate gate;
    const Outcomes outcomes = run_to_the_end(
        2,
        [&](Rank& self) {
          if (self.rank() == 1) return gate.wait();
          std::vector<float> data(100'000);
          const Buffer buffer{data.data(), data.size(), DType::kF32};
          Work work = sends ? self.world().send(buffer, 1, 3) : self.world().recv(buffer, 1, 3);
          try {
            work.wait();
          } catch (...) {
            gate.open();
            throw;
          }
        },
        test_options(kPatience));
    const std::string what = sends ? "send of 100000 x f32 to rank 1" : "recv of 100000 x f32 from rank 1";
    EXPECT_THAT(outcomes[0].error, AllOf(HasSubstr(what), HasSubstr("number 0 of group 'world'"), HasSubstr("1.5 s"),
                                         HasSubstr(sends ? "rank 1 has not received it" : "rank 1 has made 0 sends")));
    EXPECT_LT(outcomes[0].took, kSoon);
  }
}

TEST(Deadline, HoldsForACallerThatOnlyTests) {
  Gate gate;
  const Outcomes outcomes = run_to_the_end(
      2,
      [&](Rank& self) {
        if (self.rank() == 1) return gate.wait();
        Work work = self.world().barrier();
        try {
          while (!work.test()) std::this_thread::sleep_for(1ms);
        } catch (...) {
          gate.open();
          throw;
        }
      },
      test_options(100ms));
  EXPECT_THAT(outcomes[0].error, HasSubstr("rank 1 had not arrived"));
}

TEST(ALeavingRank, IsNotWaitedForUntilTheDeadline) {
  const Outcomes outcomes = run_to_the_end(
      2,
      [](Rank& self) {
        if (self.rank() == 0) self.world().barrier().wait();
      },
      test_options(600s));
  EXPECT_THAT(outcomes[0].error, HasSubstr("rank 1, which has already ended its work"));
  EXPECT_LT(outcomes[0].took, kSoon);
}

TEST(AThrowingRank, WakesTheOthersWithItsReason) {
  for (const Case& c : kCalls) {
    SCOPED_TRACE(to_text(c));
    const Outcomes outcomes = run_to_the_end(
        4,
        [&](Rank& self) {
          self.world().barrier().wait();
          if (self.rank() == 1) {
            std::this_thread::sleep_for(20ms);  // most likely the others sleep by now
            throw std::runtime_error("out of cheese");
          }
          call(self.world(), c);
        },
        test_options(600s));
    EXPECT_EQ(outcomes.rethrown, "out of cheese");
    for (const int r : {0, 2, 3}) {
      EXPECT_THAT(outcomes[r].error, AllOf(HasSubstr("rank 1 failed"), HasSubstr("out of cheese")));
      EXPECT_TRUE(outcomes[r].because_of_other);
      EXPECT_LT(outcomes[r].took, kSoon);
    }
  }
}

TEST(AThrowingRank, WakesThoseWhoReceiveFromItAndNoOthers) {
  const Outcomes outcomes = run_to_the_end(
      3,
      [](Rank& self) {
        int number = self.rank();
        const Buffer buffer{&number, 1, DType::kI32};
        if (self.rank() == 0) throw std::runtime_error("out of cheese");
        if (self.rank() == 1) self.world().recv(buffer, 0).wait();
        // Rank 2 has what it waits for from itself: it does not need the others.
        Work received = self.world().recv(buffer, 2);
        std::this_thread::sleep_for(50ms);
        self.world().send(buffer, 2).wait();
        received.wait();
      },
      test_options(600s));
  EXPECT_EQ(outcomes.rethrown, "out of cheese");
  EXPECT_THAT(outcomes[1].error, HasSubstr("out of cheese"));
  EXPECT_EQ(outcomes[2].error, "");
}

TEST(AfterAFailure, CallsThrowAtOnce) {
  std::atomic<int> checked{0};
  const Outcomes outcomes = run_to_the_end(
      3,
      [&](Rank& self) {
        const auto other = self.world().split(0, 0, "other");
        if (self.rank() == 2) throw std::runtime_error("out of cheese");
        EXPECT_THROW(self.world().barrier().wait(), PeerFailure);
        float x = 0;
        try {
          (void)self.world().all_reduce({&x, 1, DType::kF32}, Reduce::kSum);
          ADD_FAILURE() << "nothing was thrown";
        } catch (const PeerFailure& failure) {
          EXPECT_THAT(failure.what(), AllOf(HasSubstr("cannot be used any more"), HasSubstr("out of cheese")));
          ++checked;
        }
        EXPECT_THROW((void)self.world().send({&x, 1, DType::kF32}, 0), PeerFailure);
        // Another group with the same rank: nobody needs to be told twice.
        const auto started = std::chrono::steady_clock::now();
        EXPECT_THROW(other->barrier().wait(), PeerFailure);
        EXPECT_LT(std::chrono::steady_clock::now() - started, kSoon);
      },
      test_options(600s));
  EXPECT_EQ(checked, 2);
  EXPECT_EQ(outcomes.rethrown, "out of cheese");
}

TEST(AfterAFailure, GroupsWithoutTheFailedRankGoOn) {
  std::atomic<int> finished{0};
  const Outcomes outcomes = run_to_the_end(
      4,
      [&](Rank& self) {
        const auto pair = self.world().split(self.rank() / 2, 0, "pair");
        if (self.rank() == 3) throw std::runtime_error("out of cheese");
        if (self.rank() == 2) return;
        for (std::uint64_t i = 0; i < 50; ++i) {
          EXPECT_EQ(try_case(*pair, {.op = Op::kAllReduce, .count = 1 + i * 400, .seed = i}), "");
          std::this_thread::sleep_for(1ms);
        }
        ++finished;
      },
      test_options(600s));
  EXPECT_EQ(finished, 2);
  EXPECT_EQ(outcomes.rethrown, "out of cheese");
}

TEST(Work, ThatIsDestroyedWhileAnExceptionPassesGivesTheCallUp) {
  for (const Case& c : kCalls) {
    SCOPED_TRACE(to_text(c));
    const Outcomes outcomes = run_to_the_end(
        3,
        [&](Rank& self) {
          Trial trial(c, 3, self.rank());
          Work work = trial.start(self.world());
          if (self.rank() == 0) throw std::runtime_error("out of cheese");
          work.wait();
        },
        test_options(600s));
    EXPECT_EQ(outcomes.rethrown, "out of cheese");
    for (const int r : {1, 2}) {
      // The call may have been complete before rank 0 threw.
      EXPECT_THAT(outcomes[r].error,
                  AnyOf("", HasSubstr("an exception passed through it"), HasSubstr("out of cheese")));
      EXPECT_LT(outcomes[r].took, kSoon);
    }
  }
}

TEST(Work, ThatIsDestroyedOtherwiseIsWaitedFor) {
  EXPECT_EQ(check_on(on_threads(), 3,
                     [](Rank& self) {
                       const Case c{.op = Op::kAllReduce, .count = 200'000};
                       Trial trial(c, 3, self.rank());
                       { const Work work = trial.start(self.world()); }
                       return trial.verify();
                     }),
            "");
}

/// The buffers of a call that was given up are freed at once, while the other ranks are somewhere inside the call. Only
/// the address sanitizer sees what must not happen here.
TEST(MemoryOfACallGivenUp, IsNotTouchedAnyMore) {
#if defined(TRIREME_TSAN)
  constexpr std::uint64_t kRounds = 20;
#else
  constexpr std::uint64_t kRounds = 60;
#endif
  int failed = 0;
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    const Case c{.op = round % 4 == 3 ? Op::kAllToAll : Op::kAllReduce,
                 .algorithm = round % 4 == 0   ? Algorithm::kRing
                              : round % 4 == 1 ? Algorithm::kHalvingDoubling
                                               : Algorithm::kDirect,
                 .count = 200'000,
                 .uneven = round % 4 == 3,
                 .seed = round};
    const Outcomes outcomes = run_to_the_end(
        3,
        [&](Rank& self) {
          auto trial = std::make_unique<Trial>(c, 3, self.rank());
          self.world().barrier().wait();
          // From a microsecond to four milliseconds: on a quick machine the call takes less than one.
          const auto pause = std::chrono::microseconds(hash_of({round, 9}) % (1ULL << (round % 13)));
          if (self.rank() == 2) {
            Work work = trial->start(self.world());
            std::this_thread::sleep_for(pause);
            throw std::runtime_error("out of cheese");  // gives up the work, then frees the memory
          }
          Work work = trial->start(self.world());
          try {
            work.wait();
          } catch (const CommError&) {
            trial.reset();
            throw;
          }
        },
        test_options(600s));
    EXPECT_EQ(outcomes.rethrown, "out of cheese");
    for (const int r : {0, 1}) failed += outcomes[r].error.empty() ? 0 : 1;
  }
  EXPECT_GT(failed, 0) << "no rank was ever caught inside its call";
}

/// A long message that its sender took back keeps its place: a short one behind it, which was copied and is still
/// there, must not be mistaken for it and blamed on ranks that disagree.
TEST(MessageTakenBack, IsNotReplacedByALaterOne) {
  const auto ends = make_threads_transport(2, 0);
  const CallKey key{.op = Op::kAllReduce, .type = DType::kF32, .algorithm = Algorithm::kRing, .count = 100'008};
  const std::vector<float> sent(100'008, 1.0f);
  std::vector<float> received(100'008, 0.0f);
  const auto bytes = [](std::size_t floats) { return floats * sizeof(float); };
  const auto first = ends[0]->post_send({.peer = 1, .channel = 3, .tag = 4, .key = key}, sent.data(), bytes(100'000));
  const auto second = ends[0]->post_send({.peer = 1, .channel = 3, .tag = 4, .key = key}, sent.data(), bytes(8));
  first->abandon();
  second->abandon();
  const auto receive = ends[1]->post_recv({.peer = 0, .channel = 3, .tag = 4, .key = key},
                                          {.to = received.data(), .count = 100'000, .type = DType::kF32});
  EXPECT_EQ(receive->advance(Effort::kWork), Progress::kStuck);
  EXPECT_FALSE(receive->mismatched);
  EXPECT_EQ(received[0], 0.0f);
}

TEST(FlightRecorder, IsWrittenByEveryRankThatFails) {
  // Several runs of the tests may be under way.
  const auto directory = std::filesystem::path(testing::TempDir()) / fmt::format("trireme_failures_test-{}", getpid());
  std::filesystem::remove_all(directory);
  RanksOptions options = test_options(kPatience);
  options.comm.flight_directory = directory.string();
  Gate gate;
  std::atomic<int> ended{0};
  run_to_the_end(
      3,
      [&](Rank& self) {
        call(self.world(), {.op = Op::kAllGather, .algorithm = Algorithm::kRing, .type = DType::kBF16, .count = 5});
        if (self.rank() == 2) return gate.wait();
        try {
          call(self.world(), {.op = Op::kAllReduce, .algorithm = Algorithm::kRing, .count = 77});
        } catch (...) {
          if (++ended == 2) gate.open();  // both have failed, by themselves or because of each other, and written
          throw;
        }
      },
      options);
  for (const int r : {0, 1}) {
    std::ifstream file(directory / fmt::format("flight-{}.json", r));
    ASSERT_TRUE(file) << "rank " << r;
    const auto json = nlohmann::json::parse(file);
    EXPECT_EQ(json["rank"], r);
    EXPECT_THAT(json["reason"].get<std::string>(), HasSubstr("rank 2 had not arrived"));
    ASSERT_EQ(json["calls"].size(), 2u);
    EXPECT_EQ(json["calls"][0]["op"], "all_gather");
    EXPECT_EQ(json["calls"][0]["count"], 15);
    EXPECT_EQ(json["calls"][0]["type"], "bf16");
    EXPECT_EQ(json["calls"][0]["state"], "done");
    EXPECT_EQ(json["calls"][1]["op"], "all_reduce");
    EXPECT_EQ(json["calls"][1]["algorithm"], "ring");
    EXPECT_EQ(json["calls"][1]["sequence"], 1);
    EXPECT_EQ(json["calls"][1]["state"], "failed");
  }
  EXPECT_FALSE(std::filesystem::exists(directory / "flight-2.json"));
  std::filesystem::remove_all(directory);
}

/// A recipe that is wrong is no failure: whoever waited for the rank that found it leaves nothing behind.
TEST(FlightRecorder, IsNotWrittenWhenARankRefusesItsInput) {
  const auto directory = std::filesystem::path(testing::TempDir()) / fmt::format("trireme_refused_test-{}", getpid());
  std::filesystem::remove_all(directory);
  RanksOptions options = test_options(kPatience);
  options.comm.flight_directory = directory.string();
  const auto body = [](Rank& self) {
    if (self.rank() == 0) throw ConfigError("the recipe is wrong");
    call(self.world(), {.op = Op::kAllReduce, .algorithm = Algorithm::kRing, .count = 77});
  };
  EXPECT_THROW(run_ranks(3, body, options), ConfigError);
  for (const int r : {0, 1, 2}) EXPECT_FALSE(std::filesystem::exists(directory / fmt::format("flight-{}.json", r)));
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace trireme::comm
