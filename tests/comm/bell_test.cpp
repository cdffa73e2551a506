// A bell rung after a change always wakes whoever looks before it sleeps.
#include "trireme/comm/event_count.h"

#include <gtest/gtest.h>

#include <thread>

namespace trireme::comm {
namespace {

using namespace std::chrono_literals;

/// Until the value is reached, as the engine waits: announce, look, sleep.
void sleep_until(EventCount& bell, const std::atomic<int>& value, int wanted) {
  while (true) {
    const std::uint32_t ticket = bell.about_to_sleep();
    if (value.load(std::memory_order_acquire) >= wanted) {
      bell.stay_awake();
      return;
    }
    bell.sleep(ticket, 60s);
  }
}

TEST(EventCount, LosesNoRing) {
  // Two threads take turns; a lost ring would cost a minute.
  constexpr int kTurns = 3000;
  EventCount ping, pong;
  std::atomic<int> pings{0}, pongs{0};
  const auto started = std::chrono::steady_clock::now();
  std::thread other([&] {
    for (int turn = 1; turn <= kTurns; ++turn) {
      sleep_until(ping, pings, turn);
      pongs.store(turn, std::memory_order_release);
      pong.ring();
    }
  });
  for (int turn = 1; turn <= kTurns; ++turn) {
    pings.store(turn, std::memory_order_release);
    EventCount::ring_all({nullptr, &ping, &pong}, 2);
    sleep_until(pong, pongs, turn);
  }
  other.join();
  EXPECT_LT(std::chrono::steady_clock::now() - started, 50s);
}

TEST(EventCount, WakesEveryoneWhoSleeps) {
  EventCount bell;
  std::atomic<int> value{0}, awake{0};
  std::vector<std::thread> sleepers;
  for (int i = 0; i < 4; ++i) {
    sleepers.emplace_back([&] {
      sleep_until(bell, value, 1);
      ++awake;
    });
  }
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(awake, 0);
  value.store(1, std::memory_order_release);
  bell.ring();
  for (auto& sleeper : sleepers) sleeper.join();
  EXPECT_EQ(awake, 4);
}

TEST(EventCount, LetsSleepersGoWhenTheirTimeIsUp) {
  EventCount bell;
  const auto started = std::chrono::steady_clock::now();
  bell.sleep(bell.about_to_sleep(), 30ms);
  EXPECT_GE(std::chrono::steady_clock::now() - started, 29ms);
}

}  // namespace
}  // namespace trireme::comm
