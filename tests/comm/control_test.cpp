// What every control plane must do, run over each kind of plane.
#include "trireme/comm/control.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <set>

#include "tests/comm/control/planes.h"
#include "trireme/base/error.h"

namespace trireme::comm {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct Kind {
  const char* name;
  Planes (*make)(int ranks);
  friend void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }
};

class Control : public testing::TestWithParam<Kind> {
 protected:
  static Planes make(int ranks) { return GetParam().make(ranks); }
};

INSTANTIATE_TEST_SUITE_P(Planes, Control,
                         testing::Values(Kind{"Local", local_planes},
                                         Kind{"Tcp", [](int ranks) { return tcp_planes(ranks); }}),
                         [](const auto& row) { return row.param.name; });

TEST_P(Control, KnowsWhoItIs) {
  for (const int ranks : {1, 2, 3, 5}) {
    Planes planes = make(ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ(planes[rank].rank(), rank);
      EXPECT_EQ(planes[rank].ranks(), ranks);
    }
  }
}

TEST_P(Control, AValueSetByOneIsSeenByAll) {
  Planes planes = make(3);
  EXPECT_EQ(planes[1].get("key"), std::nullopt);
  planes[0].set("key", "value");
  EXPECT_EQ(planes[1].get("key"), "value");
  planes[2].set("key", std::string("with \0 zero", 11));
  EXPECT_EQ(planes[0].get("key"), std::string("with \0 zero", 11));
  planes[1].set("key", "");
  EXPECT_EQ(planes[0].get("key"), "");
  planes[0].erase("key");
  planes[0].erase("never there");
  EXPECT_EQ(planes[2].get("key"), std::nullopt);
}

TEST_P(Control, CarriesAMegabyteAndRefusesWhatIsTooLarge) {
  Planes planes = make(2);
  std::string big(1 << 20, 'x');
  for (std::size_t i = 0; i < big.size(); i += 997) big[i] = static_cast<char>(i);
  planes[0].set("big", big);
  EXPECT_EQ(planes[1].get("big"), big);
  const std::string largest(kMaxControlValueBytes, 'y');
  planes[1].set(std::string(kMaxControlKeyBytes, 'k'), largest);
  EXPECT_EQ(planes[0].get(std::string(kMaxControlKeyBytes, 'k')), largest);

  EXPECT_THROW(planes[0].set("big", largest + "z"), CommError);
  EXPECT_THROW(planes[0].set(std::string(kMaxControlKeyBytes + 1, 'k'), ""), CommError);
  EXPECT_EQ(planes[0].get("big"), big);  // and nothing else happened
}

TEST_P(Control, WaitForReturnsOnceTheKeyIsThere) {
  Planes planes = make(3);
  planes[0].set("early", "1");
  EXPECT_EQ(planes[1].wait_for("early", kLong), "1");
  EXPECT_EQ(planes[1].wait_for("early", 0ms), "1");
  auto waiting = std::async(std::launch::async, [&] { return planes[1].wait_for("late", kLong); });
  auto counting = std::async(std::launch::async, [&] { return planes[2].wait_for("counter", kLong); });
  EXPECT_EQ(waiting.wait_for(20ms), std::future_status::timeout);
  planes[0].set("late", "2");
  EXPECT_EQ(waiting.get(), "2");
  EXPECT_EQ(counting.wait_for(0ms), std::future_status::timeout);
  planes[0].add("counter", 7);
  EXPECT_EQ(counting.get(), "7");
}

TEST_P(Control, WaitForGivesUpNamingTheKey) {
  Planes planes = make(2);
  try {
    planes[1].wait_for("never", 30ms);
    FAIL() << "no rank has set it";
  } catch (const CommError& error) {
    EXPECT_THAT(error.message(), HasSubstr("rank 1 waited 0.0 s for control-plane key \"never\""));
    EXPECT_FALSE(error.hint().empty());
  }
  EXPECT_THROW(planes[0].wait_for("never", 0ms), CommError);
  planes[0].set("never", "after all");  // a wait given up leaves nothing behind that could confuse the next
  EXPECT_EQ(planes[1].wait_for("never", kLong), "after all");
}

TEST_P(Control, AWaitEndsWhenItIsToldToAndOtherwiseWithTheKey) {
  Planes planes = make(2);
  std::atomic<bool> stop{false};
  const auto stopping = [&] { return stop.load(); };
  auto waiting = std::async(std::launch::async, [&] { return planes[1].wait_unless("never", kLong, stopping); });
  EXPECT_EQ(waiting.wait_for(20ms), std::future_status::timeout);
  stop = true;
  EXPECT_EQ(waiting.get(), std::nullopt);
  planes[0].set("there", "1");
  EXPECT_EQ(planes[0].get("there"), "1");  // a set is not answered; what the rank asks after it is
  EXPECT_EQ(planes[1].wait_unless("there", kLong, stopping), "1");  // what is there is not waited for
  stop = false;
  EXPECT_THROW(planes[1].wait_unless("never", 30ms, stopping), CommError);
  auto late = std::async(std::launch::async, [&] { return planes[1].wait_unless("late", kLong, stopping); });
  EXPECT_EQ(late.wait_for(20ms), std::future_status::timeout);
  planes[0].set("late", "2");
  EXPECT_EQ(late.get(), "2");
  // What decides may ask the plane itself.
  EXPECT_EQ(planes[1].wait_unless("never", kLong, [&] { return planes[1].get("there").has_value(); }), std::nullopt);
}

