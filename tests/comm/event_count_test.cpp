// An event count that is notified after a change always wakes whoever looks before it sleeps.
#include "trireme/comm/event_count.h"

#include <gtest/gtest.h>

#include <thread>

namespace trireme::comm {
namespace {

using namespace std::chrono_literals;

/// Until the value is reached, as the engine waits: announce, look, sleep.
void sleep_until(EventCount& event_count, const std::atomic<int>& value, int wanted) {
  while (true) {
    const std::uint32_t ticket = event_count.about_to_sleep();
    if (value.load(std::memory_order_acquire) >= wanted) {
      event_count.stay_awake();
      return;
    }
    event_count.sleep(ticket, 60s);
  }
}

TEST(EventCount, LosesNoNotification) {
  // Two threads take turns; a lost notification would cost a minute.
  constexpr int kTurns = 3000;
  EventCount ping, pong;
  std::atomic<int> pings{0}, pongs{0};
  const auto started = std::chrono::steady_clock::now();
  std::thread other([&] {
    for (int turn = 1; turn <= kTurns; ++turn) {
      sleep_until(ping, pings, turn);
      pongs.store(turn, std::memory_order_release);
      pong.notify();
    }
  });
  for (int turn = 1; turn <= kTurns; ++turn) {
    pings.store(turn, std::memory_order_release);
    EventCount::notify_all({nullptr, &ping, &pong}, 2);
    sleep_until(pong, pongs, turn);
  }
  other.join();
  EXPECT_LT(std::chrono::steady_clock::now() - started, 50s);
}

TEST(EventCount, WakesEveryoneWhoSleeps) {
  EventCount event_count;
  std::atomic<int> value{0}, awake{0};
  std::vector<std::thread> sleepers;
  for (int i = 0; i < 4; ++i) {
    sleepers.emplace_back([&] {
      sleep_until(event_count, value, 1);
      ++awake;
    });
  }
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(awake, 0);
  value.store(1, std::memory_order_release);
  event_count.notify();
  for (auto& sleeper : sleepers) sleeper.join();
  EXPECT_EQ(awake, 4);
}

TEST(EventCount, LetsSleepersGoWhenTheirTimeIsUp) {
  EventCount event_count;
  const auto started = std::chrono::steady_clock::now();
  event_count.sleep(event_count.about_to_sleep(), 30ms);
  EXPECT_GE(std::chrono::steady_clock::now() - started, 29ms);
}

}  // namespace
}  // namespace trireme::comm
