// Ranks over UCX, several in one process, so that sanitizers see both ends: collectives equal the reference, messages
// of another world are refused, and who is built otherwise is named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <mutex>
#include <nlohmann/json.hpp>

#include "tests/comm/thread_ranks.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/plugin.h"
#include "trireme/comm/control.h"
#include "trireme/comm/process.h"
#include "trireme/comm/transport.h"
#include "trireme/comm/ucx_plugin/ucx_plugin.h"

namespace trireme::comm {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using Planes = std::vector<std::unique_ptr<ControlPlane>>;

constexpr const char* kCards = "trireme/ucx/cards";

class UcxTransports : public testing::Test {
 protected:
  void SetUp() override {
    try {
      plugin_.emplace(load_ucx());
    } catch (const ConfigError& error) {
      GTEST_SKIP() << error.message();
    }
    divert_log([this](std::string_view line) {
      const std::lock_guard lock(mutex_);
      log_ += std::string(line) + "\n";
    });
  }
  void TearDown() override { divert_log(nullptr); }

  std::string logged() {
    const std::lock_guard lock(mutex_);
    return log_;
  }
  /// So many ranks, in order, are on each node; returns when all have come.
  std::unique_ptr<Transport> meet(ControlPlane& plane, int ranks_per_node = 1) {
    return std::unique_ptr<Transport>(plugin_->function<decltype(trireme_ucx_transport)>("trireme_ucx_transport")(
        plane, {.ranks_per_node = ranks_per_node, .meet_timeout = 20s}));
  }
  /// As a rank of its own node, on another thread: ranks wait for each other.
  std::future<std::unique_ptr<Transport>> start(ControlPlane& plane) {
    return std::async(std::launch::async, [this, &plane] { return meet(plane); });
  }
  /// Threads that are ranks over UCX.
  Runner over_ucx(int ranks_per_node) {
    return [this, ranks_per_node](int ranks, const std::function<void(Rank&)>& body) {
      Planes planes = make_local_control(ranks);
      RanksOptions options = test_options();
      options.wrap = [&](std::unique_ptr<Transport> threads) {
        return meet(*planes[static_cast<std::size_t>(threads->rank())], ranks_per_node);
      };
      run_ranks(ranks, body, options);
    };
  }
  /// Rank 1 of a world whose rank 0 we are, by hand: with the card that is made of rank 1's.
  std::future<std::unique_ptr<Transport>> start_second(Planes& planes, const std::function<json(json)>& first) {
    auto second = start(*planes[1]);
    const json mine = json::parse(planes[0]->wait_for("trireme/ucx/card/1", 20s));
    planes[0]->set(kCards, json{{"session", std::string(32, '7')}, {"cards", json::array({first(mine), mine})}}.dump());
    return second;
  }

 private:
  std::optional<Plugin> plugin_;
  std::mutex mutex_;
  std::string log_;
};

TEST_F(UcxTransports, CollectivesAndMessagesEqualTheReference) {
#if defined(TRIREME_TSAN) || defined(__SANITIZE_ADDRESS__)
  constexpr std::uint64_t kSmallOneIn = 12, kLargeOneIn = 24;
#else
  constexpr std::uint64_t kSmallOneIn = 3, kLargeOneIn = 12;
#endif
  for (const int ranks : {2, 3, 4}) {
    EXPECT_EQ(check_on(over_ucx(/*ranks_per_node=*/1), ranks,
                       [&](Rank& self) -> std::string {
                         const Sweep sweep{.seed = 3, .large_one_in = kLargeOneIn, .small_one_in = kSmallOneIn};
                         std::string wrong = check_collectives(self.world(), sweep);
                         if (wrong.empty()) wrong = check_messages(self.world(), 5);
                         if (wrong.empty()) wrong = check_program(self, 7);
                         return wrong.empty() ? check_early_receive(self, 8) : wrong;
                       }),
              "");
  }
}

TEST_F(UcxTransports, ARankThatFailsInTheMiddleIsToldOnAll) {
  for (int round = 0; round < 5; ++round) {
    const std::string told = check_on(over_ucx(/*ranks_per_node=*/1), 4, [&](Rank& self) -> std::string {
      std::vector<float> values(20'000, 1.0f);
      const Buffer all{values.data(), values.size(), DType::kF32};
      for (int call = 0; call < 3; ++call) self.world().all_reduce(all, Reduce::kSum).wait();
      if (self.rank() == round % 4) return "the disk of this rank is on fire";
      for (int call = 0; call < 100; ++call) self.world().all_reduce(all, Reduce::kSum).wait();
      return "it went on without a rank";
    });
    EXPECT_THAT(told, HasSubstr("on fire"));
  }
}

TEST_F(UcxTransports, AMessageOfAnotherWorldIsRefusedAndTheRankGoesOn) {
  Planes planes = make_local_control(2), others = make_local_control(2);
  auto starting = start(*planes[1]);
  const auto zero = start(*planes[0]).get();
  const auto one = starting.get();
  // A rank of an epoch that is no more: it has the address of our rank 0, and the session of its own world.
  const json ours = json::parse(*planes[0]->get(kCards));
  const auto stale = start_second(others, [&](const json&) { return ours.at("cards").at(0); }).get();

  const Envelope to_zero{.peer = 0, .channel = 7, .tag = 3};
  std::uint64_t old_news = 1, news = 2, heard = 0;
  const auto receiving =
      zero->post_recv({.peer = 1, .channel = 7, .tag = 3}, {.to = &heard, .count = 8, .type = DType::kU8});
  const auto refused = stale->post_send(to_zero, &old_news, sizeof old_news);
  const auto until = [&](const std::function<bool()>& done) {
    const auto deadline = std::chrono::steady_clock::now() + 20s;
    while (!done() && std::chrono::steady_clock::now() < deadline) {
      for (Transport* rank : {zero.get(), one.get(), stale.get()}) rank->progress();
    }
    return done();
  };
  EXPECT_TRUE(
      until([&] { return logged().find("refused a message without this job's session") != std::string::npos; }));
  EXPECT_EQ(receiving->advance(Effort::kWork), Progress::kStuck);

  const auto sending = one->post_send(to_zero, &news, sizeof news);
  EXPECT_TRUE(until([&] { return receiving->advance(Effort::kWork) == Progress::kDone; }));
  EXPECT_EQ(heard, news);
  for (Transport* rank : {zero.get(), one.get(), stale.get()}) rank->give_up();  // nobody says goodbye here
}

TEST_F(UcxTransports, RanksThatAreBuiltOtherwiseAreNamed) {
  const auto refusal = [&](const char* key, const json& value) -> std::string {
    Planes planes = make_local_control(2);
    try {
      start_second(planes, [&](json card) {
        card["host"] = "elsewhere";
        card[key] = value;
        return card;
      }).get();
    } catch (const ConfigError& error) {
      return error.message();
    }
    return "taken";
  };
  EXPECT_THAT(refusal("ucx", "0.1"), AllOf(HasSubstr("rank 1 on "), HasSubstr("has UCX \""),
                                           HasSubstr("but rank 0 on elsewhere has \"0.1\"")));
  EXPECT_THAT(refusal("wire", 99), AllOf(HasSubstr("has messages of version 1"), HasSubstr("elsewhere has 99")));
}

}  // namespace
}  // namespace trireme::comm