TEST_P(Control, EachSumOfACounterIsSeenExactlyOnce) {
  constexpr int kRanks = 3, kThreads = 2, kAdds = 50;
  Planes planes = make(kRanks);
  std::mutex mutex;
  std::set<std::int64_t> sums;
  run_threads(kRanks * kThreads, [&](int i) {
    for (int n = 0; n < kAdds; ++n) {
      const std::int64_t sum = planes[i % kRanks].add("count", 1);
      const std::lock_guard lock(mutex);
      sums.insert(sum);
    }
  });
  EXPECT_EQ(sums.size(), kRanks * kThreads * kAdds);
  EXPECT_EQ(*sums.rbegin(), kRanks * kThreads * kAdds);
  EXPECT_EQ(planes[0].get("count"), "300");
  EXPECT_EQ(planes[1].add("count", -301), -1);
}

TEST_P(Control, WhatIsNoCounterIsNotCounted) {
  Planes planes = make(2);
  planes[0].set("key", "12 apples");
  try {
    planes[1].add("key", 1);
    FAIL() << "12 apples and 1";
  } catch (const CommError& error) {
    EXPECT_THAT(error.message(), HasSubstr("\"key\" holds \"12 apples\""));
    EXPECT_FALSE(error.hint().empty());
  }
  planes[0].set("key", "9223372036854775807");
  EXPECT_THROW(planes[1].add("key", 1), CommError);
  EXPECT_EQ(planes[1].get("key"), "9223372036854775807");
}

TEST_P(Control, AnAnnouncementReachesAllOthersOnce) {
  Planes planes = make(4);
  std::vector<Ear> ears(4);
  for (int rank = 0; rank < 4; ++rank) planes[rank].listen(ears[static_cast<std::size_t>(rank)].on_notice(), nullptr);
  planes[2].announce(Notice::Kind::kFailed, "out of paper");
  for (const int rank : {0, 1, 3}) {
    EXPECT_THAT(ears[static_cast<std::size_t>(rank)].wait_for(1), ElementsAre("failed 2: out of paper"));
  }
  EXPECT_TRUE(ears[2].heard().empty());
  for (int rank = 0; rank < 4; ++rank) planes[rank].listen(nullptr, nullptr);
}

TEST_P(Control, ALateListenerHearsTheLastWordsAtOnce) {
  Planes planes = make(3);
  Ear first, late, later;
  planes[0].listen(first.on_notice(), nullptr);
  planes[1].announce(Notice::Kind::kFailed, "one");
  planes[1].announce(Notice::Kind::kFailed, "two");
  EXPECT_THAT(first.wait_for(2), ElementsAre("failed 1: one", "failed 1: two"));
  planes[2].listen(late.on_notice(), nullptr);
  EXPECT_THAT(late.wait_for(2), ElementsAre("failed 1: one", "failed 1: two"));
  planes[0].listen(later.on_notice(), nullptr);  // it has the notices already, so they are heard before this returns
  EXPECT_THAT(later.heard(), ElementsAre("failed 1: one", "failed 1: two"));
  planes[1].announce(Notice::Kind::kFailed, "three");
  EXPECT_THAT(later.wait_for(3), ElementsAre("failed 1: one", "failed 1: two", "failed 1: three"));
  EXPECT_EQ(first.heard().size(), 2U);
  planes[0].listen(nullptr, nullptr);
  planes[2].listen(nullptr, nullptr);
}

TEST_P(Control, EndingAPlaneIsLeaving) {
  Planes planes = make(3);
  Ear ear;
  planes[0].listen(ear.on_notice(), nullptr);
  planes.planes[1].reset();
  EXPECT_THAT(ear.wait_for(1), ElementsAre("left 1: rank 1 left"));
  planes[2].announce(Notice::Kind::kFailed, "why");
  planes.planes[2].reset();  // has said how it ended already
  planes[0].set("still", "here");
  EXPECT_EQ(planes[0].get("still"), "here");
  EXPECT_THAT(ear.wait_for(2), ElementsAre("left 1: rank 1 left", "failed 2: why"));
  planes[0].listen(nullptr, nullptr);
}

