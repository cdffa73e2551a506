#include "trireme/launch/host_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/errors.h"
#include "tests/launch/jobs.h"
#include "trireme/base/error.h"
#include "trireme/launch/host_discovery.h"

namespace trireme::launch {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Host pool_host(const std::string& address, int slots) { return {.user = "", .address = address, .slots = slots}; }
const HostPool::Time kNow{1h};

/// Starts ranks until nobody has room: the hosts, in order.
std::vector<std::string> fill(HostPool& pool, HostPool::Time now, int& member) {
  std::vector<std::string> order;
  while (const auto host = pool.next(now)) {
    order.push_back(host->address);
    pool.started(member++, *host);
  }
  return order;
}

TEST(HostPool, FillsHostsInTheirOrder) {
  HostPool pool({});
  pool.set_hosts({pool_host("a", 2), pool_host("b", 1)});
  int member = 1;
  EXPECT_THAT(fill(pool, kNow, member), ElementsAre("a", "a", "b"));
  EXPECT_EQ(pool.running(), 3);
  EXPECT_EQ(pool.room(), 3);
  EXPECT_EQ(pool.host_of(3), "b");
}

TEST(HostPool, BarsAHostAfterAFailureAndLongerAfterTheNext) {
  HostPool pool({.first = 10s, .longest = 30s});
  pool.set_hosts({pool_host("a", 1), pool_host("b", 1)});
  int member = 1;
  fill(pool, kNow, member);
  pool.ended(1, /*failed=*/true, kNow);
  EXPECT_EQ(pool.barred_for("a"), 10s);
  EXPECT_FALSE(pool.next(kNow + 9s));
  ASSERT_TRUE(pool.next(kNow + 10s));
  pool.started(3, *pool.next(kNow + 10s));
  pool.ended(3, true, kNow + 11s);
  EXPECT_FALSE(pool.next(kNow + 30s));
  EXPECT_EQ(pool.next(kNow + 31s)->address, "a");
  pool.progressed();
  pool.started(4, pool_host("a", 1));
  pool.ended(4, true, kNow + 40s);
  EXPECT_EQ(pool.barred_for("a"), 10s);  // the run came further since
}

TEST(HostPool, ARankThatEndedWellBarsNobody) {
  HostPool pool({});
  pool.set_hosts({pool_host("a", 1)});
  int member = 1;
  fill(pool, kNow, member);
  pool.ended(1, /*failed=*/false, kNow);
  EXPECT_THAT(fill(pool, kNow, member), ElementsAre("a"));
}

TEST(HostPool, RanksOfHostsThatAreGoneHaveNoPlace) {
  HostPool pool({});
  pool.set_hosts({pool_host("a", 2), pool_host("b", 2)});
  int member = 1;
  fill(pool, kNow, member);
  EXPECT_THAT(pool.surplus(), IsEmpty());
  pool.set_hosts({pool_host("a", 1), pool_host("c", 1)});
  EXPECT_THAT(pool.surplus(), ElementsAre(4, 3, 2));  // the newest first
  EXPECT_EQ(pool.next(kNow)->address, "c");
}

TEST(HostPool, AHostThatFlapsKeepsItsFailures) {
  HostPool pool({.first = 10s, .longest = 100s});
  pool.set_hosts({pool_host("a", 1)});
  int member = 1;
  fill(pool, kNow, member);
  pool.ended(1, true, kNow);
  pool.set_hosts({});
  pool.set_hosts({pool_host("a", 1)});
  EXPECT_FALSE(pool.next(kNow + 1s));
}

TEST(HostPool, CooldownsNeverPassTheirLongest) {
  const Cooldown cooldown{.first = 10s, .longest = 100s};
  EXPECT_EQ(cooldown.after(0), 0s);
  EXPECT_EQ(cooldown.after(1), 10s);
  EXPECT_EQ(cooldown.after(4), 80s);
  EXPECT_EQ(cooldown.after(1000), 100s);
}

TEST(Discovery, ReadsALineForEachHost) {
  const auto hosts = parse_discovery("# spot machines\nnode1:4\n\n  me@node2\n[fd00::7]:2\n");
  ASSERT_EQ(hosts.size(), 3U);
  EXPECT_EQ(hosts[0], pool_host("node1", 4));
  EXPECT_EQ(hosts[1].login(), "me@node2");
  EXPECT_EQ(hosts[1].slots, 1);
  EXPECT_EQ(hosts[2], pool_host("fd00::7", 2));
  EXPECT_THAT(parse_discovery(""), IsEmpty());
}

TEST(Discovery, RefusesWhatIsNoHost) {
  EXPECT_THROW(parse_discovery("a:zero\n"), ConfigError);
  EXPECT_THROW(parse_discovery("a:2\na:1\n"), ConfigError);
}

/// Looks until the script has ended, at most five seconds.
std::optional<std::vector<Host>> looked(HostDiscovery& discovery, std::chrono::milliseconds longest = 5s) {
  const auto until = std::chrono::steady_clock::now() + longest;
  while (std::chrono::steady_clock::now() < until) {
    if (auto hosts = discovery.look(std::chrono::steady_clock::now())) return hosts;
    std::this_thread::sleep_for(1ms);
  }
  return std::nullopt;
}

TEST(Discovery, RunsItsScriptAgainAndAgain) {
  const Folder folder;
  const std::string file = (folder.path() / "hosts").string();
  std::ofstream(file) << "a:1\n";
  HostDiscovery discovery("cat " + file, 1ms);
  ASSERT_EQ(looked(discovery)->size(), 1U);
  std::ofstream(file) << "a:1\nb:2\n";
  ASSERT_TRUE(looked(discovery));  // one may have begun before the file was there
  EXPECT_EQ(looked(discovery)->size(), 2U);
}

TEST(Discovery, AScriptThatFailsOrHangsLaterSaysNothing) {
  const Folder folder;
  const std::string marker = (folder.path() / "once").string();
  const std::string well_once = "[ -e " + marker + " ] || { touch " + marker + "; echo a:1; exit 0; }; ";
  HostDiscovery failing(well_once + "echo a:2; exit 3", 1ms);
  ASSERT_TRUE(looked(failing));
  EXPECT_FALSE(looked(failing, 100ms));
  std::filesystem::remove(marker);
  HostDiscovery hanging(well_once + "echo a:2; sleep 100", 1ms, 500ms);
  ASSERT_TRUE(looked(hanging));
  EXPECT_FALSE(looked(hanging, 800ms));
}

TEST(Discovery, AScriptThatFailsAtFirstIsAMistake) {
  HostDiscovery failing("echo a:1; exit 3", 1ms);
  EXPECT_THAT(message_of<ConfigError>([&] { looked(failing); }), HasSubstr("no hosts are known yet"));
  HostDiscovery wrong("echo a:many", 1ms);
  EXPECT_THAT(message_of<ConfigError>([&] { looked(wrong); }), HasSubstr("a:many"));
  HostDiscovery hanging("sleep 100", 1ms, 50ms);
  EXPECT_THAT(message_of<ConfigError>([&] { looked(hanging); }), HasSubstr("did not end"));
}

}  // namespace
}  // namespace trireme::launch
