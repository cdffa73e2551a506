// Ranks that leave in good order: what they have done counts, what they have not done never comes.
#include "trireme/comm/departure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/comm/thread_ranks.h"

namespace trireme::comm {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

TEST(Departure, ReadsBackWhatWasWritten) {
  const Departure departure{.calls = {{0, 7}, {12, 1}}, .sends = {{{0, 3}, 5}}};
  EXPECT_EQ(parse_departure(to_text(departure)), departure);
  EXPECT_EQ(parse_departure(to_text(Departure{})), Departure{});
  for (const char* text : {"", "gone", "left\ncalls", "left\ncalls x 1", "left\nnonsense 1 2"}) {
    EXPECT_EQ(parse_departure(text), std::nullopt) << text;
  }
}

TEST(Departure, OfARankThatHasDoneItsPartIsNoFailure) {
  run_ranks(
      3,
      [](Rank& self) {
        std::vector<int> mine(1, self.rank()), all(3);
        if (self.rank() == 2) std::this_thread::sleep_for(2500ms);  // longer than any grace for the rank that has left
        self.world()
            .gather(Buffer{mine.data(), 1, DType::kI32}, Buffer{all.data(), 3, DType::kI32}, 0,
                    {.algorithm = Algorithm::kLinear})
            .wait();
        if (self.rank() == 0) {
          EXPECT_EQ(all, (std::vector<int>{0, 1, 2}));
        }
      },
      test_options(30s));
}

TEST(Departure, OfARankThatNeverMadeTheCallIsNoticedAtOnce) {
  const auto start = std::chrono::steady_clock::now();
  try {
    run_ranks(
        2,
        [](Rank& self) {
          self.world().barrier().wait();
          if (self.rank() == 0) self.world().barrier().wait();
        },
        test_options(60s));
    FAIL() << "nothing was thrown";
  } catch (const PeerFailure& failure) {
    EXPECT_THAT(failure.what(), HasSubstr("waits for rank 1, which has already ended its work"));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, 30s);
}

TEST(Departure, MessagesSentBeforeItStillArrive) {
  run_ranks(
      2,
      [](Rank& self) {
        int x = 42, y = 0;
        if (self.rank() == 1) {
          self.world().send(Buffer{&x, 1, DType::kI32}, 0).wait();
          return;
        }
        std::this_thread::sleep_for(2500ms);
        self.world().recv(Buffer{&y, 1, DType::kI32}, 1).wait();
        EXPECT_EQ(y, 42);
        EXPECT_THROW(self.world().recv(Buffer{&y, 1, DType::kI32}, 1).wait(), PeerFailure);
      },
      test_options(60s));
}

}  // namespace
}  // namespace trireme::comm