TEST_P(Control, AListenerMayUseThePlane) {
  Planes planes = make(3);
  Ear ear;
  planes[1].listen(
      [&](const Notice& notice) {
        if (notice.kind != Notice::Kind::kFailed) return;
        planes[1].set("seen", notice.text);
        EXPECT_EQ(planes[1].wait_for("seen", kLong), notice.text);
        EXPECT_EQ(planes[1].add("times", 1), 1);
        planes[1].announce(Notice::Kind::kFailed, "because of " + notice.text);
        const int two = 2;
        EXPECT_EQ(planes[1].ask({&two, 1}, "and you?", kLong)[0], "fine");
      },
      [&](const std::string& question) { return planes[1].get("seen").value_or("nothing") + " to " + question; });
  // The announcement of rank 1 comes back to the one who announced first, and that one announces again.
  planes[0].listen(
      [&](const Notice& notice) {
        ear.hear(notice);
        if (notice.rank == 1) planes[0].announce(Notice::Kind::kLeft, "goodbye");
      },
      nullptr);
  planes[2].listen(ear.on_notice(), [](const std::string&) { return "fine"; });
  planes[0].announce(Notice::Kind::kFailed, "fire");
  EXPECT_EQ(planes[2].wait_for("seen", kLong), "fire");
  EXPECT_THAT(ear.wait_for(4), testing::UnorderedElementsAre("failed 0: fire", "failed 1: because of fire",
                                                             "failed 1: because of fire", "left 0: goodbye"));
  for (int rank = 0; rank < 3; ++rank) planes[rank].listen(nullptr, nullptr);
}

TEST_P(Control, AsksRanksAndGetsTheirAnswers) {
  Planes planes = make(4);
  for (const int rank : {0, 1, 3}) {
    planes[rank].listen(nullptr, [rank](const std::string& question) { return question + std::to_string(rank); });
  }
  const std::vector<int> asked = {3, 1, 2, 0, 7, -1};
  EXPECT_THAT(planes[0].ask(asked, "r", kLong),
              ElementsAre("r3", "r1", std::nullopt, "r0", std::nullopt, std::nullopt));
  EXPECT_TRUE(planes[2].ask({}, "nobody", kLong).empty());
  planes.planes[3].reset();
  const int three = 3;
  EXPECT_THAT(planes[1].ask({&three, 1}, "gone?", kLong), ElementsAre(std::nullopt));
  for (const int rank : {0, 1}) planes[rank].listen(nullptr, nullptr);
}

TEST_P(Control, AListenerThatThrowsHurtsNobody) {
  Planes planes = make(3);
  Ear ear;
  planes[1].listen([](const Notice&) { throw std::runtime_error("no"); },
                   [](const std::string&) -> std::string { throw 1; });
  planes[2].listen(ear.on_notice(), [](const std::string&) { return "yes"; });
  const std::vector<int> asked = {1, 2};
  EXPECT_THAT(planes[0].ask(asked, "?", kLong), ElementsAre(std::nullopt, "yes"));
  planes[0].announce(Notice::Kind::kFailed, "x");
  EXPECT_THAT(ear.wait_for(1), ElementsAre("failed 0: x"));
  EXPECT_THAT(planes[0].ask(asked, "?", kLong), ElementsAre(std::nullopt, "yes"));
  for (int rank = 0; rank < 3; ++rank) planes[rank].listen(nullptr, nullptr);
}

TEST_P(Control, ListenersAreReplacedWhileNoticesAndQuestionsFly) {
  constexpr int kNotices = 40;
  Planes planes = make(3);
  std::atomic<bool> done = false;
  std::atomic<int> alive = -1;  // the listener that may be called
  std::thread replacing([&] {
    for (int i = 0; !done; ++i) {
      // Set after listen() has returned: a call of the previous one from here on would find another number.
      planes[0].listen(nullptr, nullptr);
      alive = i;
      std::size_t next = 0;
      planes[0].listen(
          [&, i, next](const Notice& notice) mutable {
            EXPECT_EQ(alive, i);
            // Each listener hears all, from the first, in each speaker's order.
            if (notice.rank == 1) {
              EXPECT_EQ(notice.text, std::to_string(next++));
            }
          },
          [&, i](const std::string&) {
            EXPECT_EQ(alive, i);
            return "here";
          });
    }
  });
  run_threads(2, [&](int i) {
    const int zero = 0;
    for (int n = 0; n < kNotices; ++n) {
      planes[1 + i].announce(Notice::Kind::kFailed, std::to_string(n));
      EXPECT_EQ(planes[1 + i].ask({&zero, 1}, "there?", kLong)[0].value_or("here"), "here");
    }
  });
  done = true;
  replacing.join();
  planes[0].listen(nullptr, nullptr);
}

TEST_P(Control, AListenerMayReplaceItself) {
  Planes planes = make(2);
  Ear ear;
  planes[0].listen([&](const Notice&) { planes[0].listen(ear.on_notice(), nullptr); }, nullptr);
  planes[1].announce(Notice::Kind::kFailed, "a");
  planes[1].announce(Notice::Kind::kFailed, "b");
  EXPECT_THAT(ear.wait_for(2), ElementsAre("failed 1: a", "failed 1: b"));
  planes[0].listen(nullptr, nullptr);
}

TEST_P(Control, PlanesEndInAnyOrder) {
  for (const int last : {0, 1, 2}) {
    Planes planes = make(3);
    for (int rank = 0; rank < 3; ++rank) {
      if (rank != last) planes.planes[static_cast<std::size_t>(rank)].reset();
    }
    planes[last].set("alone", "yes");
    EXPECT_EQ(planes[last].get("alone"), "yes");
  }
}

}  // namespace
}  // namespace trireme::comm
